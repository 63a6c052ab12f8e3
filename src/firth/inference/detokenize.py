"""The text of tokens that come one after the other."""

from collections.abc import Sequence

CUT = "\ufffd"  # what the bytes of a character that is not whole yet are decoded to
CONTEXT = 4  # tokens of the prompt that the first new one is decoded after


class Detokenizer:
    """Turns new tokens into text: whole characters only, up to the first stop string.

    Attributes: ids (the tokens so far), text (all that is certain), reason ("" while it goes on,
    then "stop", "end" or "length").
    """

    def __init__(self, tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()):
        self.ids: list[int] = []
        self.text = self.reason = ""
        self._tokenizer, self._stop = tokenizer, stop
        # Decoded together, so that a token is joined to the one before it or kept apart from it.
        self._before, self._waiting = list(prompt)[-CONTEXT:], []
        self._shown = 0

    def push(self, token: int) -> str:
        """Take one more token; returns what is now certain to belong to the text."""
        self.ids.append(token)
        self._waiting.append(token)
        if self._decode(self._before + self._waiting).endswith(CUT):
            return ""
        self._take()
        return self._show(len(self.text) - (0 if self.reason else self._begun()))

    def finish(self, reason: str) -> str:
        """No more tokens come; returns what was held back."""
        if self._waiting:
            self._take()
        self.reason = self.reason or reason
        return self._show(len(self.text))

    def _decode(self, ids) -> str:
        return self._tokenizer.decode(ids, skip_special=False)

    def _take(self) -> str:
        """Add the text of the waiting tokens, and end it before a stop string."""
        known = len(self._decode(self._before))
        whole = self._decode(self._before + self._waiting)
        searched = max(len(self.text) - max(map(len, self._stop), default=0) + 1, 0)
        self.text += whole[known:]
        self._before, self._waiting = self._waiting, []
        found = [self.text.find(stop, searched) for stop in self._stop]
        if found := [place for place in found if place >= 0]:
            self.text, self.reason = self.text[: min(found)], "stop"

    def _begun(self) -> int:
        """How many characters at the end may turn out to begin a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n])),
            default=0,
        )

    def _show(self, end: int) -> str:
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

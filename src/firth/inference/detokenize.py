"""Decode a stream of tokens to text."""

from collections.abc import Sequence

CUT = "\ufffd"  # the bytes of an incomplete character decode to this
CONTEXT = 4  # the first new token is decoded after so many tokens of the prompt


class Detokenizer:
    """Turns new tokens into text: whole characters only, up to the first stop string.

    Attributes: ids (the tokens so far), text (the certain part of their text), reason ("" until the
    text ends, then "stop", "end" or "length").
    """

    def __init__(self, tokenizer, prompt: Sequence[int], stop: Sequence[str] = ()):
        self.ids: list[int] = []
        self.text = self.reason = ""
        self._tokenizer, self._stop = tokenizer, stop
        # These decode together: whether a space comes before a token depends on its predecessor.
        self._before, self._waiting = list(prompt)[-CONTEXT:], []
        self._shown = 0

    def push(self, token: int) -> str:
        """Add one token; returns the text that has become certain."""
        self.ids.append(token)
        self._waiting.append(token)
        if self._decode(self._before + self._waiting).endswith(CUT):
            return ""
        self._take()
        return self._show(len(self.text) - (0 if self.reason else self._begun()))

    def finish(self, reason: str) -> str:
        """End the text; returns the part held back."""
        if self._waiting:
            self._take()
        self.reason = self.reason or reason
        return self._show(len(self.text))

    def _decode(self, ids) -> str:
        return self._tokenizer.decode(ids, skip_special=False)

    def _take(self) -> str:
        """Append the text of the waiting tokens, and cut it before a stop string."""
        known = len(self._decode(self._before))
        whole = self._decode(self._before + self._waiting)
        searched = max(len(self.text) - max(map(len, self._stop), default=0) + 1, 0)
        self.text += whole[known:]
        self._before, self._waiting = self._waiting, []
        begins = [self.text.find(stop, searched) for stop in self._stop]
        if begins := [begin for begin in begins if begin >= 0]:
            self.text, self.reason = self.text[: min(begins)], "stop"

    def _begun(self) -> int:
        """The number of characters at the end that may begin a stop string."""
        return max(
            (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n])),
            default=0,
        )

    def _show(self, end: int) -> str:
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

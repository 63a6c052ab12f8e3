"""ARPA files: the text in which SRILM, KenLM and others exchange n-gram models."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.errors import FirthError
from firth.models.ngram.model import Ngram

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
LOG10 = np.log(10)
NEVER = -99.0  # how the files write the logarithm of zero
NORMAL = 1e-3  # how far the probabilities after a context may be from a sum of 1


def write(model: Ngram, words: Sequence[str], path: Path) -> None:
    """Write a model; `words` are those of the ids 0 .. V-1, with `</s>` and `<unk>` among them.

    The logarithms have nine digits, so that `read` gives the same float32 numbers back but for the
    change of base. The file appears whole or not. Raises FirthError for a word with white space.
    """
    for word in words:
        if not word or word.split() != [word]:
            raise FirthError(f"{path}: the token {word!r} cannot stand in an ARPA file")
    words = np.array([*words, START], dtype=object)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            counts = (f"ngram {n}={len(keys)}\n" for n, keys in enumerate(model.keys, 1))
            file.write("\\data\\\n" + "".join(counts))
            texts = None
            for n in range(1, model.order + 1):
                keys = model.keys[n - 1]
                own = words[keys % (model.size + 1)]
                texts = own if n == 1 else texts[keys // (model.size + 1)] + " " + own
                columns = [_texts(model.log_probs[n - 1]), texts]
                if n < model.order:
                    columns.append(_texts(model.backoffs[n - 1]))
                lines = map("\t".join, zip(*columns, strict=True))
                file.write(f"\n\\{n}-grams:\n" + "\n".join(lines) + "\n")
            file.write("\n\\end\\\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _texts(logs) -> list[str]:
    values = np.maximum(logs.astype(np.float64) / LOG10, NEVER)
    return [f"{value:.9g}" for value in values.tolist()]


def read(path: str | os.PathLike) -> tuple[Ngram, list[str]]:
    """(model, its words by id: `<unk>`, `</s>`, then the others in the order of the file).

    Raises FirthError, naming the line, for a file that is cut off, for an n-gram whose first words
    or last word are no n-gram of the file, and for unigrams whose probabilities do not sum to 1.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FirthError(f"{path} cannot be read as an ARPA file: {error}") from None
    sections = _sections(lines, path)
    first = [_fields(lines[i], 1, i, path) for i in sections[0]]
    seen = [words[0] for words, _, _ in first]
    if missing := [word for word in (START, END) if word not in seen]:
        raise FirthError(f"{path}: the 1-grams lack {missing[0]}")
    words = [UNKNOWN, END, *(word for word in seen if word not in (START, END, UNKNOWN))]
    ids = {word: number for number, word in enumerate([*words, START])}
    if len(ids) != len(words) + 1 or len(set(seen)) != len(seen):
        raise FirthError(f"{path}: a word stands twice among the 1-grams")
    size, keys, log_probs, backoffs, below = len(words), [], [], [], {}
    for n, section in enumerate(sections, 1):
        entries = [_fields(lines[i], n, i, path) for i in section]
        table = np.empty(len(entries), np.int64)
        for at, (gram, _, _) in enumerate(entries):
            prefix = below.get(gram[:-1]) if n > 1 else 0
            if prefix is None or gram[-1] not in ids:
                lost = " ".join(gram[:-1]) if prefix is None else gram[-1]
                raise FirthError(
                    f"{path}:{section[at] + 1}: {' '.join(gram)!r} has no {lost!r} to back off "
                    f"from: it is none of the {n - 1 if prefix is None else 1}-grams"
                )
            table[at] = prefix * (size + 1) + ids[gram[-1]]
        logs = np.array([(value, weight) for _, value, weight in entries]).reshape(-1, 2) * LOG10
        logs[logs <= NEVER * LOG10] = -np.inf
        if n == 1 and UNKNOWN not in seen:
            table, logs = np.append(table, 0), np.append(logs, [[-np.inf, 0]], axis=0)
        order = np.argsort(table)
        keys.append(table[order])
        if (np.diff(keys[-1]) == 0).any():
            raise FirthError(f"{path}: one of the {n}-grams stands twice")
        log_probs.append(logs[order, 0].astype(np.float32))
        backoffs.append(logs[order, 1].astype(np.float32))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        below = {gram: int(rank[at]) for at, (gram, _, _) in enumerate(entries)}
    log_probs[0][size] = -np.inf  # <s> is never predicted, whatever the file says
    model = Ngram(size, tuple(keys), tuple(log_probs), tuple(backoffs[:-1]))
    _check_sums(model, words, path)
    return model, words


def _sections(lines: list[str], path: Path) -> list[list[int]]:
    """The numbers of the lines of each order; FirthError where the file is not as it says."""
    try:
        place = next(i for i, line in enumerate(lines) if line.strip() == "\\data\\")
    except StopIteration:
        raise FirthError(f"{path} is no ARPA file: it has no line \\data\\") from None
    announced, sections, whole = [], [], False
    for i in range(place + 1, len(lines)):
        line = lines[i].strip()
        if line.startswith("ngram ") and not sections:
            announced.append(line.partition("=")[2].strip())
        elif line == f"\\{len(sections) + 1}-grams:":
            sections.append([])
        elif line == "\\end\\":
            whole = True
            break
        elif line and sections:
            sections[-1].append(i)
        elif line:
            raise FirthError(f"{path}:{i + 1}: {line!r:.40} is no line of an ARPA file")
    found = [str(len(section)) for section in sections]
    if not whole or not found or found != announced:
        raise FirthError(
            f"{path} is cut off or damaged: it announces {', '.join(announced) or 'no'} n-grams "
            f"and holds {', '.join(found) or 'none'}{'' if whole else ' before its end'}"
        )
    return sections


def _fields(line: str, order: int, number: int, path: Path):
    """(words, log10 of the probability, log10 of the back-off) of one line."""
    parts = line.split()
    try:
        if not order + 1 <= len(parts) <= order + 2:
            raise ValueError
        weight = float(parts[order + 1]) if len(parts) == order + 2 else 0.0
        return tuple(parts[1 : order + 1]), float(parts[0]), weight
    except ValueError:
        raise FirthError(
            f"{path}:{number + 1}: expected a number, {order} words and at most one more number"
        ) from None


def _check_sums(model: Ngram, words, path: Path) -> None:
    """Raise FirthError if some of the contexts have probabilities that do not sum to 1."""
    contexts = [[], [model.size]]
    contexts += [[word] for word in np.linspace(2, model.size - 1, 8).astype(int)[:-1]]
    for context in contexts if model.size > 2 else contexts[:2]:
        total = np.exp(model.distribution(context)).sum()
        if abs(total - 1) > NORMAL:
            after = f"after {[*words, START][context[0]]!r}" if context else "of the 1-grams"
            raise FirthError(
                f"{path}: the probabilities {after} sum to {total:.6g}, not to 1; the file was "
                "damaged, or made with another vocabulary"
            )

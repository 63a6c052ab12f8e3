# ruff: noqa: RUF001  (the quotes, dashes and stops of other scripts are what this file is about)
"""Sentence segmentation by rules: fast, without a model, and the same on every machine.

A sentence ends at . ! ? or … (with the quotes, brackets and [1] that follow directly) before white
space and then anything but a lower-case letter. A full stop does not end a sentence

- after a title or a word that runs on (Mr., vs., e.g.), nor before a number after No., p., Fig.;
- after an initial (J. R. Firth), an acronym or an abbreviation (U.S., Inc., Jan.), unless the next
  word usually starts a sentence (The, However, ...);
- after a number at the head of the sentence (2. Methods).

Ideographic stops need no white space. A line end always ends a sentence.

Limits: the rules are for English and close relatives. A sentence that starts in lower case joins
the previous one. Colons and semicolons never end one. Text without punctuation is one sentence.
"""

import re


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_RUNS_ON = _set(
    """mr mrs ms messrs mme mlle dr prof rev fr hon sgt lt col gen capt cmdr maj adm gov sen rep
    pres supt st mt ft vs cf e.g i.e viz approx esp"""
)
_BEFORE_NUMBER = _set("no nos p pp fig figs eq eqs ch vol vols sec art ca c")
_MAY_END = _set(
    """inc ltd co corp bros jr sr etc al ph.d dept univ assn est ave blvd rd
    jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun"""
)
_STARTERS = _set(
    """after all also although an and another as at because before both but by during each even
    every following for from he her here his how however if in it its many more most my no not on
    once one only or other our several she since so some such that the their then there these they
    this those though through thus to two under until we what when where which while who why with
    you your"""
)
_STOP = re.compile(  # begins with one set, without a "+", which makes the search twice as fast
    r"(?P<all>(?P<stop>[.!?…。！？｡।॥؟][.!?…。！？｡।॥؟]*+[\"'”’»)\]」』）]*+)(?>(?:\[\w+\])*))"
    r"(?!\s+[\"'“‘«(\[]*[a-z])(?:\s+[\"'“‘«(\[]*(?P<next>\w*))?"
)
_IDEOGRAPHIC = frozenset("。！？｡")  # stops that end a sentence without white space
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # one letter, or letters with stops between
_LONGEST_ABBREVIATION = 16  # characters before a stop that the rules look at
_ENDINGS = frozenset(word[-4:] for word in _RUNS_ON | _BEFORE_NUMBER | _MAY_END if len(word) > 3)


def split_sentences(line: str) -> list[str]:
    """Cut one line of text into sentences.

    Joined, the sentences give the line without white space at its ends. The white space between two
    sentences begins the second one, as byte-level BPE needs it.
    """
    line = line.strip()
    sentences, begin = [], 0
    for match in _STOP.finditer(line):
        stop, following = match.group("stop", "next")
        if following is None and _IDEOGRAPHIC.isdisjoint(stop):
            continue
        if following and following[0].islower():
            continue
        if stop == ".":
            start = match.start()
            letters = line[max(begin, start - 4) : start]  # most stops follow a common long word
            if len(letters) < 4 or not letters.isalpha() or letters.lower() in _ENDINGS:
                before = line[max(begin, start - _LONGEST_ABBREVIATION) : start]
                if not _ends_sentence(before, following):
                    continue
        end = match.end("all")
        sentences.append(line[begin:end])
        begin = end
    if begin < len(line):
        sentences.append(line[begin:])
    return sentences


def _ends_sentence(before: str, following: str) -> bool:
    """Whether a full stop between `before` and `following` ends the sentence."""
    words = before.split()
    word = words[-1].lstrip("([\"'“‘«—–-") if words else ""
    lower = word.lower()
    if lower in _RUNS_ON:
        return False
    if lower in _BEFORE_NUMBER and following[:1].isdigit():
        return False
    if lower in _MAY_END or _ACRONYM.fullmatch(word):
        return following.lower() in _STARTERS
    return not (word.isdigit() and before.strip() == word)

"""Options of experiments' commands."""

import argparse


def some_of(known):
    """A type of option: some of `known` with commas between."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        if wrong := set(found) - set(known):
            raise argparse.ArgumentTypeError(f"{min(wrong)!r} is none of {', '.join(known)}")
        return found

    return read

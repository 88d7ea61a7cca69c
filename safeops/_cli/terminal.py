"""What a person at a terminal sees, and no file or machine: colours, and how far a command is."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sized
from time import monotonic
from typing import TextIO, TypeVar

T = TypeVar("T")
WAIT = 1.0  # seconds until progress is worth a line
BOLD, RED, GREEN, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
# How a line of a finding begins, and its colour.
COLOURS = {r"\S+:\d+:\d+: ": BOLD, r"\s+\^+$": RED, r"  - ": RED, r"  \+ ": GREEN}


def is_coloured(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not turned colours off (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str) -> str:
    """Return findings in colours."""
    return "\n".join(map(_coloured_line, text.split("\n")))


def _coloured_line(line: str) -> str:
    found = [colour for start, colour in COLOURS.items() if re.match(start, line)]
    return f"{found[0]}{line}{PLAIN}" if found else line


def followed(things: Iterable[T], said: str, *, quiet: bool) -> Iterator[T]:
    """Yield things; say on a terminal how many of them are done, once that takes a while."""
    total = len(things) if isinstance(things, Sized) else 0
    shown, begun, last = sys.stderr.isatty() and not quiet, monotonic(), 0.0
    told = False
    for i, thing in enumerate(things):
        now = monotonic()
        if shown and now - begun > WAIT and now - last > WAIT / 5:
            print(f"\r{said.format(i, total)}\x1b[K", end="", file=sys.stderr, flush=True)
            told, last = True, now
        yield thing
    if told:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)

"""What a person at a terminal sees, and no file or machine: colours, and how far a command is."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TextIO, TypeVar

T = TypeVar("T")
WAIT = 1.0  # seconds until progress is worth a line
LONG = 10.0  # seconds until it is worth one beside the output of a script
BOLD, RED, GREEN, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
# How a line of a finding begins, and its colour.
COLOURS = {r"\S+:\d+:\d+: ": BOLD, r"\s+\^+$": RED, r"  - ": RED, r"  \+ ": GREEN}


def is_coloured(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not turned colours off (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str) -> str:
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


@contextmanager
def progress_line(count: Callable[[], int], said: str, *, quiet: bool) -> Iterator[None]:
    """Context in which a terminal gets a line with the count, after 10 seconds, 20 more, 40 ..."""
    stream, done = sys.stderr, Event()
    if quiet or not stream.isatty():
        yield
        return

    def tell() -> None:
        wait = LONG
        while not done.wait(wait):
            print(said.format(count()) + "\n", end="", file=stream, flush=True)  # in one write
            wait *= 2

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

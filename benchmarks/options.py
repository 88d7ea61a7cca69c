"""The command line of a measurement; it sets no number of threads, as `timing` does."""

import argparse
import sys


def parsed(text, *, quick=True, **words):
    """Return the options: whether to be `quick`, if that makes a difference, and words."""
    parser = argparse.ArgumentParser(description=text.partition("\n\n")[0])
    if quick:
        parser.add_argument("--quick", action="store_true", help="fewer pairs of timings")
    for name, choices in words.items():
        parser.add_argument(name, **choices)
    return parser.parse_args(sys.argv[1:])

"""The command line: `python -m safeops`."""

import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from importlib.util import find_spec

from safeops import __version__
from safeops._backends import FRAMEWORKS
from safeops._demo import demonstrate

DESCRIPTION = """
Run reported bugs live on every framework installed, naive code beside safe code, and print value
and gradient of both.
"""
EPILOG = """
Exit code: 0 if all safe results are right, 1 if one is not or a framework does not import, 2 for a
wrong command line.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = make_parser().parse_args(argv)
    return int(options.run(options))


def make_parser() -> ArgumentParser:
    """Return the parser; a subcommand brings a `run` of its own."""
    parser = ArgumentParser("python -m safeops", description=DESCRIPTION, epilog=EPILOG)
    parser.set_defaults(run=demonstrate)
    parser.add_argument("--version", action="version", version=f"safeops {__version__}")
    parser.add_argument("--json", action="store_true", help="print a list of results for machines")
    parser.add_argument(
        "--framework",
        action="append",
        type=installed_framework,
        metavar="NAME",
        help=f"run on this one only, out of {', '.join(FRAMEWORKS)}; may be repeated",
    )
    return parser


def installed_framework(name: str) -> str:
    """Return the name of a framework that can be used."""
    if name not in FRAMEWORKS:
        msg = f"expected a framework out of ({', '.join(FRAMEWORKS)}), got {name}"
        raise ArgumentTypeError(msg)
    if find_spec(name) is None:
        msg = f'{name} is not installed; pip install "safeops[{name}]"'
        raise ArgumentTypeError(msg)
    return name


if __name__ == "__main__":
    sys.exit(main())

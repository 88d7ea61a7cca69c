"""
The command line: `safeops`, or `python -m safeops`.

What a command needs is imported for that command alone: `lint` reads files in less time than the
operations take to import.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from safeops import __version__
from safeops._backends import FRAMEWORKS
from safeops._core.errors import INSTALL
from safeops._doors import named

COMMANDS = {
    "recipe": "print a safe operation to copy, which runs without safeops",
    "explain": "run a script, and find the line of the first gradient that is not finite",
    "lint": "read source, and say where a gradient gets NaN although the value is fine",
}
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
    with until_the_pipe_breaks():
        words = sys.argv[1:] if argv is None else argv
        options = make_parser(words).parse_args(words)
        return int(options.run(options))


def run() -> None:
    """Run the command line, and end with its exit code: the command `safeops`."""
    sys.exit(main())


@contextmanager
def until_the_pipe_breaks() -> Iterator[None]:
    """Exit silently if stdout is closed early, as by `head`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a closed pipe is met here, and not when Python ends
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


def make_parser(argv: Sequence[str]) -> ArgumentParser:
    """Return the parser of a command line; a command that is in it brings a `run` of its own."""
    by_name = Path(sys.argv[0]).stem == "safeops"
    name = "safeops" if by_name else "python -m safeops"
    parser = ArgumentParser(name, description=DESCRIPTION, epilog=EPILOG)
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
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command, said in COMMANDS.items():
        only = commands.add_parser(command, help=said, description=said)
        if command in argv:
            fill(only, command)
    return parser


def demonstrate(options: Namespace) -> int:
    """Run the demonstration."""
    from safeops._cli import demo  # noqa: PLC0415  (only what a command needs: see the module)

    return demo.demonstrate(options)


def fill(parser: ArgumentParser, command: str) -> None:
    """Give the parser of a command its arguments."""
    if command == "recipe":
        from safeops._cli import recipe as found  # noqa: PLC0415  (as above)
    elif command == "explain":
        from safeops._cli import explain as found  # type: ignore[no-redef]  # noqa: PLC0415  (one of three)
    else:
        from safeops._cli import lint as found  # type: ignore[no-redef]  # noqa: PLC0415  (as above)
    found.add_arguments(parser)


def installed_framework(name: str) -> str:
    """Return the name of a framework that can be used."""
    name = named(name)
    if name not in FRAMEWORKS:
        msg = f"expected a framework out of ({', '.join(FRAMEWORKS)}), got {name}"
        raise ArgumentTypeError(msg)
    if find_spec(name) is None:
        msg = f"{name} is not installed; {INSTALL.format(name)}"
        raise ArgumentTypeError(msg)
    return name


if __name__ == "__main__":
    run()

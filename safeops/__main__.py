"""The command line: `python -m safeops`."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from safeops import __version__, _recipes
from safeops._backends import FRAMEWORKS
from safeops._cli.demo import demonstrate
from safeops._cli.explain import add_explain
from safeops._cli.families import FAMILIES, functions_of
from safeops._lint.command import add_lint
from safeops._speech import INSTALL

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
        options = make_parser().parse_args(argv)
        return int(options.run(options))


@contextmanager
def until_the_pipe_breaks() -> Iterator[None]:
    """End without a word where the reader of the output, such as `head`, has enough."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a closed pipe is met here, and not when Python ends
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


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
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_recipe(commands)
    add_explain(commands)
    add_lint(commands)
    return parser


def add_recipe(commands: Any) -> None:
    """Add the command that prints recipes."""
    said = "print a safe operation to copy, which runs without safeops"
    parser = commands.add_parser("recipe", help=said, description=said)
    parser.set_defaults(run=print_recipe)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("name", nargs="?", type=name_of_recipe, metavar="NAME", help="as in --list")
    wanted.add_argument(
        "--list", action="store_true", help="list the names by family, each with its use"
    )
    parser.add_argument(
        "--framework",
        dest="spelling",
        choices=_recipes.TITLES,
        default=next(filter(find_spec, _recipes.TITLES), "numpy"),
        help="whose functions the recipe uses; default: the first of these that is installed",
    )


def print_recipe(options: Namespace) -> int:
    """Print a recipe, or the list of them."""
    if options.list:
        known = set(_recipes.names())
        for module, family in FAMILIES.items():
            print(f"{family.title}:")
            for name in (name for name in functions_of(module) if name in known):
                print(f"  {name:22} {_recipes.read(name).summary}")
    else:
        print(_recipes.program(_recipes.read(options.name), options.spelling), end="")
    return 0


def name_of_recipe(name: str) -> str:
    """Return the name of a recipe that there is."""
    names = _recipes.names()
    if name not in names:
        near = get_close_matches(name, names) or ["--list"]
        msg = f"expected the name of a recipe, got {name}; try {' or '.join(near)}"
        raise ArgumentTypeError(msg)
    return name


def installed_framework(name: str) -> str:
    """Return the name of a framework that can be used."""
    if name not in FRAMEWORKS:
        msg = f"expected a framework out of ({', '.join(FRAMEWORKS)}), got {name}"
        raise ArgumentTypeError(msg)
    if find_spec(name) is None:
        msg = f"{name} is not installed; {INSTALL.format(name)}"
        raise ArgumentTypeError(msg)
    return name


if __name__ == "__main__":
    sys.exit(main())

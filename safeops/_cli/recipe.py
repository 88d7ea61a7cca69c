"""The command `recipe`: print an operation to copy, or the list of them."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from difflib import get_close_matches
from importlib.util import find_spec

from safeops import _recipes, linalg, segments
from safeops._cli.families import FAMILIES, WHY_NONE, WITHOUT_RECIPE, functions_of
from safeops._doors import named


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(run=print_recipe)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument(
        "names",
        nargs="*",
        default=[],
        type=name_of_recipe,
        metavar="NAME",
        help="as in --list; several make one module of their functions",
    )
    wanted.add_argument(
        "--list", action="store_true", help="list the names by family, each with its use"
    )
    parser.add_argument(
        "--only", action="store_true", help="print the function alone, without bug, proof and words"
    )
    parser.add_argument(
        *("-f", "--framework"),
        dest="spelling",
        type=named,
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
    elif options.only or len(options.names) > 1:
        print(_recipes.module(options.names, options.spelling), end="")
    else:
        print(_recipes.program(_recipes.read(*options.names), options.spelling), end="")
    return 0


def name_of_recipe(name: str) -> str:
    """Return the name of a recipe that there is."""
    names = _recipes.names()
    if name not in names:
        if name in (*linalg.__all__, *segments.__all__, *WITHOUT_RECIPE):
            msg = f"{name} has no recipe: {WHY_NONE}"
            raise ArgumentTypeError(msg)
        near = get_close_matches(name, names) or ["--list"]
        msg = f"expected the name of a recipe, got {name}; try {' or '.join(near)}"
        raise ArgumentTypeError(msg)
    return name

"""The command `recipe`: print an operation to copy, or the list of them."""

import inspect
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from difflib import get_close_matches
from importlib.util import find_spec
from typing import NamedTuple

import safeops
from safeops import _recipes, linalg, rotations, segments
from safeops._doors import named


def add_arguments(parser: ArgumentParser) -> None:
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
        if why := WITHOUT_RECIPE.get(name):
            msg = f"{name} has no recipe: {why}"
            raise ArgumentTypeError(msg)
        near = get_close_matches(name, names) or ["--list"]
        msg = f"expected the name of a recipe, got {name}; try {' or '.join(near)}"
        raise ArgumentTypeError(msg)
    return name


# The families of functions, by module, as the command line and the pages group them.


class Family(NamedTuple):
    """A family: its page in the documentation, and its title."""

    page: str
    title: str


# By the module of a function.
FAMILIES = {
    "where": Family("combinators", "Combinators"),
    "division": Family("quotients", "Quotients and products"),
    "powers": Family("powers", "Roots, powers, exponentials"),
    "logs": Family("logarithms", "Logarithms and entropies"),
    "composites": Family("composites", "Composites of logarithms"),
    "angles": Family("angles", "Angles"),
    "smooth": Family("smooth", "Removable singularities"),
    "normal": Family("normal", "The normal distribution"),
    "gamma": Family("gamma", "The gamma function"),
    "incomplete": Family("incomplete-gamma", "Incomplete gamma functions"),
    "norms": Family("norms", "Norms and distances"),
    "distances": Family("distances", "Distances of pairs"),
    "interpolation": Family("interpolation", "Interpolation"),
    "rescaling": Family("rescaling", "Rescaling of slices"),
    "radial": Family("radial", "Functions of a norm"),
    "rotations": Family("rotations", "Rotations"),
    "softmax": Family("softmax", "Softmax"),
    "attention": Family("attention", "Attention"),
    "losses": Family("losses", "Losses"),
    "reductions": Family("reductions", "Reductions with a mask"),
    "nan_reductions": Family("nan-reductions", "Reductions that leave out NaN"),
}


# Rotations too have recipes, and `linalg` and `segments` have none.
FUNCTIONS = {name: getattr(safeops, name) for name in safeops.__all__}
FUNCTIONS |= {name: getattr(rotations, name) for name in rotations.__all__}
OWN_CODE = "each framework needs code of its own for it, which is too long to copy"
MADE = "it is made of two or three of the other recipes"
LONG = "its expansions and derivatives are too long to copy"
# Why a function has no recipe.
WITHOUT_RECIPE = {
    "quaternion_to_matrix": "its only singular point is the quaternion 0",
    "matrix_to_quaternion": "it is the first half of the recipe of matrix_to_rotvec",
    "quaternion_slerp": MADE,
    "twist_to_matrix": MADE,
    "matrix_to_twist": MADE,
    "safe_gammainc": LONG,
    "safe_gammaincc": LONG,
    **dict.fromkeys((*linalg.__all__, *segments.__all__), OWN_CODE),
}


def path_of(name: str) -> str:
    """Return where a user finds a function."""
    return f"safeops.rotations.{name}" if name in rotations.__all__ else f"safeops.{name}"


def family_of(name: str) -> str:
    """Return the module in which a function stands, as `FAMILIES` names it."""
    # What a decorator wraps says where it stands; without one it says where it is public.
    function = inspect.unwrap(FUNCTIONS[name])
    made = function.__module__ != safeops.__name__
    module = str(function.__module__ if made else function.__globals__["__name__"])
    return module.rpartition(".")[2]


def functions_of(module: str) -> list[str]:
    """Return the public functions of a module, in the order of its text."""
    names = [name for name in FUNCTIONS if family_of(name) == module]
    return sorted(names, key=lambda name: inspect.getsourcelines(FUNCTIONS[name])[1])

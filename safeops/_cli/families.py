"""The families of functions, by module, as the command line and the pages group them."""

import inspect
from typing import NamedTuple

import safeops
from safeops import rotations


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
WHY_NONE = (
    "decompositions, sums by number and derivatives of every order are other code in each "
    "framework, and too long to copy"
)
FUNCTIONS = {name: getattr(safeops, name) for name in safeops.__all__}
FUNCTIONS |= {name: getattr(rotations, name) for name in rotations.__all__}
# The first has no singular point but the quaternion 0, the second is the first half of the recipe
# of matrix_to_rotvec, the next are made of two or three recipes, and the last two are the functions
# of the framework, with an expansion and derivatives that are too long to copy.
WITHOUT_RECIPE = {
    "quaternion_to_matrix",
    "matrix_to_quaternion",
    "quaternion_slerp",
    "twist_to_matrix",
    "matrix_to_twist",
    "safe_gammainc",
    "safe_gammaincc",
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
    module = module.rpartition(".")[2]
    return "nan_reductions" if module == "quantiles" else module


def functions_of(module: str) -> list[str]:
    """Return the public functions of a module, in the order of its text."""
    names = [name for name in FUNCTIONS if family_of(name) == module]
    return sorted(names, key=lambda name: inspect.getsourcelines(FUNCTIONS[name])[1])

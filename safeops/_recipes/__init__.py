"""
Recipes: safe operations to copy, which run without safeops.

A recipe is a Markdown file beside this module, written once for all frameworks, in the names of the
array API standard, such as ``xp.log``. `spell` puts in the names of a framework: ``tf.math.log``.
The command line prints a recipe as a program, and the documentation shows it as a page.
"""

import ast
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from typing import NamedTuple

AGREEMENT = "Where it agrees with safeops"  # calls that the tests compare with the operation
SECTIONS = (
    "The bug",
    "The recipe",
    "The proof",
    AGREEMENT,
    "Why it works",
    "When not to use it",
    "Another way",
)
LICENCE = "Licence: MIT-0. Copy it without asking, and without this line."
TITLES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "numpy": "NumPy"}

# Of `scipy.special`.
SPECIAL = ("digamma", "erfc", "erfinv", "gammaln", "ndtri")
PREFIX = {"numpy": "np", "torch": "torch", "jax": "jnp", "tensorflow": "tf"}
# Names that a framework spells in its own way; any other is the prefix and the name.
SPELLINGS: dict[str, dict[str, str]] = {
    "numpy": {
        "stop_gradient": "np.asarray",
        "astype": "np.astype",
        **{name: f"scipy.special.{name}" for name in SPECIAL},
    },
    "torch": {
        **{name: f"torch.special.{name}" for name in SPECIAL},
        "cumulative_sum": "torch.cumsum",
        "expand_dims": "torch.unsqueeze",
        "max": "torch.amax",
        "min": "torch.amin",
        "pow": "torch.pow",
        "stop_gradient": "torch.Tensor.detach",
        "sum": "torch.sum",
    },
    "jax": {
        "stop_gradient": "jax.lax.stop_gradient",
        **{name: f"jax.scipy.special.{name}" for name in SPECIAL},
    },
    "tensorflow": {
        "allclose": "np.allclose",
        "asarray": "tf.constant",
        "any": "tf.reduce_any",
        "all": "tf.reduce_all",
        "clip": "tf.clip_by_value",
        "cumulative_sum": "tf.cumsum",
        "cumulative_prod": "tf.math.cumprod",
        "isfinite": "tf.math.is_finite",
        "isinf": "tf.math.is_inf",
        "isnan": "tf.math.is_nan",
        "max": "tf.reduce_max",
        "mean": "tf.reduce_mean",
        "min": "tf.reduce_min",
        "prod": "tf.reduce_prod",
        "sum": "tf.reduce_sum",
        **{
            name: f"tf.math.{name}"
            for name in ("acosh", "atanh", "atan2", "expm1", "log", "log1p", "rsqrt", *SPECIAL)
        },
        "gammaln": "tf.math.lgamma",
    },
}
IMPORTS = {
    "math": "import math",
    "scipy": "import scipy.special",
    "jax": "import jax",
    "jnp": "import jax.numpy as jnp",
    "np": "import numpy as np",
    "tf": "import tensorflow as tf",
    "torch": "import torch",
}
# Options that a framework has in words of its own.
WORDS = {"torch": {"axis": "dim", "keepdims": "keepdim"}}
NAME = re.compile(r"\bxp\.(\w+)")
SORT = re.compile(r"\bxp\.sort\((\w+), axis=([-\w]+)\)")
FINFO = re.compile(r"\bxp\.finfo\((\w+)\.dtype\)")
# ``slope = grad(naive)(x)``; ``grad(naive, xla)`` where TensorFlow shows the bug under XLA only
GRAD = re.compile(r"(?P<out>slope.*) = grad\((?P<f>\w+)(?P<xla>, xla)?\)\((?P<args>[\w, ]+)\)")


class Section(NamedTuple):
    """A part of a text: sentences, and code in neutral spelling."""

    text: str
    code: str


class Recipe(NamedTuple):
    """A recipe: the name of the operation, what it is good for, and its sections by title."""

    name: str
    summary: str
    sections: dict[str, Section]


def names() -> list[str]:
    """Return the names of all recipes."""
    files_of_recipes = (file.name for file in files(__name__).iterdir())
    return sorted(name.removesuffix(".md") for name in files_of_recipes if name.endswith(".md"))


def read(name: str) -> Recipe:
    """Return the recipe of an operation."""
    return Recipe(name, *parts_of((files(__name__) / f"{name}.md").read_text("utf-8")))


def parts_of(text: str) -> tuple[str, dict[str, Section]]:
    """Return the summary of a Markdown text, and its sections by title."""
    summary, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = {}
    for part in parts:
        title, _, body = part.partition("\n")
        code = "\n\n".join(re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL))
        prose = re.sub(r"^```python\n.*?^```\n", "", body, flags=re.MULTILINE | re.DOTALL)
        sections[title] = Section(prose.strip(), code.rstrip())
    return summary.strip(), sections


def spell(code: str, framework: str) -> str:
    """Return code in the spelling of a framework; for NumPy without gradients."""
    code = "\n".join(lines_of(code, framework))
    code = FINFO.sub(partial(limits, framework), code)
    if framework == "torch":  # torch.sort returns the places too
        code = SORT.sub(r"torch.sort(\1, dim=\2, stable=True).values", code)
    for word, own in WORDS.get(framework, {}).items():
        code = re.sub(rf"\b{word}\b", own, code)
    return NAME.sub(partial(spelling, framework), code).replace("\n\n\n\n", "\n\n\n").strip("\n")


def spelling(framework: str, match: re.Match[str]) -> str:
    """Return a framework's name of a function."""
    name = match[1]
    return SPELLINGS[framework].get(name, f"{PREFIX[framework]}.{name}")


def limits(framework: str, match: re.Match[str]) -> str:
    """Return a framework's expression for the limits of the dtype of an array."""
    if framework == "tensorflow":
        return f"np.finfo({match[1]}.dtype.as_numpy_dtype)"
    return match[0]


def lines_of(code: str, framework: str) -> list[str]:
    """Return the lines of code; a line with a gradient becomes lines of the framework."""
    lines = []
    for line in code.splitlines():
        if found := GRAD.fullmatch(line):
            lines += GRADIENTS[framework](**found.groupdict())
        elif framework != "numpy" or "slope" not in line:
            lines.append(line)
    return lines


def gradient_by_function(
    library: str, out: str, f: str, args: str, xla: str | None = None
) -> list[str]:
    """Return the line that takes a gradient with ``grad`` of JAX or ``torch.func``."""
    del xla
    count = len(args.split(","))
    argnums = f", argnums={tuple(range(count))}" if count > 1 else ""
    return [f"{out} = {library}.grad(lambda {args}: {f}({args}).sum(){argnums})({args})"]


def gradient_by_tape(out: str, f: str, args: str, xla: str | None = None) -> list[str]:
    """Return the lines that take a gradient with a tape of TensorFlow, under XLA if need be."""
    group = f"({args})" if "," in args else args
    tape = [
        "with tf.GradientTape() as tape:",
        f"    tape.watch({group})",
        f"    total = tf.reduce_sum({f}({args}))",
    ]
    if xla is None:
        return [*tape, f"{out} = tape.gradient(total, {group})"]
    body = [*tape, f"return tape.gradient(total, {group})"]
    head = ["", "", "@tf.function(jit_compile=True)", f"def slope_of({args}):"]
    return [*head, *(f"    {line}" for line in body), "", "", f"{out} = slope_of({args})"]


GRADIENTS: dict[str, Callable[..., list[str]]] = {
    "numpy": lambda **_: [],
    "torch": partial(gradient_by_function, "torch.func"),
    "jax": partial(gradient_by_function, "jax"),
    "tensorflow": gradient_by_tape,
}


def imports_of(code: str) -> str:
    """Return the import statements that code needs."""
    used = [line for name, line in IMPORTS.items() if re.search(rf"(?<![\w.]){name}\.", code)]
    return "\n".join(used).replace(IMPORTS["math"] + "\nimport", IMPORTS["math"] + "\n\nimport")


def program(recipe: Recipe, framework: str) -> str:
    """Return a recipe as a program that runs by itself, its sentences as comments."""
    left_out = {AGREEMENT} | ({"The bug"} if framework == "numpy" else set())
    parts = [
        section_of_program(title, recipe.sections[title], framework)
        for title in SECTIONS
        if title not in left_out
    ]
    title = f"{recipe.name} for {TITLES[framework]}, without safeops. {LICENCE}"
    head = comment(f"{title}\n\n{recipe.summary}")
    body = "\n\n".join(parts)
    code = re.sub(r"^#.*", "", body, flags=re.MULTILINE)
    return f"{head}\n\n{imports_of(code)}\n\n{body}\n"


def module(names: Sequence[str], framework: str) -> str:
    """Return the functions of recipes alone as one module, without their bugs and proofs."""
    codes = (spell(read(name).sections["The recipe"].code, framework) for name in names)
    body = "\n\n\n".join(dict.fromkeys(part for code in codes for part in definitions(code)))
    head = comment(f"{', '.join(names)} for {TITLES[framework]}, from the recipes of safeops.")
    return f"{head}\n{comment(LICENCE)}\n\n{imports_of(body)}\n\n\n{body}\n"


def definitions(code: str) -> Iterator[str]:
    """Return the functions in code one by one, each with the comments above it."""
    lines, start = code.splitlines(), 0
    for node in ast.parse(code).body:
        yield "\n".join(lines[start : node.end_lineno]).strip("\n")
        start = node.end_lineno or start


def section_of_program(title: str, section: Section, framework: str) -> str:
    """Return a section as comments, then code."""
    text = comment(f"{title}\n\n{section.text}".strip())
    code = spell(section.code, framework)
    gap = "\n\n\n" if code.startswith(("def ", "@")) else "\n\n"
    return f"{text}{gap}{code}\n" if code else text


def comment(text: str) -> str:
    """Return sentences as comments of at most 88 characters."""
    wrap = partial(textwrap.fill, width=88, initial_indent="# ", subsequent_indent="# ")
    return "\n#\n".join(wrap(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))

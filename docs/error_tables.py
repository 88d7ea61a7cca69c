"""The tables of how exact derivatives are, made from what scripts in ``benchmarks`` measured."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).parent
TITLES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "scipy": "SciPy"}
SMOOTH = """## How exact they are

The tables have the worst error of value, gradient and Hessian over the points below, divided by the
largest entry; `python benchmarks/rotations.py` measured it, with {versions}.
The exact numbers come from textbook formulas in mpmath, with 220 digits.
The Hessian is that of a weighted sum of the result, times a vector.
PyTorch and TensorFlow run eagerly, JAX is compiled.
The tests demand errors below 1e-9 in float64 and below 1e-5 in float32 at each point."""
SPECTRAL = """## How exact they are

The tables have the worst error of the value and of both derivatives along a direction over the
matrices below, divided by the largest entry, or by 1 if that is more;
`python benchmarks/spectral.py` measured it, with {versions}.
The exact numbers are differences in mpmath, with 60 digits.
PyTorch and TensorFlow run eagerly, JAX is compiled.
For `polar` and `safe_svd` these matrices are multiplied by a rotation.
Eigenvectors and singular vectors depend on a choice.
Their rows are for a product of them that does not: the projector, or its like, on the vectors of
the largest values.
By design its second derivative is NaN where values are equal and the direction makes them differ.
SciPy has no derivatives: its columns have central differences of `sqrtm`, `logm` and `expm`."""
BESIDE = """
The rows in italics are what people write: {naive}.
NaN stands for a result that is not finite."""


def sections(
    names: Iterable[str], naive: str = "", text: str = SMOOTH, file: str = "rotations"
) -> list[str]:
    """Return the text, the table of the worst errors, and one table a function."""
    data = json.loads((HERE / f"{file}.json").read_text())
    frameworks = [name for name in TITLES if name in data["versions"]]
    versions = ", ".join(f"{TITLES[name]} {data['versions'][name]}" for name in frameworks)
    text = text.format(versions=versions) + (BESIDE.format(naive=naive) if naive else "")
    kinds = {"`{}`": data["table"]} | ({"*{}, naive*": data["naive"]} if naive else {})
    dtypes = data["table"]["torch"]
    names = [name for name in dtypes["float64"] if name.split()[0] in names]
    worst_of = (worst(kinds, frameworks, names, dtype) for dtype in dtypes)
    return [text, *worst_of, *(by_point(kinds, frameworks, name) for name in names)]


def head(first: str, frameworks: list[str]) -> str:
    """Return the head of a table: three columns a framework."""
    titles = ("value", "gradient", "Hessian")
    columns = [f"{TITLES[name]} {title}" for name in frameworks for title in titles]
    return f"| {first} | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}"


def cells(errors: Iterable[float]) -> str:
    """Return errors as cells."""
    texts = {0.0: "0", math.inf: "NaN"}
    return " | ".join(texts.get(error, f"{error:.0e}") for error in errors)


def of(table: dict, framework: str, dtype: str, name: str) -> dict:
    """Return the errors of a function by points; none where the framework has it not."""
    return table.get(framework, {}).get(dtype, {}).get(name, {})


def worst(kinds: dict, frameworks: list[str], names: list[str], dtype: str) -> str:
    """Return the worst errors of all functions."""
    lines = []
    for name in names:
        for kind, table in kinds.items():
            every = (of(table, framework, dtype, name).values() for framework in frameworks)
            rows = [cells(map(max, zip(*x, strict=True))) if x else " | | " for x in every]
            lines.append(f"| {kind.format(name)} | {' | '.join(rows)} |")
    return "\n".join([f"In {dtype}:", "", head("function", frameworks), *lines])


def by_point(kinds: dict, frameworks: list[str], name: str) -> str:
    """Return the errors of a function at each point, in float64."""
    lines = []
    for point in kinds["`{}`"]["torch"]["float64"][name]:
        for kind, table in kinds.items():
            every = (of(table, framework, "float64", name) for framework in frameworks)
            rows = [cells(x[point]) if x else " | | " for x in every]
            lines.append(f"| {kind.format(point)} | {' | '.join(rows)} |")
    body = "\n".join([head("point", frameworks), *lines])
    return f":::{{dropdown}} {name}, point by point, in float64\n{body}\n:::"

"""The table of how exact rotations are, made from what ``benchmarks/rotations.py`` measured."""

import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "benchmarks/rotations.json"
TITLES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
TEXT = """## How exact they are

The tables have the worst error of value, gradient and Hessian over the points below, divided by the
largest entry; `python benchmarks/rotations.py` measured it, with {versions}.
The exact numbers come from textbook formulas in mpmath, with 220 digits.
The Hessian of a weighted sum of the result is taken, times a vector. PyTorch and TensorFlow run
eagerly, JAX is compiled.
The tests demand errors below 1e-9 in float64 and below 1e-5 in float32 at each point."""


def sections() -> list[str]:
    """Return the text, the table of the worst errors, and one table a function."""
    data = json.loads(DATA.read_text())
    table = {name: data["table"][name] for name in TITLES if name in data["table"]}
    versions = ", ".join(f"{TITLES[name]} {data['versions'][name]}" for name in table)
    parts = [TEXT.format(versions=versions), *(worst(table, d) for d in ("float64", "float32"))]
    functions = list(next(iter(table.values()))["float64"])
    return [*parts, *(by_point(table, name) for name in functions)]


def head(first: str, table: dict) -> str:
    """Return the head of a table: three columns a framework."""
    kinds = ("value", "gradient", "Hessian")
    columns = [f"{TITLES[name]} {kind}" for name in table for kind in kinds]
    return f"| {first} | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}"


def cells(errors: list) -> str:
    """Return errors as cells."""
    return " | ".join("0" if error == 0 else f"{error:.0e}" for error in errors)


def worst(table: dict, dtype: str) -> str:
    """Return the worst errors of all functions."""
    lines = []
    for name in next(iter(table.values()))[dtype]:
        rows = [
            cells(map(max, zip(*data[dtype][name].values(), strict=True)))
            for data in table.values()
        ]
        lines.append(f"| `{name}` | {' | '.join(rows)} |")
    return "\n".join([f"In {dtype}:", "", head("function", table), *lines])


def by_point(table: dict, name: str) -> str:
    """Return the errors of a function at each point, in float64."""
    points = next(iter(table.values()))["float64"][name]
    lines = []
    for point in points:
        rows = [cells(data["float64"][name][point]) for data in table.values()]
        lines.append(f"| `{point}` | {' | '.join(rows)} |")
    body = "\n".join([head("point", table), *lines])
    return f":::{{dropdown}} {name}, point by point, in float64\n{body}\n:::"

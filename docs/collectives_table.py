"""The page of collectives, made from what the scripts of ``nox -s tests-devices`` counted."""

import json
from pathlib import Path

DATA = Path(__file__).parents[1] / "tests/devices/collectives.json"
ENGINES = {"JAX": "JAX 0.10.2", "DTensor": "PyTorch 2.13"}
BATCH = "slices in parts"
PAGE = """# Collectives

What an operation moves if its arrays are in parts, forward, and then for the gradient.
In brackets stands what people write in its place; a dash where that raises.
A row without brackets has no such formula.
A plain sum of DTensors stays pending, so that the next operation moves it.

The numbers count all-reduces, which move a row here, or a table of segments.
`g` is an all-gather, `s` a reduce-scatter, `a` an all-to-all, `p` a permutation: they move arrays.
`JAX` is the compiled program on eight devices ({JAX}), `DTensor` two ranks ({DTensor}).
`python tests/devices/operations_jax.py --write` counts, and so does `operations_torch.py`.
`nox -s tests-devices` holds each number to this table, checks value and gradient against one
device, and runs the same operations on dask, block by block and on a cluster of two processes.

The last column says where the result is: whole on each device, or in parts along an axis.
The gradient of an array has the parts of the array."""
SLICES = """## Slices in parts

Each slice, row, matrix or rotation is whole on one device: of DTensors {count} operations move
nothing, forward or for the gradient, and their results stay in parts.
An argument that is whole on each device has a gradient that is a sum over devices: JAX takes it at
once, DTensor leaves it pending, except in {others}."""


def page() -> str:
    """Return the page."""
    data = json.loads(DATA.read_text("utf-8"))
    tensors = data["DTensor"]
    still = [name for name, row in tensors.items() if is_still(row.get(BATCH))]
    others = [f"`{name}`" for name, row in tensors.items() if BATCH in row and name not in still]
    lines = ["## Along parts", "", "| operation | parts | JAX | DTensor | result |"]
    lines.append("|" + " --- |" * 5)
    for name, row in tensors.items():
        lines += [line(name, layout, data) for layout in row if layout != BATCH]
    slices = SLICES.format(count=len(still), others=", ".join(others))
    return "\n\n".join([PAGE.format(**ENGINES), "\n".join(lines), slices]) + "\n"


def is_still(cost: dict | None) -> bool:
    """Whether nothing moves."""
    return cost is not None and not cost["forward"] and not cost.get("gradient")


def line(name: str, layout: str, data: dict) -> str:
    """Return the line of an operation."""
    costs = [data[engine][name][layout] for engine in ENGINES]
    results = list(dict.fromkeys(cost["result"] for cost in costs))
    cells = [f"`{name}`", layout, *map(cell, costs), " / ".join(results)]
    return f"| {' | '.join(cells)} |"


def cell(cost: dict) -> str:
    """Return what an engine moves, forward and for the gradient."""
    plain = cost.get("plain")
    shown = []
    for key in ("forward", "gradient"):
        if key not in cost:
            continue
        text = number(cost[key])
        if plain is not None:
            known = isinstance(plain, dict) and key in plain
            text += f" ({number(plain[key]) if known else '–'})"  # noqa: RUF001  (a dash)
        shown.append(text)
    return ", ".join(shown)


LETTERS = {"gather": "g", "scatter": "s", "all_to": "a", "all-to": "a", "permute": "p"}


def number(counts: dict) -> str:
    """Return counts as a word."""
    parts = []
    for kind, n in counts.items():
        letter = next((x for word, x in LETTERS.items() if word in kind), "")
        parts.append(f"{n}{letter}")
    return " + ".join(parts) or "0"

"""The page of real models, made from the rows that ``nox -s real-models`` measured."""

import json
from pathlib import Path
from statistics import median

ROWS = Path(__file__).parents[1] / "tests/real_models/rows.json"
FRAMEWORKS = {
    "PyTorch": ("transformers", "timm", "geometric", "torch", "keras-torch"),
    "JAX": ("jax", "solvers", "keras-jax"),
    "TensorFlow": ("tfp", "keras-tensorflow"),
}
PAGE = """# Real models

`python -m nox -s real-models` runs masked autodiff on {count} small random models of real packages.
It asserts each entry below except the times, and wrote this page.
The session has two more: Levenberg-Marquardt of optimistix, and BacksolveAdjoint of diffrax.

A model reads a batch of rows: sequences, images, nodes of graphs, equations.
Rows do not depend on each other, and the loss leaves the last ones out.

**Equal.**
All rows are healthy, and the masked gradient equals the ordinary gradient, without a warning.
`bits` means equal bit for bit; a number is a rounding error by another order of sums.
With the last rows left out the two gradients are equal too, up to rounding.

**Cured.**
The rows left out are NaN.
The ordinary gradient is NaN; the masked gradient equals the gradient of the batch without these
rows.
{uncured}

**Undefined.**
Each row has passed through the square root of a 0.
Where a row is used, its derivative is infinite or NaN, and the same in both gradients.
Where a row is left out, its derivative is 0 in the masked gradient, except in the models that stay
NaN.

**Time.**
The time of one step, forward and backward, divided by the time of the ordinary step.
The first number is with healthy rows in the loss, the second with NaN in the rows left out.
Medians of {pairs} pairs that take turns, beside other work; a dash where none were measured.
The models are tiny: in PyTorch this is mostly overhead for each operation, less in larger ones.
JAX and TensorFlow are compiled."""

TIMES = ("time_healthy", "time_cured")


def page() -> str:
    """Return the page."""
    families = json.loads(ROWS.read_text())
    rows = [row for family in families.values() for row in family]
    stays = sorted({f"{row['warnings'][0]}: {row['stays']}" for row in rows if row["stays"]})
    listed = "\n".join(
        ["It stays NaN, with a warning that names the operation, for:", ""]
        + [f"- `{line.replace(': ', '`: ', 1)}" for line in stays]
    )
    head = PAGE.format(count=len(rows), pairs=15, uncured=listed if stays else "It is so in all.")
    tables = [section(title, families, names) for title, names in FRAMEWORKS.items()]
    return "\n\n".join([head, "## By package", summary(rows), *tables]) + "\n"


def summary(rows: list[dict]) -> str:
    """Return a row for each package."""
    packages = dict.fromkeys(f"{row['package']} {row['version']}" for row in rows)
    lines = ["| package | models | equal | cured | warnings | time, healthy | time, NaN rows |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for package in packages:
        mine = [row for row in rows if f"{row['package']} {row['version']}" == package]
        equal = sum(row["healthy"] <= row["tolerance"] for row in mine)
        cured = sum(is_cured(row) for row in mine)
        warned = sum(bool(row["warnings"]) for row in mine)
        timed = [row for row in mine if row["time_healthy"]] or [{}]
        times = [shown(median(row.get(key, 0) for row in timed)) for key in TIMES]
        cells = [package, len(mine), equal, cured, warned, *times]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def section(title: str, families: dict, names: tuple[str, ...]) -> str:
    """Return the table of a framework."""
    lines = ["| package | model | equal | cured | warnings | time, healthy | time, NaN rows |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [line_of(row) for name in names for row in families.get(name, [])]
    return f"## {title}\n\n" + "\n".join(lines) if len(lines) > 2 else ""  # noqa: PLR2004  (its head)


def line_of(row: dict) -> str:
    """Return the line of a model."""
    equal = "bits" if row["healthy"] == 0 else f"{row['healthy']:.0e}"
    cured = f"{row['cured']:.0e}" if is_cured(row) and row["cured"] else "bits"
    cells = [row["package"], row["model"], equal, cured if is_cured(row) else "no"]
    cells += [", ".join(f"`{name}`" for name in row["warnings"])]
    cells += [shown(row[key] or 0) for key in TIMES]
    return f"| {' | '.join(cells)} |"


def shown(time: float) -> str:
    """Return a ratio of times, or a dash where none was measured."""
    return f"{time:.2f}" if time else "–"  # noqa: RUF001  (a dash)


def is_cured(row: dict) -> bool:
    """Whether the gradient is that of the batch without the NaN rows."""
    return row["cured"] is not None and row["cured"] <= row["tolerance"]

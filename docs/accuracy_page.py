"""The page of accuracy, made from the numbers that ``nox -s accuracy`` measured."""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import matplotlib.style
from accuracy_rows import ABSENT

HERE = Path(__file__).parent
DATA = HERE / "accuracy.json"
STYLE = HERE / "notebooks/matplotlibrc"
TITLES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
DTYPES = ("float32", "float64", "float16", "bfloat16")
KINDS = ("value", "slope")
PAGE = """# Accuracy

This page says how far values and slopes are from the exact ones. {numbers} of them were checked.
The arguments have all exponents of a dtype, and lie densely next to singular points and zeros.
`python -m nox -s accuracy` measured the errors, with {versions}.

**How to read it.**
A cell has two errors, in units in the last place of the exact result: the error that 99 of 100
results do not exceed, then the worst error. 0.5 means the nearest number; ∞ means an infinite or
NaN result although the exact result is in range.
The smaller second line is for the framework's own function at the same numbers. A `*` marks a
function that is written out because the framework has none; in the column of NumPy it is the
function of NumPy or SciPy.
PyTorch and TensorFlow run eagerly, JAX compiled; slopes are taken in reverse mode.

**What is exact.**
The exact results are computed by formulas in extended precision, which the tests compare with
mpmath.
Fills and exact zeros are not counted, nor are results below 16 times the smallest normal number,
because JAX and TensorFlow flush intermediate results there.
For a function of slices the unit is the unit of the largest entry, or of the largest term of a sum.
It is that of the largest term for `safe_lgamma` and `safe_digamma` too, because their zeros below 0
are zeros of a sum, and for `safe_binary_cross_entropy` and `safe_focal_loss`.
`safe_lgamma`, `safe_digamma`, `log_ndtr`, `safe_ndtri` and `safe_erfinv` are measured at a few
hundred numbers, and `safe_gammainc` and `safe_gammaincc` at 1,200, because mpmath takes a
millisecond for each.
At a zero of an elementwise function, or of its slope, the unit shrinks with the result: one
rounding on the way is many units there, in the safe and in the plain function.

**Rows with a choice.**
`radial` is measured for `1 / (1 + r * r)`. `nanquantile` and `nanpercentile` select entries and
interpolate once, at 0.3125.
`safe_attention` has four queries and four keys; its unit is that of the largest term times the
largest logit, which is rounded.
Incomplete gamma functions have slopes for `x`, because PyTorch has none for `a`.
There is no row for {absent}.

**The pictures.**
They show the worst error in float32 against the size of the argument, or against the distance from
the singular point: the thin blue line is the safe function, the thick orange line the plain one.
At the upper edge no digit is right."""
WORSE = """## What is worse than the plain function

In {count} of {all} cells the worst error of the safe function is more than twice the worst error of
the plain function, and more than 4 units:

{listed}

NumPy's `safe_gammainc` and `safe_gammaincc` are SciPy's below `a = 200`, in the dtype of the
arguments. Next to the pole of `inv_boxcox`, where ``1 + lmbda * y`` is near 0, the rounding of
``lmbda * y`` is many units of the result, in the safe and in the plain function.

With smaller differences, PyTorch's variance and SciPy's `xlogy` and `xlog1py` compute float32 in
float64: their error is half a unit to one and a half, and the error of the safe functions is 2 to 4
units.

Both the safe and the plain functions lose digits in two places. TensorFlow's reciprocal has 12
right bits of float32 above 1e34, and so have the slopes of logarithms. On JAX and TensorFlow, a
power with an exponent p has a slope of 0 below p times the smallest normal number."""


def write(folder: Path, families: dict[str, str]) -> str:
    """Return the page, for functions by their families, and write its pictures."""
    data = json.loads(DATA.read_text())
    table = data["table"]
    versions = ", ".join(f"{name} {number}" for name, number in data["versions"].items())
    numbers = sum(row[kind]["ours"][0] for row in rows_of(table) for kind in KINDS if kind in row)
    absent = "; ".join(
        f"{', '.join(f'`{name}`' for name in names)}, {why}" for names, why in ABSENT.items()
    )
    head = PAGE.format(numbers=f"{numbers / 1e6:.1f} million", versions=versions, absent=absent)
    parts = [head, worse(table)]
    (folder / "accuracy").mkdir(parents=True, exist_ok=True)
    for title in dict.fromkeys(families.values()):
        names = [name for name in table["torch"]["float32"] if families.get(name) == title]
        if names:
            file = f"accuracy/{title.split()[0].lower().strip(',')}-{len(names)}.png"
            picture(table, names, folder / file)
            parts += [f"## {title}", f"![Errors over the argument: {title}]({file})"]
            parts.append(tabs(table, names))
    return "\n\n".join(parts) + "\n"


def rows_of(table: dict) -> list[dict]:
    """Return all rows."""
    return [row for dtypes in table.values() for rows in dtypes.values() for row in rows.values()]


def tabs(table: dict, names: list[str]) -> str:
    """Return the tables of a family, one for each dtype."""
    items = []
    for dtype in DTYPES:
        here = [fw for fw in TITLES if dtype in table[fw]]
        columns = [(fw, kind) for fw in here for kind in KINDS if (fw, kind) != ("numpy", "slope")]
        head = " | ".join(f"{TITLES[fw]} {kind}" for fw, kind in columns)
        lines = [f"| function | {head} |", "|" + " --- |" * (len(columns) + 1)]
        for name in names:
            cells = (cell(table[fw][dtype][name], kind) for fw, kind in columns)
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
        body = "\n".join([":::{table}", ":class: accuracy", "", *lines, ":::"])
        items.append(f"::::{{tab-item}} {dtype}\n:sync: {dtype}\n\n{body}\n::::")
    return ":::::{tab-set}\n:sync-group: dtype\n\n" + "\n\n".join(items) + "\n:::::"


def cell(row: dict, kind: str) -> str:
    """Return ours over the plain one."""
    errors = row.get(kind, {})
    lines = [" · ".join(map(shown, errors["ours"][2:]))] if "ours" in errors else ["–"]  # noqa: RUF001  (a dash)
    if "plain" in errors:
        plain = " · ".join(map(shown, errors["plain"][2:]))
        lines.append(f"<small>{plain}{'' if row['own'] else ' *'}</small>")
    return "<br>".join(lines)


def shown(error: float | None) -> str:
    """Return an error in few letters."""
    if error is None:
        return "∞"
    if error >= 1e4:  # noqa: PLR2004  (what has more than four digits)
        return f"{error:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{error:.1f}" if error < 10 else f"{error:.0f}"  # noqa: PLR2004  (two digits)


def is_worse(errors: dict) -> bool:
    """Whether our worst error is a different one from the plain one's."""
    if not {"ours", "plain"} <= errors.keys():
        return False
    ours, plain = (math.inf if x is None else x for x in (errors["ours"][3], errors["plain"][3]))
    return ours > max(4, 2 * plain)


def worse(table: dict) -> str:
    """Return the list of what is worse, with reasons; without one the page is not made."""
    found: dict[tuple[str, str], list[str]] = {}
    count = 0
    for framework, dtypes in table.items():
        for dtype, rows in dtypes.items():
            for name, row in rows.items():
                for kind in KINDS:
                    errors = row.get(kind, {})
                    count += "plain" in errors
                    if is_worse(errors):
                        ours, plain = (shown(errors[who][3]) for who in ("ours", "plain"))
                        said = f"{TITLES[framework]} {dtype} {ours} ({plain})"
                        found.setdefault((name, kind), []).append(said)
    listed = "\n".join(
        f"- `{name}`, {kind}: {REASONS[name, kind]}\n  {', '.join(cases)}."
        for (name, kind), cases in found.items()
    )
    number = sum(map(len, found.values()))
    return WORSE.format(count=number, all=count, listed=listed)


def picture(table: dict, names: list[str], file: Path) -> None:
    """Draw the worst errors over an argument: a row a function, values, then slopes."""
    columns = [("numpy", "value"), *((fw, "slope") for fw in TITLES if fw != "numpy")]
    with matplotlib.style.context(STYLE):
        size = (9, 1.15 * len(names) + 0.4)
        figure, axes = plt.subplots(len(names), 4, figsize=size, sharey=True, squeeze=False)
        for line, name in zip(axes, names, strict=True):
            for panel, (framework, kind) in zip(line, columns, strict=True):
                draw(panel, table[framework]["float32"][name].get(f"{kind} curve", {}))
            line[0].set_ylabel(name.removeprefix("safe_"), fontsize=8)
        for panel, (framework, kind) in zip(axes[0], columns, strict=True):
            panel.set_title(f"{kind}, {TITLES[framework]}", fontsize=9)
        figure.savefig(file)
        plt.close(figure)


def draw(panel: plt.Axes, curves: dict) -> None:
    """Draw the curves of ours and of the plain one."""
    for who, colour, width in (("plain", "C1", 2.2), ("ours", "C0", 1.2)):
        if who not in curves:
            continue
        low, high, *errors = curves[who]
        places = [2.0 ** (low + (i + 0.5) * (high - low) / len(errors)) for i in range(len(errors))]
        known = [(x, e) for x, e in zip(places, errors, strict=True) if e != -1]
        drawn = [TOP if e is None else min(max(e, 0.25), TOP) for _, e in known]
        panel.plot([x for x, _ in known], drawn, color=colour, linewidth=width)
    panel.set(xscale="log", yscale="log", ylim=(0.2, 2 * TOP))
    panel.set_yticks([1, 1e3, 1e6], ["1", "1e3", "1e6"])
    panel.tick_params(labelsize=6)
    panel.minorticks_off()


TOP = 2.0**24  # no digit of float32 is right
IN_FLOAT64 = "SciPy computes float32 in float64."
OF_SCIPY = ("log_ndtr", "boxcox", "inv_boxcox", "exprel", "safe_gammainc", "safe_gammaincc")
REASONS = {(name, "value"): IN_FLOAT64 for name in OF_SCIPY} | {
    ("entr", "value"): "SciPy computes float32 in float64, and NumPy's own logarithm has 4 units.",
    ("safe_correlation", "value"): "Each of the two directions is scaled, which rounds once more.",
}

"""
Whether the bars hold: ``python benchmarks/bars.py FILE [BEFORE]``, with files of ``ops.py --json``.

A bar is the largest ratio of times that an operation may have. Prints a Markdown table of the bars
and of the measured ratios, largest first; ratios above the bar are bold. The second file is that of
an earlier version, whose ratios stand in brackets.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

CHEAP = ("safe_div", "safe_log", "safe_sqrt", "safe_exp", "safe_norm")
ELEMENTWISE = ("safe_div", "safe_log", "safe_sqrt")
FEW, MANY = 10, 10**6


class Bar(NamedTuple):
    """What is compared, and the most that it may be."""

    words: str
    most: float
    framework: str
    modes: tuple[str, ...]
    size: int = MANY
    over: str = "plain"  # "double" for the double where, or the name of a peer
    gradient: bool = True
    operations: tuple[str, ...] = ()  # all


SIMPLE = ("safe_div", "safe_log", "safe_sqrt", "safe_exp", "xlogy", "safe_softmax", "nanmax")
UNDER_XLA = (
    (1.05, (*SIMPLE, "nansum", "nanmean", "nanstd")),
    (1.5, ("safe_norm",)),
    (1.2, ("safe_pow",)),
)
COMPILED = (
    ("JAX under `jit`, over the unsafe operation", "jax", "jit", UNDER_XLA),
    ("TensorFlow under XLA, over the unsafe operation", "tensorflow", "xla", UNDER_XLA),
    (
        "PyTorch compiled, over the unsafe operation",
        "torch",
        "compile",
        (
            (1.25, ("safe_div", "safe_log", "safe_sqrt", "safe_exp", "xlogy", "nanmax")),
            (4.0, ("nansum", "nanmean")),
            (5.0, ("nanstd",)),
            (1.0, ("safe_norm",)),
            (1.3, ("safe_softmax",)),
            (2.0, ("safe_pow",)),
        ),
    ),
)


BARS = (
    *(
        Bar("the same" if i else name, most, framework, (mode,), operations=operations)
        for name, framework, mode, groups in COMPILED
        for i, (most, operations) in enumerate(groups)
    ),
    Bar(
        "JAX under `jit`, over `jnp.nanstd`",
        1.0,
        "jax",
        ("jit",),
        MANY,
        "jnp.nanstd",
        operations=("nanstd",),
    ),
    Bar(
        "PyTorch eager, over the unsafe operation",
        1.5,
        "torch",
        ("eager",),
        operations=CHEAP,
    ),
    Bar("the same", 2.0, "torch", ("eager",), operations=("safe_pow",)),
    Bar("PyTorch eager, over the double where", 1.0, "torch", ("eager",), over="double"),
    Bar(
        "PyTorch eager, over its own masked softmax",
        0.8,
        "torch",
        ("eager",),
        over="torch._safe_softmax",
        operations=("safe_softmax",),
    ),
    Bar(
        "NumPy, over the unsafe operation",
        3.3,
        "numpy",
        ("eager",),
        gradient=False,
        operations=("safe_div",),
    ),
    Bar(
        "the same",
        2.0,
        "numpy",
        ("eager",),
        gradient=False,
        operations=("safe_log", "safe_sqrt"),
    ),
    *(
        Bar(
            f"NumPy, {size:,} entries, over the double where",
            1.0,
            "numpy",
            ("eager",),
            size,
            "double",
            gradient=False,
            operations=ELEMENTWISE,
        )
        for size in (MANY, 10**4, FEW)
    ),
    *(
        Bar(
            f"{name} eager, 10 entries, forward, over the double where",
            most,
            {"PyTorch": "torch"}.get(name, name.lower()),
            ("eager",),
            FEW,
            "double",
            gradient=False,
        )
        for name, most in (("PyTorch", 1.5), ("TensorFlow", 2.0), ("JAX", 1.0))
    ),
)


def of(bar, found):
    """Return the ratios that a bar is about, by operation."""
    ratios = {}
    for row in found:
        place = (row["framework"], row["size"], row["gradient"])
        if place != (bar.framework, bar.size, bar.gradient) or row["mode"] not in bar.modes:
            continue
        if row["bad"] not in (0.01, 0.5 if bar.size == FEW else 0.01):
            continue
        if bar.operations and row["operation"] not in bar.operations:
            continue
        ratio = row[bar.over] if bar.over in ("plain", "double") else row["peer"][1]
        ratios[row["operation"]] = ratio[0]
    return dict(sorted(ratios.items(), key=lambda pair: -pair[1]))


def imports():
    """Return the time that `import safeops` takes over that of `import numpy`, both compiled."""

    def seconds(name, env):
        start = time.perf_counter()
        call = [sys.executable, "-P", "-c", f"import {name}"]  # what is installed
        subprocess.run(call, check=True, env=env)  # noqa: S603  (ours)
        return time.perf_counter() - start

    with TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        seconds("safeops", env)  # which writes the bytecode
        return median(seconds("safeops", env) / seconds("numpy", env) for _ in range(21))


def cell(name, ratio, most, before):
    """Return a ratio with its operation, bold if it is above the bar; an earlier one behind it."""
    words = f"`{name}` {ratio:.2f}"
    words = f"**{words}**" if round(ratio, 2) > most else words
    return words if before is None else f"{words} ({before:.2f})"


def lines(found, before=()):
    """Return the table."""
    yield "| bar | at most | measured |"
    yield "| --- | --- | --- |"
    for bar in BARS:
        ratios, earlier = of(bar, found), of(bar, before)
        if ratios:
            cells = (cell(name, x, bar.most, earlier.get(name)) for name, x in ratios.items())
            yield f"| {bar.words} | {bar.most} | {', '.join(cells)} |"
    yield f"| `import safeops`, over `import numpy` | 1.1 | {imports():.2f} |"


if __name__ == "__main__":
    print("\n".join(lines(*(json.loads(Path(name).read_text()) for name in sys.argv[1:3]))))

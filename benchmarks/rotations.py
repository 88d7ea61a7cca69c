"""
How exact smooth functions are: ``python benchmarks/rotations.py --out docs/rotations.json``.

For each function, framework and dtype, and at each point of `rotations.py` in `tests/specs` and
`removable.py` in `tests/support`: the error of the value, of the gradient and of the Hessian
(forward over reverse mode, times a vector), as a part of the largest entry. The exact numbers are
textbook formulas in mpmath, with 220 digits. JAX is compiled, PyTorch and TensorFlow run eagerly.
The functions of `removable.py` are measured beside what people write.

`--framework` and `--function` select; a file that exists keeps the rest.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / folder) for folder in ("tests", "tests/support")]

import numpy as np  # noqa: E402  (after the path)
import records  # noqa: E402  (after the path)

import removable  # noqa: E402  (after the path)
import turning  # noqa: E402  (after the path)
from specs import rotations  # noqa: E402  (after the path)
from turned import errors, found  # noqa: E402  (after the path)

MODES = {"torch": "func", "jax": "jit", "tensorflow": "eager"}
ROWS = (*rotations.SPECS, *removable.ROWS)
ORDERS = ("value", "reverse", "fwd-rev")
LEFT_OUT = ("forward", "rev-rev", "rev-fwd", "fwd-fwd")


def label(number: int, point: tuple) -> str:
    """Return the number of a point, as two may look alike, and the point in a few digits."""
    texts = (np.array2string(x, precision=3, separator=" ", threshold=99) for x in point)
    return f"{number}: {', '.join(' '.join(text.split()) for text in texts)}"


def measured(row: turning.Row, framework: str, dtype: str) -> dict:
    """Return the errors of a function: a row of three for each point."""
    skipped = {(framework, MODES[framework]): (LEFT_OUT, "not in the table")}
    parts = errors(row, found(row, framework, MODES[framework], dtype, skipped), dtype)
    worst = (f"{parts[order].max():.0e}" for order in ORDERS)
    print(f"{framework:11}{dtype:9}{row.name:32}", *worst, flush=True)
    points = [label(k, point) for k, point in enumerate(row.points_in(dtype), 1)]
    return dict(zip(points, np.stack([parts[order] for order in ORDERS], 1).tolist(), strict=True))


def measure(data: dict, framework: str, rows: list) -> None:
    """Put the errors of functions into a table, and those of what people write into another."""
    data["versions"][framework] = import_module(framework).__version__.split("+")[0]
    for row in rows:
        for dtype in ("float64", "float32"):
            kinds = {"table": row}
            if row in removable.ROWS:
                kinds["naive"] = replace(row, op=row.naive)
            for kind, one in kinds.items():
                table = data.setdefault(kind, {}).setdefault(framework, {}).setdefault(dtype, {})
                table[row.name] = measured(one, framework, dtype)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", nargs="*", default=list(MODES), choices=MODES)
    names = [row.name for row in ROWS]
    parser.add_argument("--function", nargs="*", default=names, choices=names)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data = {"versions": {}}
    if given.out and given.out.exists():
        data = json.loads(given.out.read_text())
    if "jax" in given.framework:
        import jax

        jax.config.update("jax_enable_x64", True)  # noqa: FBT003  (its name and its value)
    for framework in given.framework:
        measure(data, framework, [row for row in ROWS if row.name in given.function])
    if given.out:
        records.write(given.out, data, 5)


if __name__ == "__main__":
    main()

"""
What masked autodiff does to one real model, as a row of a table.

A model is a function of a batch in which rows do not depend on each other. The rows after the first
`kept` are left out of the loss. Five facts are measured, each beside the ordinary gradient:

healthy   nothing is left out: the masked gradient is the ordinary one
left out  the rows left out are healthy: the same
cured     the rows left out are NaN: the gradient is that of the batch without them
used      a used row has passed a singularity: what is undefined stays so, and that alone
hidden    a used row is NaN: if the loss is, a gradient that is finite throughout hides it
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from statistics import median
from typing import Any, NamedTuple

import numpy as np

PAIRS = 15  # timings of each step, which take turns
MEASURED = {}


@dataclass(frozen=True)
class Program:
    """A model on a batch."""

    outputs: Callable[[Any, Any], Any]  # of parameters and rows to an output for each row
    x: np.ndarray  # healthy rows
    parameters: Any = ()
    kept: int = 2
    kept_outputs: int | None = None  # where outputs are not rows, such as graphs of nodes
    bad: float = np.nan  # what the rows left out are filled with
    tolerance: float = 1e-9  # in units of the largest entry: other sizes of a batch sum otherwise


@dataclass(frozen=True)
class Case:
    """A model of a package."""

    package: str
    name: str
    build: Callable[[], Program] = field(repr=False)
    stays: "Stays | None" = None
    untouched: str = ""  # why a row of NaN comes out as it is, with a slope that is finite

    def __str__(self):
        """Return the name, for the test's identifier."""
        return f"{self.package}-{self.name}".replace(" ", "_")


class Stays(NamedTuple):
    """Why a model stays NaN: the operation that is warned of, and the reason."""

    operation: str
    reason: str


class Step(NamedTuple):
    """What a gradient is taken at."""

    x: np.ndarray
    t: np.ndarray  # the rows are x + sqrt(t) * direction + 0 * sqrt(s)
    s: np.ndarray
    kept: int
    kept_outputs: int


@dataclass
class Row:
    """What came out for a model."""

    package: str
    version: str
    model: str
    healthy: float  # distance from the ordinary gradient; 0 is bit for bit
    healthy_warnings: list[str]
    left_out: float
    naive_is_nan: bool
    cured: float  # distance from the gradient without the rows; NaN if it stays NaN
    finite_and_wrong: bool
    used: bool  # whether the singularity of a used row is as undefined as ordinary
    unused: bool  # whether that of a row left out is 0
    hidden: bool  # whether a loss of NaN has a gradient that is finite, and not the ordinary one
    warnings: list[str]
    tolerance: float
    stays: str = ""  # why, if it stays NaN
    time_healthy: float | None = None
    time_cured: float | None = None


def weights_of(shape):
    """Return different weights for all outputs, so that no symmetry hides a wrong gradient."""
    return np.cos(1.0 + np.arange(np.prod(shape, dtype=int))).reshape(shape)


def direction_of(shape):
    """Return a positive direction for each row; layer norms do not see a constant one."""
    return 1.5 + weights_of(shape[1:])


def steps_of(program):
    """Return the steps at which a program is measured, by name."""
    x, kept = program.x, program.kept
    outs = kept if program.kept_outputs is None else program.kept_outputs
    bad = x.copy()
    bad[kept:] = program.bad
    one, zero = np.ones(len(x), x.dtype), np.zeros(len(x), x.dtype)
    return {
        "healthy": Step(x, one, one, len(x), -1),
        "left out": Step(x, one, one, kept, outs),
        "bad": Step(bad, one, one, kept, outs),
        "bad used": Step(bad, one, one, len(x), -1),
        "without": Step(x[:kept], one[:kept], one[:kept], kept, -1),
        "used": Step(x, zero, zero, kept, outs),
    }


def distance(found, expected):
    """Return the largest difference in units of the largest entry; NaN where only one is NaN."""
    scale = max(np.abs(e).max(initial=0) for e in expected)
    worst = 0.0
    for f, e in zip(found, expected, strict=True):
        unit = np.abs(e).max(initial=0) + 1e-3 * scale  # a gradient that is 0 but for rounding
        if f.shape != e.shape:
            msg = f"expected a gradient of shape {e.shape}, got {f.shape}"
            raise AssertionError(msg)
        worst = np.maximum(worst, (np.abs(f - e) / (unit or 1.0)).max(initial=0))  # keeps NaN
    return float(worst)


def is_wrong(found, expected, tolerance):
    """Whether an entry is finite and is not the expected one."""
    masked = [np.where(np.isfinite(f), f, e) for f, e in zip(found, expected, strict=True)]
    return not distance(masked, expected) <= tolerance


def padded(gradients, step):
    """Return the gradients without the rows in the shapes of those with them."""
    *parameters, x, t, s = gradients
    missing = len(step.x) - len(x)
    rows = [np.pad(g, [(0, missing)] + [(0, 0)] * (g.ndim - 1)) for g in (x, t, s)]
    return [*parameters, *rows]


def stays_undefined(found, ordinary, kept):
    """Whether gradients of the singular parameters are the ordinary, undefined ones where used."""
    used = [(f[:kept], o[:kept]) for f, o in zip(found[-2:], ordinary[-2:], strict=True)]
    return all(np.array_equal(f, o, equal_nan=True) and not np.isfinite(o).any() for f, o in used)


def is_hidden(found, ordinary):
    """Whether gradients are finite throughout, and the ordinary ones are not."""
    finite, as_ordinary = (all(np.isfinite(g).all() for g in gs) for gs in (found, ordinary))
    return finite and not as_ordinary


def is_zero(found, kept):
    """Whether gradients of the singular parameters are 0 where not used."""
    return not any(f[kept:].any() for f in found[-2:])


def measure(case, engine, *, timed):
    """Return the row of a case, on the engine of its framework."""
    program = case.build()
    run = engine(program)
    steps = steps_of(program)
    at = {name: run.ordinary(step)[0] for name, step in steps.items()}
    ours = {name: run.masked(step) for name, step in steps.items() if name != "without"}
    expected = padded(at["without"], steps["bad"])
    cured, _ = ours["bad"]
    row = Row(
        package=case.package,
        version=version(case.package).split("+")[0],
        model=case.name,
        healthy=distance(ours["healthy"][0], at["healthy"]),
        healthy_warnings=ours["healthy"][1],
        left_out=distance(ours["left out"][0], at["left out"]),
        naive_is_nan=any(np.isnan(g).any() for g in at["bad"]),
        cured=distance(cured, expected),
        finite_and_wrong=is_wrong(cured, expected, program.tolerance),
        used=stays_undefined(ours["used"][0], at["used"], program.kept),
        unused=is_zero(ours["used"][0], program.kept),
        hidden=math.isnan(run.value(steps["bad used"]))
        and is_hidden(ours["bad used"][0], at["bad used"]),
        warnings=sorted({*ours["left out"][1], *ours["bad"][1], *ours["used"][1]}),
        tolerance=program.tolerance,
        stays=case.stays.reason if case.stays else "",
    )
    if timed:
        row.time_healthy = round(ratio_of(run, steps["healthy"]), 2)
        row.time_cured = round(ratio_of(run, steps["bad"]), 2)
    return row


def ratio_of(run, step):
    """Return the median ratio of masked to ordinary steps, which take turns by chance."""
    shuffle = random.Random(0).shuffle  # noqa: S311  (no secret)
    ratios, order = [], [run.ordinary, run.masked]
    for _ in range(PAIRS):
        shuffle(order)
        spent = {f.__name__: seconds(f, step) for f in order}
        ratios.append(spent["masked"] / spent["ordinary"])
    return median(ratios)


def seconds(f, step):
    """Return the time of a call, that of the processor: others may be at work on the machine."""
    start = time.process_time()
    f(step)
    return time.process_time() - start


def measured(case, engine, *, timed):
    """Return the row of a case, measured once for all its tests; what it raised is raised again."""
    if case not in MEASURED:
        try:
            MEASURED[case] = measure(case, engine, timed=timed)
        except Exception as error:  # noqa: BLE001  (whatever it is)
            MEASURED[case] = error
    if isinstance(MEASURED[case], Exception):
        raise MEASURED[case]
    return MEASURED[case]


def rows():
    """Return the rows measured so far."""
    return [row for row in MEASURED.values() if isinstance(row, Row)]


def written(row):
    """Return a row as JSON has it, which has no NaN."""
    return asdict(row) | {"cured": None if np.isnan(row.cured) else row.cured}

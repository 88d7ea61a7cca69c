"""The demonstration: reported bugs, naive beside safe, run live on every framework installed."""

import inspect
import json
import math
import os
import sys
import textwrap
from argparse import Namespace as Options
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import safeops
from safeops import entr, safe_atan2, safe_div, safe_softmax, safe_where
from safeops._backends import FRAMEWORKS, load
from safeops._backends.array_api import ArrayAPI
from safeops._core.errors import INSTALL
from safeops._core.types import Array, Function, Namespace

HAS_RICH = False
with suppress(ImportError):  # an extra; --json works without it
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    HAS_RICH = True

WITH_GRADIENT = tuple(name for name in FRAMEWORKS if name != "numpy")

# float32 is the default of all three. Its eps is 1.2e-7; accelerators lose a few bits in exp and
# log.
RTOL, ATOL = 1e-5, 1e-6

NEEDS_RICH = f"the tables need rich: {INSTALL.format('demo')}; --json works without it"
GOOD, BAD, DIM = "green", "bold red", "dim"


# The bugs. Each function is written once for all frameworks, and is printed as it stands here.


class Case(NamedTuple):
    """A reported bug: one function, naive and safe, and the value and gradient of mathematics."""

    name: str
    title: str
    source: str
    inputs: dict[str, Any]  # the gradient is that of the sum of the value, for the first of them
    naive: Function
    safe: Function
    value: Any
    gradient: Any
    spared: Mapping[str, str] = MappingProxyType({})  # why naive is right on a framework


def _naive_reciprocal(xp: Namespace, x: Array) -> Array:
    return xp.where(x < 1, 0.0, 1 / x)


def _safe_reciprocal(xp: Namespace, x: Array) -> Array:
    return safe_where(x < 1, x, xp.zeros_like, lambda x: 1 / x)


def _naive_entropy(xp: Namespace, p: Array) -> Array:
    return xp.sum(xp.where(p > 0, -p * xp.log(p), 0.0))


def _safe_entropy(xp: Namespace, p: Array) -> Array:
    return xp.sum(entr(p))


def _naive_angle(xp: Namespace, x: Array) -> Array:
    return xp.where(x == 0, 0.0, xp.atan2(x, x))


def _safe_angle(_xp: Namespace, x: Array) -> Array:
    return safe_atan2(x, x)


def _naive_overflow(xp: Namespace, x: Array) -> Array:
    return xp.where(x < 0, xp.exp(x), 1.0)


def _safe_overflow(xp: Namespace, x: Array) -> Array:
    return safe_where(x < 0, x, xp.exp, fill_value=1.0)


def _naive_nansum(xp: Namespace, b: Array, a: Array) -> Array:
    return xp.sum(xp.where(xp.isnan(a * b), 0.0, a * b))


def _safe_nansum(xp: Namespace, b: Array, a: Array) -> Array:
    known = xp.logical_not(xp.isnan(a))
    return xp.sum(safe_where(known, (a, b), xp.multiply, fill_value=0.0))


def _naive_division(xp: Namespace, a: Array, d: Array) -> Array:
    return xp.where(d != 0, a / d, 1.0)


def _safe_division(_xp: Namespace, a: Array, d: Array) -> Array:
    return safe_div(a, d, fill_value=1.0)


def _naive_index(_xp: Namespace, x: Array, d: Array) -> Array:
    return (x / d)[d != 0]


def _safe_index(_xp: Namespace, x: Array, d: Array) -> Array:
    return safe_div(x, d)[d != 0]


def _naive_softmax(xp: Namespace, x: Array) -> Array:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return (e / xp.sum(e, axis=-1, keepdims=True))[..., 0]


def _safe_softmax(_xp: Namespace, x: Array) -> Array:
    return safe_softmax(x)[..., 0]


ENTROPY_INPUT = [0.1, 0.2, 0.0, 0.7]

CASES = (
    Case(
        name="reciprocal",
        title="1 / x, which where leaves out below 1",
        source="TensorFlow Probability, note on where",
        inputs={"x": [0.0, 2.0]},
        naive=_naive_reciprocal,
        safe=_safe_reciprocal,
        value=[0.0, 1 / 2],
        gradient=[0.0, -1 / 4],
    ),
    Case(
        name="entropy",
        title="The entropy of a distribution with a zero",
        source="TensorFlow Probability, note on where",
        inputs={"p": ENTROPY_INPUT},
        naive=_naive_entropy,
        safe=_safe_entropy,
        value=sum(-p * math.log(p) for p in ENTROPY_INPUT if p),
        gradient=[-math.log(p) - 1 if p else 0.0 for p in ENTROPY_INPUT],
    ),
    Case(
        name="angle",
        title="The angle of the origin, which where leaves out",
        source="jax issue 1052",
        inputs={"x": [3.0, 0.0, -5.0]},
        naive=_naive_angle,
        safe=_safe_angle,
        value=[math.pi / 4, 0.0, -3 * math.pi / 4],
        gradient=[0.0, 0.0, 0.0],  # along y = x the angle does not change
        spared={"torch": "PyTorch 2.13 sets it to 0 at the origin"},
    ),
    Case(
        name="overflow",
        title="An exponential that overflows where it is not used",
        source="pytorch issue 10729",
        inputs={"x": [-1.0, 0.0, 100.0]},
        naive=_naive_overflow,
        safe=_safe_overflow,
        value=[math.exp(-1), 1.0, 1.0],
        gradient=[math.exp(-1), 0.0, 0.0],
    ),
    Case(
        name="division",
        title="A division by zero, which where leaves out",
        source="pytorch issue 52248",
        inputs={"a": 1.0, "d": 0.0},
        naive=_naive_division,
        safe=_safe_division,
        value=1.0,
        gradient=0.0,
    ),
    Case(
        name="nansum",
        title="A sum that skips NaN, of products with a parameter b",
        source="pytorch issue 67180",
        inputs={"b": 1.0, "a": [1.0, 2.0, math.nan]},
        naive=_naive_nansum,
        safe=_safe_nansum,
        value=1.0 + 2.0,
        gradient=1.0 + 2.0,
    ),
    Case(
        name="index",
        title="A quotient that a boolean index leaves out",
        source="pytorch issue 4132",
        inputs={"x": [1.0, 1.0], "d": [0.0, 1.0]},
        naive=_naive_index,
        safe=_safe_index,
        value=[1.0],
        gradient=[0.0, 1.0],
    ),
    Case(
        name="softmax",
        title="The softmax of a row in which everything is masked",
        source="pytorch issue 55056",
        inputs={"x": [[0.0, 0.0], [-math.inf, -math.inf]]},
        naive=_naive_softmax,
        safe=_safe_softmax,
        value=[1 / 2, 0.0],
        gradient=[[1 / 4, -1 / 4], [0.0, 0.0]],  # s (1 - s) and -s (1 - s)
    ),
)


# Running them


class Outcome(NamedTuple):
    """The result of one function: numbers in nested lists; no gradient on NumPy."""

    value: Any
    gradient: Any


class Result(NamedTuple):
    """One bug on one framework."""

    case: Case
    framework: str
    naive: Outcome
    safe: Outcome

    @property
    def naive_gradient_is_right(self) -> bool:
        """Whether the naive function has a gradient, and the right one."""
        gradient = self.naive.gradient
        return gradient is not None and agree(gradient, self.case.gradient)

    @property
    def ok(self) -> bool:
        """Whether the safe function has the right value and gradient."""
        value, gradient = self.safe
        right = agree(value, self.case.value)
        return right and (gradient is None or agree(gradient, self.case.gradient))


def agree(found: Any, wanted: Any) -> bool:
    """Whether two nested lists have one shape and the same numbers, within float32."""
    same_shape = np.shape(found) == np.shape(wanted)
    return same_shape and np.allclose(found, wanted, rtol=RTOL, atol=ATOL)


def run_case(case: Case, framework: str, backend: ArrayAPI) -> Result:
    """Run one bug on one framework."""
    with_gradient = framework in WITH_GRADIENT
    with backend.quiet():  # naive code warns on NumPy; safe code must not
        naive = run_function(case.naive, case, backend, with_gradient=with_gradient)
    safe = run_function(case.safe, case, backend, with_gradient=with_gradient)
    return Result(case, framework, naive, safe)


def run_function(f: Function, case: Case, backend: ArrayAPI, *, with_gradient: bool) -> Outcome:
    """Return the value of a function, and the gradient of its sum for the first input."""
    xp = backend.xp
    first, *others = (xp.asarray(x, dtype=xp.float32) for x in case.inputs.values())
    value = np.asarray(f(xp, first, *others)).tolist()
    if not with_gradient:
        return Outcome(value, None)
    gradient = backend.grad(lambda x: xp.sum(f(xp, x, *others)))(first)[0]
    return Outcome(value, np.asarray(gradient).tolist())


def installed() -> list[str]:
    return [name for name in FRAMEWORKS if find_spec(name)]


def import_frameworks(names: Sequence[str]) -> tuple[dict[str, ArrayAPI], dict[str, str]]:
    """Return the backends, and the errors of frameworks that do not import."""
    backends, broken = {}, {}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in names:
        try:
            with silent_stderr():
                backends[name] = load(name)
        except Exception as error:  # noqa: BLE001  (whatever it is, the others go on)
            broken[name] = f"{type(error).__name__}: {error}"
    return backends, broken


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Drop what C++ code prints: TensorFlow 2.21 greets at every TF_CPP_MIN_LOG_LEVEL."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  (no path: a device)
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def version_of(framework: str) -> str:
    return str(import_module(framework).__version__)


def demonstrate(options: Options) -> int:
    """Run all bugs and print them; return 1 if a safe result is wrong or an import failed."""
    if not (options.json or HAS_RICH):
        print(NEEDS_RICH, file=sys.stderr)
        return 2
    names = options.framework or installed()
    if not options.json:  # before the imports, which are slow
        print_title(names)
    backends, broken = import_frameworks(names)
    results = [run_case(case, *item) for case in CASES for item in backends.items()]
    (print_json if options.json else print_tables)(results)
    for remark in remarks(backends, broken):
        print(remark, file=sys.stderr if options.json else sys.stdout)
    return 0 if not broken and all(result.ok for result in results) else 1


def remarks(frameworks: Iterable[str], broken: dict[str, str]) -> Iterator[str]:
    """Yield which frameworks do not import, and what to install if there is no gradient."""
    for name, error in broken.items():
        yield f"{name} is installed and does not import: {error}"
    if set(frameworks) == {"numpy"}:
        yield "NumPy has values and no gradients. For those, install one of the three:"
        yield from (f"  {INSTALL.format(name)}" for name in WITH_GRADIENT)


# Printing them as JSON


def print_json(results: Sequence[Result]) -> None:
    rows = [json.dumps(jsonable(as_row(result)), allow_nan=False) for result in results]
    print("[\n" + ",\n".join(rows) + "\n]")


def as_row(result: Result) -> dict[str, Any]:
    """Return a result under the names of the JSON output."""
    case = result.case
    return {
        "framework": result.framework,
        "version": version_of(result.framework),
        "case": case.name,
        "source": case.source,
        "inputs": case.inputs,
        "naive_value": result.naive.value,
        "naive_gradient": result.naive.gradient,
        "safe_value": result.safe.value,
        "safe_gradient": result.safe.gradient,
        "expected_value": case.value,
        "expected_gradient": case.gradient,
        "ok": result.ok,
    }


def jsonable(x: Any) -> Any:
    """Replace numbers that JSON lacks by "nan", "inf" and "-inf"."""
    if isinstance(x, dict):
        return {key: jsonable(entry) for key, entry in x.items()}
    if isinstance(x, list):
        return [jsonable(entry) for entry in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


# Printing them as tables


def print_title(names: Sequence[str]) -> None:
    Console(highlight=False).print(
        f"[bold]safeops {safeops.__version__}[/]: {len(CASES)} reported bugs, run live on "
        f"{', '.join(names)}"
    )


def print_tables(results: Sequence[Result]) -> None:
    """Print a table for each bug, and a summary."""
    if not results:
        return
    console = Console(highlight=False)
    names = dict.fromkeys(result.framework for result in results)
    console.print(", ".join(f"{name} {version_of(name)}" for name in names) + "; float32")
    console.print("gradient: of the sum of the value, for the first input; xp: the framework")
    for number, case in enumerate(CASES, 1):
        of_case = [result for result in results if result.case is case]
        console.print()
        console.rule(f"[bold]{number}. {case.title}", align="left", style=DIM)
        console.print(code_table(case))
        console.print(result_table(of_case))
        for result in of_case:
            if result.naive_gradient_is_right:
                fact = case.spared.get(result.framework, "the reason is not recorded")
                console.print(f"[{DIM}]{result.framework}: the naive gradient is right: {fact}[/]")
    console.print()
    console.print(summary(results))


def code_table(case: Case) -> "Table":
    """Return the table with the report of a bug, the inputs, and the source of the functions."""
    table = Table.grid(Column(style=DIM), Column(), padding=(0, 2))
    inputs = (f"{name} = {written(x)}" for name, x in case.inputs.items())
    table.add_row("source", Text(case.source))
    table.add_row("input", Text(", ".join(inputs)))
    table.add_row("naive", Text(code_of(case.naive)))
    table.add_row("safe", Text(code_of(case.safe), style="bold"))
    return table


def code_of(f: Function) -> str:
    """Return the body of a function, without `return`."""
    _, *body = inspect.getsource(f).splitlines()
    return textwrap.dedent("\n".join(body)).replace("return ", "")


def result_table(results: Sequence[Result]) -> "Table":
    """Return the results of one bug, one framework a row."""
    heads = (f"{kind}\n{what}" for kind in ("naive", "safe") for what in ("value", "gradient"))
    columns = [Column(min_width=len("tensorflow")), *map(Column, heads)]
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for case, framework, naive, safe in results:
        table.add_row(
            framework,
            coloured(naive.value, case.value, ""),
            coloured(naive.gradient, case.gradient, ""),
            coloured(safe.value, case.value, GOOD),
            coloured(safe.gradient, case.gradient, GOOD),
        )
    return table


def coloured(found: Any, wanted: Any, good: str) -> "Text":
    """Return numbers, the wrong ones in red."""
    if found is None:
        return Text("none", style=DIM)
    if not isinstance(found, list) or np.shape(found) != np.shape(wanted):
        return Text(written(found), style=good if agree(found, wanted) else BAD)
    parts = [coloured(x, y, good) for x, y in zip(found, wanted, strict=True)]
    rows = Text(",\n " if np.ndim(found) > 1 else ", ").join(parts)
    return Text.assemble("[", rows, "]")


def written(x: Any) -> str:
    """Return numbers to three decimals."""
    if isinstance(x, list):
        return f"[{', '.join(map(written, x))}]"
    return f"{round(x, 3) + 0.0:g}"  # + 0.0 makes -0 a 0


def summary(results: Sequence[Result]) -> str:
    """Return a sentence about all results."""
    frameworks = len({result.framework for result in results})
    graded = [result for result in results if result.naive.gradient is not None]
    wrong = sum(not result.naive_gradient_is_right for result in graded)
    failed = [f"{result.case.name} on {result.framework}" for result in results if not result.ok]
    naive = f"{wrong} of {len(graded)} naive gradients are wrong; " if graded else ""
    what = "values and gradients" if graded else "values"
    verdict = f"[{BAD}]WRONG: {', '.join(failed)}[/]" if failed else f"[{GOOD}]all right[/]"
    plural = "s" * (frameworks != 1)
    return f"{len(CASES)} bugs x {frameworks} framework{plural}: {naive}safe {what}: {verdict}."

"""The engine of `check_gradients`: a function at its points, and findings about it."""

import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safeops._backends.array_api import ArrayAPI
from safeops._core.dtypes import REAL, SCALARS, Limits, limits, require
from safeops._core.types import Array, Function
from safeops._dispatch import backend_of

WHOLE = 6  # points up to which the Hessian is compared whole: fwd-fwd takes their square in runs
CHOSEN = "a derivative at a singular place, such as an edge, is chosen; give expected= to judge it"
COARSE = 1e-4  # eps above which differences say nothing: the eps of float16 and bfloat16 is above
# The kinds of places, and what is wrong with a derivative that the differences there contradict.
KINDS = {
    "smooth": "is not the slope",
    "kink": "is not between the slopes",
    "singular": "is far steeper than the slopes",
}
SINGULAR = list(KINDS).index("singular")
THIRD = ("rev-rev-rev", "fwd-rev-rev", "fwd-fwd-rev")
COMPOSITIONS = ("rev-rev", "fwd-rev", "rev-fwd", "fwd-fwd")  # the outer mode comes first
PROBES = (-0.7, 0.3, 2.5)  # what a point is set to, to see which entries of the value change
SHOWN = 12  # places that a report writes out

Numbers = NDArray[np.float64]
Places = tuple["Place", ...]


@dataclass(frozen=True)
class Place:
    """An input entry: which argument, where in it, what it holds."""

    argument: int
    entry: tuple[int, ...]
    point: float

    def __str__(self) -> str:
        """Return a text such as ``args[0][1] = 0``."""
        index = f"[{', '.join(map(str, self.entry))}]" if self.entry else ""
        return f"args[{self.argument}]{index} = {self.point:g}"


@dataclass(frozen=True)
class GradientFinding:
    """What is wrong, and where: at no particular place, at one place, or between two (Hessian)."""

    check: str
    places: Places
    got: float
    wanted: float
    why: str


@dataclass
class GradientReport:
    """
    What `check_gradients` found.

    `derivatives` holds, for each place, the derivative by each way. `kinds` counts, for each order,
    the places that finite differences took for smooth, kink and singular. `detector` is the answer
    of the NaN detector.
    """

    findings: list[GradientFinding] = field(default_factory=list)
    derivatives: dict[Places, dict[str, float]] = field(default_factory=dict)
    kinds: dict[int, Counter[str]] = field(default_factory=dict)
    detector: str = "not run"
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        """Return what was checked, then a table for each place with a finding."""
        count = len(self.findings)
        lines = [f"check_gradients: {count or 'no'} finding{'s' * (count != 1)}"]
        ways = dict.fromkeys(way for row in self.derivatives.values() for way in row)
        lines.append(f"compared: {', '.join(way for way in ways if ', ' not in way)}")
        for order, kinds in self.kinds.items():
            tally = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS)
            lines.append(f"finite differences of order {order}: {tally}")
        lines += [f"NaN detector: {self.detector}", *self.remarks]
        lines += [f"{x.check}: {x.why}" for x in self.findings if not x.places]
        places = list(dict.fromkeys(x.places for x in self.findings if x.places))
        for place in places[:SHOWN]:
            lines += ["", "at " + " and ".join(map(str, place)), *self._table(place)]
        more = len(places) - SHOWN
        return "\n".join(lines + [f"\n... and at {more} more places"] * (more > 0))

    def _table(self, places: Places) -> Iterable[str]:
        """Yield a line for each way, with the findings about it."""
        why = {x.check: x.why for x in self.findings if x.places == places}
        for way, number in self.derivatives[places].items():
            line = f"  {way:26}{number:>13.6g}  {why.get(way.partition(',')[0], '')}"
            yield line.rstrip()


class Check:
    """A function at its points; here the points are one flat vector of numbers."""

    def __init__(self, f: Any, points: tuple[Any, ...]) -> None:
        self.f, self.report = f, GradientReport()
        self.backend = _backend_for(f, points)
        self.shapes, self.flat = [tuple(x.shape) for x in points], _flat(points)
        self.points = points  # copies get the shapes, dtypes and devices of these
        self.points = self.arrays(self.flat)
        entries = [(k, i) for k, shape in enumerate(self.shapes) for i in np.ndindex(shape)]
        self.places = [Place(*at, float(x)) for at, x in zip(entries, self.flat, strict=True)]
        self.basis = [self.arrays(row) for row in np.eye(self.flat.size)]
        value = _value(self.backend, f, self.points)
        self.value = _flat([value])
        self.weights = _irregular(self.value.size)
        self.w = self.array(self.weights, value)
        self.eps = max(limits(self.backend.xp, x).eps for x in (*self.points, value))
        self.reach = self.reached()
        alone = self.reach.sum(1) == 1
        self.unit = np.where(alone, self.reach @ self.weights, 1.0)  # the report divides by it
        self.rtol, self.atol = np.sqrt(self.eps), 10 * self.eps

    def arrays(self, flat: Numbers) -> tuple[Array, ...]:
        """Return a flat vector as arrays in the shapes of the points."""
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in self.shapes])
        parts = np.split(flat, ends[:-1])
        return tuple(self.array(part, x) for part, x in zip(parts, self.points, strict=True))

    def array(self, numbers: Numbers, like: Array) -> Array:
        """Return numbers as an array in the shape, dtype and device of another."""
        numbers = np.array(numbers).reshape(tuple(like.shape))
        make = partial(self.backend.xp.asarray, numbers, dtype=like.dtype)
        with suppress(TypeError):  # TensorFlow takes no `device`: it moves operands itself
            return make(device=like.device)
        return make()

    def reached(self) -> NDArray[np.bool_]:
        """Return, for each point, which entries of the value can depend on it."""
        count = self.flat.size
        reach = np.zeros((count, self.weights.size), dtype=bool)
        for base in (self.flat, _irregular(count)):
            here = _flat([self.f(*self.arrays(base))])
            for j, probe in product(range(count), PROBES):
                there = _flat([self.f(*self.arrays(np.where(np.arange(count) == j, probe, base)))])
                reach[j] |= ~_same(here, there)
        return reach

    # The ways.

    def scalar(self, *args: Array) -> Array:
        """Return the weighted sum of the values."""
        return self.backend.xp.sum(self.w * self.f(*args))

    def gradient(self, *args: Array) -> Array:
        """Return the gradient of `scalar` by reverse mode, as one array."""
        return self.joined(self.backend.grad(self.scalar)(*args))

    def joined(self, arrays: Sequence[Array]) -> Array:
        xp = self.backend.xp
        return xp.concat([xp.reshape(x, (-1,)) for x in arrays])

    def forward(self, vector: tuple[Array, ...]) -> Numbers:
        """Return the slopes of the values along a vector by forward mode."""
        return _flat([self.backend.jvp(self.f)(self.points, vector)])

    def composed(self, name: str, vector: tuple[Array, ...]) -> Numbers:
        """Return the product of the Hessian and a vector; the outer mode comes first."""
        xp, grad, jvp, points = self.backend.xp, self.backend.grad, self.backend.jvp, self.points

        def along_reverse(*args: Array) -> Array:
            gradient = grad(self.scalar)(*args)
            return sum(xp.sum(v * g) for v, g in zip(vector, gradient, strict=True))

        if name == "rev-rev":
            return _flat(grad(along_reverse)(*points))
        if name == "fwd-rev":
            return _flat([jvp(self.gradient)(points, vector)])
        if name == "rev-fwd":
            return _flat(grad(lambda *args: jvp(self.scalar)(args, vector))(*points))
        slope = jvp(lambda *args: jvp(self.f)(args, vector))
        return self.weighted(np.stack([_flat([slope(points, e)]) for e in self.basis]))

    def thrice(self, name: str, vector: tuple[Array, ...]) -> Numbers:
        """Return the third derivatives, taken along a vector twice."""
        xp, grad, jvp, points = self.backend.xp, self.backend.grad, self.backend.jvp, self.points

        def along(gradient: Function, *args: Array) -> Array:
            return sum(xp.sum(v * g) for v, g in zip(vector, gradient(*args), strict=True))

        first = partial(along, grad(self.scalar))
        second = partial(along, grad(first))
        if name == "rev-rev-rev":
            return _flat(grad(second)(*points))
        if name == "fwd-rev-rev":
            return _flat([jvp(lambda *args: self.joined(grad(first)(*args)))(points, vector)])
        slope = jvp(self.gradient)
        return _flat([jvp(lambda *args: slope(args, vector))(points, vector)])

    def weighted(self, columns: Numbers) -> Numbers:
        """Return the derivatives of the weighted sum from those of the values."""
        # Where the point has no influence, a number that is not finite is 0 * inf by another point.
        own = np.where(self.reach | np.isfinite(columns), columns, 0.0)
        with np.errstate(invalid="ignore"):
            return own @ self.weights

    # The checks.

    def first_order(self, *, forward: bool, differences: bool) -> None:
        """Hold forward mode, and differences of the value, against reverse mode."""
        keys = [(place,) for place in self.places]
        reverse = _flat([self.gradient(*self.points)])
        columns = self.attempt("forward", self.forward, self.basis) if forward else None
        slopes = self.slopes(self.f, self.reach) if differences else None
        self.record("reverse", keys, reverse, reverse)
        if columns is not None:
            self.record("forward", keys, self.weighted(columns), reverse)
        if slopes is not None:
            slopes = slopes.summed(self.weights)
            self.singular = slopes.kind == SINGULAR
            self.judge(keys, reverse, slopes)

    def second_order(self, *, forward: bool, differences: bool) -> None:
        """Hold the compositions, and differences of reverse mode, against rev-rev."""
        whole = self.flat.size <= WHOLE
        vectors = self.basis if whole else [self.arrays(_irregular(self.flat.size))]
        starts = [(place,) for place in self.places] if whole else [()]
        keys = [(*start, place) for start in starts for place in self.places]
        together = self.reach.astype(int) @ self.reach.T > 0
        found = {
            name: self.attempt(name, partial(self.composed, name), vectors)
            for name in COMPOSITIONS[: 4 if forward else 1]
        }
        own = together if whole else np.True_
        rows = {k: np.where(own | np.isfinite(x), x, 0) for k, x in found.items() if x is not None}
        if "rev-rev" not in rows:
            return  # nothing to compare with
        for name, numbers in rows.items():
            self.record(name, keys, numbers, rows["rev-rev"])
        if not whole:
            self.report.remarks.append("second derivatives: the Hessian times one fixed vector")
        elif differences:
            slopes = _Slopes._make(x.T for x in self.slopes(self.gradient, together))
            self.judge(keys, rows["rev-rev"], slopes.freed(self.singular | self.singular[:, None]))

    def third_order(self, *, forward: bool) -> None:
        """Hold the compositions of third order against rev-rev-rev."""
        keys = [(place,) * 3 for place in self.places]
        ones = self.arrays(np.ones(self.flat.size))
        ways = THIRD if forward else THIRD[:1]
        found = {name: self.attempt(name, partial(self.thrice, name), [ones]) for name in ways}
        reference = found["rev-rev-rev"]
        if reference is not None:
            for name, numbers in found.items():
                if numbers is not None:
                    self.record(name, keys, numbers, reference)

    def beside(self, *, forward: bool) -> None:
        """Look for NaN in the gradient at the neighbours, and compare forward mode with it."""
        bound = max((limits(self.backend.xp, x) for x in self.points), key=lambda x: x.eps)
        found = neighbours(self.flat, bound)
        self.report.remarks.append(f"neighbours: {', '.join(found)}")
        for name, flat in found.items():
            self.at(flat).neighbour(name, forward=forward)

    def at(self, flat: Numbers) -> "Check":
        other = copy(self)
        other.flat, other.points = flat, self.arrays(flat)
        moved = zip(self.places, flat, strict=True)
        other.places = [Place(x.argument, x.entry, float(point)) for x, point in moved]
        return other

    def neighbour(self, name: str, *, forward: bool) -> None:
        """Check the first order at these points, by one vector in forward mode."""
        reverse = _flat([self.gradient(*self.points)])
        lost = np.isnan(_flat([self.f(*self.points)])) @ self.reach.T
        for place, got, undefined in zip(self.places, reverse / self.unit, lost, strict=True):
            if np.isnan(got) and not (np.isnan(place.point) or undefined):
                self.report.derivatives[place,] = {name: float(got)}
                self.find(name, (place,), got, np.nan, "is NaN")
        if not forward or not np.isfinite(reverse).all():
            return
        vector = _irregular(self.flat.size)
        tangent = self.attempt(name, self.forward, [self.arrays(vector)])
        if tangent is None:
            return
        size = np.abs(reverse) @ vector
        wanted, got = float(reverse @ vector), float(tangent[0] @ self.weights)
        if not np.isclose(got, wanted, self.rtol, self.atol + self.rtol * size):
            self.find(name, (), got, wanted, f"forward is {got:g} and reverse {wanted:g}")

    def with_constants(self) -> None:
        """Compare the gradient to some arguments, the others constant, with the whole gradient."""
        count = len(self.points)
        parts = np.split(np.arange(self.flat.size), np.cumsum([*map(np.prod, self.shapes)])[:-1])
        whole = _flat([self.gradient(*self.points)])
        for size in range(1, count):
            for free in combinations(range(count), size):
                rest = [k for k in range(count) if k not in free]
                name = f"constant {' and '.join(f'args[{k}]' for k in rest)}"
                self.with_free(name, free, np.concatenate([parts[k] for k in free]), whole)

    def with_free(
        self, name: str, free: tuple[int, ...], at: NDArray[np.intp], whole: Numbers
    ) -> None:
        """Compare the gradient to the free arguments with their entries of the whole gradient."""

        def some(*args: Array) -> Array:
            given = iter(args)
            return self.scalar(*(next(given) if k in free else x for k, x in fixed))

        fixed = list(enumerate(self.points))
        points = [self.points[k] for k in free]
        found = self.attempt(name, lambda _: _flat(self.backend.grad(some)(*points)), [None])
        if found is None:
            return
        for j, got, wanted in zip(
            at, found[0] / self.unit[at], (whole / self.unit)[at], strict=True
        ):
            if not self.equal(got, wanted):
                self.report.derivatives[self.places[j],][name] = float(got)
                self.find(name, (self.places[j],), got, wanted, "differs from reverse")

    def against(self, expected: tuple[Any, ...]) -> None:
        """Compare the gradient of the plain sum with the expected gradient."""
        if len(expected) != len(self.points):
            msg = f"expected {len(self.points)} gradients, one an argument, got {len(expected)}"
            raise ValueError(msg)
        xp = self.backend.xp
        plain = _flat(self.backend.grad(lambda *args: xp.sum(self.f(*args)))(*self.points))
        pairs = zip(map(_numbers, expected), self.shapes, strict=True)
        wanted = np.concatenate([_fitting(numbers, shape).ravel() for numbers, shape in pairs])
        for place, got, want in zip(self.places, plain, wanted, strict=True):
            self.report.derivatives[place,]["expected"] = want
            if not self.equal(got, want):
                self.find("expected", (place,), got, want, f"reverse of sum(f) is {got:g}")

    def detector(self) -> str:
        """Run value and reverse mode under the framework's NaN detector; return its answer."""
        if np.isnan(self.flat).any():
            return "not run, a point is NaN"
        infinite = np.isinf(self.flat).any() or np.isinf(self.value).any()
        if infinite and self.alarm(lambda: self.array(self.weights * np.inf, self.w) + self.w):
            return "not run, it takes inf for a fault and a point or a value is inf"
        if alarm := self.alarm(lambda: self.backend.grad(self.scalar)(*self.points)):
            self.find("NaN detector", (), np.nan, np.nan, alarm)
            return "raised"
        return "silent"

    def alarm(self, run: Function) -> str:
        """Return what the NaN detector says of a run; an empty string if it is silent."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that its detector is slow
            try:
                with self.backend.nan_detector():
                    run()
            except Exception as error:  # noqa: BLE001  (each framework raises its own)
                return _words(error)
        return ""

    def attempt(self, check: str, way: Function, vectors: Sequence[Any]) -> Numbers | None:
        """Return what a way gives for each vector; an error of the way is a finding."""
        try:
            return np.stack([way(vector) for vector in vectors])
        except Exception as error:  # noqa: BLE001  (such as a rule that is missing)
            self.find(check, (), np.nan, np.nan, f"raised {_words(error)}")
        return None

    # The findings.

    def equal(self, got: float, wanted: float) -> bool:
        """Whether two numbers agree within the tolerance; NaN agrees with NaN."""
        return bool(np.isclose(got, wanted, self.rtol, self.atol, equal_nan=True))

    def find(self, check: str, places: Places, got: float, wanted: float, why: str) -> None:
        self.report.findings.append(GradientFinding(check, places, float(got), float(wanted), why))

    def record(self, check: str, keys: Any, numbers: Numbers, reference: Numbers) -> None:
        """Keep the derivatives by one way, and add findings where they are wrong."""
        numbers, reference = (np.ravel(x / self.unit) for x in (numbers, reference))
        for places, got, wanted in zip(keys, numbers, reference, strict=True):
            self.report.derivatives.setdefault(places, {})[check] = float(got)
            allowed = any(np.isnan(x.point) for x in places)
            if not self.equal(got, wanted):
                rival = ("reverse", "rev-rev", "rev-rev-rev")[check.count("-")]
                self.find(check, places, got, wanted, f"differs from {rival}")
            elif check in {"reverse", "rev-rev", "rev-rev-rev"} and not (
                np.isfinite(got) or allowed
            ):
                self.find(check, places, got, np.nan, "not finite")

    def slopes(self, g: Function, reach: NDArray[np.bool_]) -> "_Slopes":
        """Measure the slopes of each entry of `g` for each point that can reach the entry."""
        here = _flat([g(*self.points)])

        def change(j: int, step: float) -> Numbers:
            moved = self.flat.copy()
            moved[j] += step
            there = _flat([g(*self.arrays(moved))])
            # An inf or NaN that does not change may still depend on a point that can reach it.
            stays = _same(here, there) & (np.isfinite(here) | ~reach[j])
            return np.where(stays, 0.0, there - here)

        with np.errstate(all="ignore"):
            rows = [
                _slopes_by(partial(change, j), np.abs(here), abs(x), self.eps)
                for j, x in enumerate(self.flat)
            ]
        return _Slopes._make(np.stack(column) for column in zip(*rows, strict=True))

    def judge(self, keys: Any, derivative: Numbers, slopes: "_Slopes") -> None:
        """Hold derivatives against one-sided slopes."""
        check, order = "finite differences", len(keys[0])
        kinds = [tuple(KINDS)[kind] for kind in slopes.kind.flat]
        self.report.kinds[order] = Counter(kinds)
        columns = (np.ravel(x / self.unit) for x in (derivative, *slopes[:4]))
        for places, kind, got, left, right, low, high in zip(keys, kinds, *columns, strict=True):
            row = self.report.derivatives[places]
            row |= {f"{check}, left": float(left), f"{check}, right": float(right)}
            if np.isfinite(got) and (got < low or got > high):
                rival = "rev-rev" if order > 1 else "reverse"
                self.find(check, places, got, np.clip(got, low, high), f"{rival} {KINDS[kind]}")


class _Slopes(NamedTuple):
    """One-sided slopes, the bounds that they set for a derivative, and the kind of the place."""

    left: Numbers
    right: Numbers
    low: Numbers
    high: Numbers
    kind: NDArray[np.int64]

    def summed(self, weights: Numbers) -> "_Slopes":
        """Return the slopes of the weighted sum of all values."""
        with np.errstate(invalid="ignore"):
            sums = [x @ weights for x in self[:4]]
        return _Slopes._make((*sums, self.kind.max(1, initial=0)))

    def freed(self, chosen: NDArray[np.bool_]) -> "_Slopes":
        """Return the slopes with no bounds where the gradient itself is chosen."""
        low, high = np.where(chosen, -np.inf, self.low), np.where(chosen, np.inf, self.high)
        return self._replace(low=low, high=high, kind=np.where(chosen, SINGULAR, self.kind))


def _slopes_by(change: Function, level: Numbers, size: float, eps: float) -> _Slopes:
    """Measure slopes for a point; for a small point at its own scale too, if that shows more."""
    slopes = _slopes_at(change, level, max(size, 1.0) if np.isfinite(size) else 1.0, eps)
    if not 0 < size < 1:
        return slopes
    closer = _slopes_at(change, level, size, eps)
    better = closer.kind < slopes.kind
    return _Slopes._make(np.where(better, *pair) for pair in zip(closer, slopes, strict=True))


def _slopes_at(change: Function, level: Numbers, scale: float, eps: float) -> _Slopes:
    steps = (scale * eps**0.4, scale * eps**0.25)
    near, wide = (np.stack([change(-step) / -step, change(step) / step]) for step in steps)
    # 10 roundings, divided by the near step; no slack for a value that does not move, far from 0.
    moves = (near != 0).any(0) | (wide != 0).any(0) | (scale < 1)
    noise = 10 * eps**0.6 * np.maximum(np.where(moves, level, 0.0) / scale, 1.0)
    steep = np.fmax(*np.abs(near))
    slack = eps**0.25 * steep + noise
    gap = np.abs(near[1] - near[0])
    kink = gap > np.maximum(slack, 0.5 * np.abs(wide[1] - wide[0]))
    # 1.3: from one step to the other the slope of x * log(abs(x)) at 0 grows by 1.6.
    converges = (steep <= 1.3 * np.abs(wide).max(0) + slack) & np.isfinite(near + wide).all(0)
    singular = ~converges | (noise > 0.1 * np.maximum(steep, 1.0))
    # 0.1: how much of the change remains at the near step, for smooth functions and abs(x)**1.5.
    margin = slack + 0.1 * np.abs(near - wide).max(0)
    far = (1 + steep) / eps**0.25
    low = np.where(singular, -far, near.min(0) - margin)
    high = np.where(singular, far, near.max(0) + margin)
    return _Slopes(near[0], near[1], low, high, np.where(singular, SINGULAR, kink))


def _backend_for(f: Any, points: tuple[Any, ...]) -> ArrayAPI:
    """Return the backend of the points; an error if it cannot differentiate `f`."""
    if not callable(f):
        msg = f"expected a function, got {type(f).__name__}; pass the function, not its value"
        raise TypeError(msg)
    for x in points:
        backend_of(x).check(x)
        require(x.dtype, REAL)
    if not sum(np.prod(x.shape, dtype=int) for x in points):
        msg = "expected at least one point, got none"
        raise ValueError(msg)
    if len({x.dtype for x in points}) > 1:
        msg = f"expected points of one dtype, got {', '.join(str(x.dtype) for x in points)}"
        raise TypeError(msg)
    backend = backend_of(*points)
    backend.grad(f)  # raises if the framework has no automatic differentiation
    return backend


def _value(backend: ArrayAPI, f: Function, points: tuple[Array, ...]) -> Array:
    """Return the value of `f`; an error if a value like it has no gradient."""
    value = f(*points)
    if isinstance(value, (*SCALARS, tuple, list, type(None))) or backend_of(value) is not backend:
        msg = f"expected f to return an array of {backend.name}, got {type(value).__name__}"
        raise TypeError(msg)
    require(value.dtype, REAL)
    if 0 in value.shape:
        msg = f"expected f to return at least one number, got the shape {tuple(value.shape)}"
        raise ValueError(msg)
    return value


def _fitting(gradient: Numbers, shape: tuple[int, ...]) -> Numbers:
    if gradient.shape not in {(), shape}:
        msg = f"expected a gradient of shape {shape}, got {gradient.shape}"
        raise ValueError(msg)
    return np.broadcast_to(gradient, shape)


def _numbers(x: Any) -> Numbers:
    """Return the numbers in an array of any framework, or a list."""
    # By tolist, because NumPy takes no tensor of another device or of bfloat16. PyTorch's zeros
    # without storage (structurally zero derivatives) get memory by + 0, which tolist needs.
    return np.asarray((x + 0).tolist() if hasattr(x, "tolist") else x, dtype=np.float64)


def _flat(arrays: Sequence[Array]) -> Numbers:
    """Return the numbers in all arrays as one vector."""
    return np.concatenate([_numbers(x).ravel() for x in arrays])


def _same(a: Numbers, b: Numbers) -> NDArray[np.bool_]:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _irregular(count: int) -> Numbers:
    """Return weights from 0.5 to 1.5, exact in every dtype; no simple sum of them cancels."""
    golden = (np.sqrt(5) - 1) / 2
    return 0.5 + np.round(np.arange(1, count + 1) * golden % 1 * 64) / 64


def _words(error: Exception) -> str:
    """Return the name of an error and the start of its message."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 240, placeholder=" ...")


# Points beside given points: a check at the given points alone may miss a fault there.


def neighbours(points: Numbers, limits: Limits) -> dict[str, Numbers]:
    """Return the moved points, by the name of the move."""
    # Each point moves to the next number of the dtype on either side; for 0 these are subnormal. A
    # zero also moves to -0.0, to the smallest normal numbers, and to a subnormal number.
    moves = {f"next {side}": _next(points, limits, to) for side, to in SIDES.items()}
    zero, normal = points == 0, limits.smallest_normal
    if zero.any():
        near = {"-0.0": -0.0, "smallest normal": normal, "subnormal": normal / 2}
        near |= {"minus smallest normal": -normal}
        moves |= {name: np.where(zero, number, points) for name, number in near.items()}
    return moves


SIDES = {"above": np.inf, "below": -np.inf}


def _next(points: Numbers, limits: Limits, to: float) -> Numbers:
    """Return the next numbers of a dtype, held in float64."""
    if limits.eps == np.finfo(np.float64).eps:
        return np.nextafter(points, to)
    # One step of float64 towards the side, then up to the grid of the dtype.
    with np.errstate(all="ignore"):
        moved = np.nextafter(points, to)
        exponent = np.floor(np.log2(np.maximum(np.abs(moved), limits.smallest_normal)))
        step = limits.eps * 2.0**exponent
        grid = (np.ceil if to > 0 else np.floor)(moved / step) * step
    grid = np.where(np.abs(grid) > limits.max, np.copysign(np.inf, grid), grid)
    return np.where(np.isfinite(points), grid, points)

"""
Evidence: what a backward pass over marked pairs has met, and the findings that follow.

All frameworks share this. Each framework runs its backward pass on concrete values, and records
where a coefficient that is not finite met entries, absent or active ones, and which operations of
the forward pass made values that are not finite. A cause that reaches the gradient is a finding.
"""

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from safeops._source.locations import Location
from safeops.autodiff._explain.finding import Finding, Kind
from safeops.autodiff._small import folded, narrowed


@dataclass(frozen=True)
class Site:
    """An operation of the program, its line, and the calls that lead to it."""

    operation: str
    where: Location | None = None
    path: tuple[Any, ...] = ()
    caller: str = ""  # the library function that it is part of


INPUT = Site("input")
CONTROL = ("scan", "while", "cond")


@dataclass(frozen=True)
class Cause:
    """An operation that makes entries of a cotangent not finite, and the kind of finding."""

    kind: Kind
    site: Site


Marks: TypeAlias = Mapping[Any, np.ndarray]  # by Cause or by the Site of a selection: its entries


@dataclass
class Count:
    """Entries at which something not finite was met, over all runs of an operation."""

    entries: int = 0
    times: int = 0
    shape: tuple[int, ...] = ()
    what: str = ""
    met: np.ndarray | None = None  # the mask of the last run
    rows: set[int] = field(default_factory=set)  # along the first axis
    selections: Counter[Site] = field(default_factory=Counter)

    def add(self, met: np.ndarray, what: str) -> None:
        """Count one run."""
        self.entries += int(met.sum())
        self.times += 1
        self.shape = met.shape
        self.what = self.what or what
        self.met = compact(met)
        self.rows |= {*rows_with(met)}

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the entries of the one run that are not in a mask."""
        self.met = self.met & mask
        self.entries, self.rows = int(self.met.sum()), {*rows_with(self.met)}


def rows_with(met: np.ndarray) -> list[int]:
    """Return the places along the first axis with a marked entry."""
    found: list[int] = np.flatnonzero(met.any(tuple(range(1, met.ndim)))).tolist()
    return found


@dataclass
class Made(Count):
    """Entries that a forward operation made not finite, and from which operands."""

    makers: set[Site] = field(default_factory=set)  # which operations made its nonfinite operands
    nan: bool = False  # whether an operand was NaN
    nonfinite: bool = False  # whether any result was not finite
    written: bool = False  # whether it is a given infinity, such as -inf in a mask
    number: int = 0  # in the order of first runs


def compact(mask: np.ndarray) -> np.ndarray:
    """Return a mask in memory of its own, with one entry along axes that repeat it."""
    return np.broadcast_to(narrowed(parts(mask)).copy(), mask.shape)


def thin(mask: Any) -> Any:
    """Return a mask as `folded` does, with length 1 along axes that repeat an entry."""
    return folded(parts(mask)) if isinstance(mask, np.ndarray) else mask


def parts(mask: Any) -> np.ndarray:
    """Return a mask without the repetitions that its memory tells."""
    mask = np.asarray(mask)
    if 0 not in mask.strides:
        return mask
    return mask[tuple(slice(None if stride else 1) for stride in mask.strides)]


def combined(f: Callable[..., Any], *masks: Any) -> np.ndarray:
    """Return what a function of entries makes of masks; what they repeat is asked for once."""
    return np.broadcast_to(f(*map(parts, masks)), np.broadcast_shapes(*map(np.shape, masks)))


def but(mask: Any, other: Any) -> np.ndarray:
    """Return where one mask is True and another is not."""
    return combined(operator.gt, mask, other)


class Forward:
    """Which operations of the forward pass made values that are not finite."""

    def __init__(self, numbers: Callable[[Any], np.ndarray | None], inputs: Iterable[Any]) -> None:
        self.numbers = numbers  # the numbers of a value, None if it cannot be infinite
        self.sites: dict[Site, Made] = {}  # in the order of their first runs
        # By identity of a value that is not finite: the value, and the operations that made it so.
        self.known: dict[int, tuple[Any, frozenset[Site]]] = {}
        for x, x_numbers in self.nonfinite(inputs):
            self.known[id(x)] = (x, frozenset([INPUT]))
            bad = ~np.isfinite(x_numbers)
            record = self.record(INPUT)
            record.add(bad, name_of(x_numbers[bad]))
            record.written = record.what != "nan"

    def nonfinite(self, values: Iterable[Any]) -> list[tuple[Any, np.ndarray]]:
        """Return the values that are not finite, with their numbers."""
        found = []
        for x in values:  # no comprehension, which is a call: it is asked for each operation
            numbers = self.numbers(x)
            if numbers is not None and not np.isfinite(numbers).all():
                found.append((x, numbers))
        return found

    def record(self, site: Site) -> Made:
        """Return what is known of an operation, in the order of first runs."""
        return self.sites.setdefault(site, Made(number=len(self.sites)))

    def order(self, site: Site) -> int:
        """Return the position of an operation in the order of first runs; -1 if it did not run."""
        return self.sites[site].number if site in self.sites else -1

    def makers_of(self, x: Any) -> frozenset[Site]:
        """Return the operations that made a value not finite."""
        return self.known[id(x)][1] if id(x) in self.known else frozenset()

    def record_operation(self, site: Site, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Record one run of an operation, with its operands and results."""
        record = self.record(site)
        operands, results = self.nonfinite(ins), self.nonfinite(outs)
        record.nan |= any(np.isnan(y).any() for _, y in operands)
        record.nonfinite |= bool(results)
        if not results:
            record.makers |= self.all_makers(operands)
        for value, out in results:
            self.known[id(value)] = (value, self.makers_in(site, record, operands, out))

    def all_makers(self, values: Iterable[tuple[Any, np.ndarray]]) -> frozenset[Site]:
        """Return the operations that made any of these values not finite."""
        return frozenset[Site]().union(*(self.makers_of(x) for x, _ in values))

    def value_of(self, site: Site) -> str:
        """Return "finite" if all results of an operation, or of its library function, were."""
        if site not in self.sites:
            return ""
        whole = [x for x in self.sites if (x.where, x.caller) == (site.where, site.caller)]
        of_it = whole if site.caller else [site]
        return "" if any(self.sites[x].nonfinite for x in of_it) else "finite"

    def makers_in(
        self, site: Site, record: Made, operands: list[tuple[Any, np.ndarray]], out: np.ndarray
    ) -> frozenset[Site]:
        """Return the operations that made a result not finite, and count it if this one did."""
        new = made_here(out, [y for _, y in operands])
        if not new.any() and not np.isinf(out).any():  # the NaN is from a NaN operand
            operands = [(x, y) for x, y in operands if np.isnan(y).any()]
        makers = self.all_makers(operands)
        record.makers |= makers
        # A NaN made from given infinities alone, such as -inf in a mask, is new here.
        tainted = np.isnan(out[new]).any() and all(self.sites[maker].written for maker in makers)
        if makers and not tainted:
            return makers
        # A nonfinite operand without a maker is a constant; it counts where it is met first.
        met = new if new.any() else ~np.isfinite(out)
        constant = any(id(x) not in self.known for x, _ in operands)
        record.written |= constant and not np.isnan(out[met]).any()
        record.add(met, name_of(out[met]))
        return frozenset([site])


def made_here(out: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Return where NaN came from operands without NaN, or infinity from finite operands."""
    bad = [x for x in operands if not np.isfinite(x).all()]
    if any(x.shape not in (out.shape, ()) for x in bad):
        return np.isnan(out) & (not any(np.isnan(x).any() for x in bad))
    nan, infinite = np.isnan(out), np.isinf(out)
    for x in bad:
        nan &= ~np.isnan(x)
        infinite &= np.isfinite(x)
    return np.asarray(nan | infinite)


def name_of(numbers: np.ndarray) -> str:
    """Return "nan", "inf" or "-inf" for the nonfinite ones among numbers; "" if all are finite."""
    numbers = numbers[~np.isfinite(numbers)]
    if not numbers.size:
        return ""
    if np.isnan(numbers).any() or np.iscomplexobj(numbers):
        return "nan"
    return "-inf" if (numbers < 0).all() else "inf"


class Slope(NamedTuple):
    """The derivative of an operation, as far as its formula is evaluated, and who has met it."""

    site: Site
    value: Any
    counts: tuple[Count, ...]


class Meeting(NamedTuple):
    """A coefficient and a cotangent that are about to be multiplied."""

    site: Site
    at: tuple[Any, Any]  # the run of the operation, and the operation of the backward pass
    slope: np.ndarray
    active: np.ndarray
    dropped: Marks
    tainted: Marks
    # (mask of the cotangent, mask of the coefficient) to the entries of the product made from both.
    reached: Callable[[np.ndarray, np.ndarray], np.ndarray]
    elementwise: bool
    used: Kind = "GENUINE"
    # Whether a division here makes it infinite, and not an earlier operation.
    own: bool = False


class Evidence:
    """What the backward pass has met: counts by cause, and the used entries."""

    # `batch` is the number of rows of the batch, 0 if it is unknown, and `leaves` are the shapes of
    # what is differentiated with respect to, which has no rows of a batch.

    def __init__(
        self, forward: Forward, batch: int = 0, leaves: Iterable[tuple[int, ...]] = ()
    ) -> None:
        self.forward = forward
        self.batch = batch
        self.leaves = {turned for shape in leaves for turned in (shape, shape[::-1])}
        # By cause, by run of its operation, and by operation of the backward pass, as one operation
        # of the program may have several of these.
        self.counts: dict[Cause, dict[Any, dict[Any, Count]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(Count))
        )
        self.active: dict[Site, list[np.ndarray]] = defaultdict(list)
        self.own: set[Cause] = set()  # causes whose own slope is infinite

    def uses(self, site: Site, active: Sequence[np.ndarray]) -> None:
        """Record which entries of a result are used, if its operation made nonfinite entries."""
        if self.forward.sites.get(site, Made()).entries:
            self.active[site] += active

    def count(self, cause: Cause, at: tuple[Any, Any]) -> Count:
        """Return the count of a cause, for one run and one operation of the backward pass."""
        return self.counts[cause][at[0]][at[1]]

    def meet(self, m: Meeting) -> tuple[dict[Cause, np.ndarray], list[Count]]:
        """Return by cause where a nonfinite coefficient meets entries, and the counts of these."""
        found: dict[Cause, np.ndarray] = {}
        counts: list[Count] = []
        if np.isfinite(m.slope).all():
            return found, counts
        bad = compact(~np.isfinite(m.slope))
        # Behind an operation without a rule it is unknown whether an entry is used.
        unclear = united_masks(mask for cause, mask in m.tainted.items() if cause.kind == "UNKNOWN")
        masks = {
            Cause("BLOCKED", m.site): combined(np.logical_not, m.active),
            Cause(m.used, m.site): but(m.active, unclear),
        }
        for cause, mask in masks.items():
            hit = m.reached(mask, bad)
            if not parts(hit).any():
                continue
            found[cause] = hit
            if m.own:
                self.own.add(cause)
            counts.append(self.count(cause, m.at))
            where = hit if m.elementwise else bad
            counts[-1].add(where, name_of(np.broadcast_to(m.slope, where.shape)[where]))
            for selection, dropped in m.dropped.items():
                counts[-1].selections[selection] += int(
                    m.reached(combined(np.logical_and, dropped, mask), bad).sum()
                )
        return found, counts

    def nearest(self, marks: Marks, new: Marks) -> dict[Any, np.ndarray]:
        """Return marks with new causes, which stand for those that only follow from the same."""
        left = {}
        for cause, mask in marks.items():
            for other, hit in new.items():
                if self.explains(other, cause):
                    mask = but(mask, hit)  # noqa: PLW2901  (what is left of it)
            if parts(mask).any():
                left[cause] = mask
        return united(left, new)

    def explains(self, other: Cause, cause: Cause) -> bool:
        """Whether a cause would be no finding beside another one, nor hide one that it hides."""
        mine, theirs = (self.forward.sites.get(x.site, Made()) for x in (cause, other))
        return (
            cause.kind == other.kind
            and cause.site != other.site
            and bool(mine.makers)
            and mine.makers == theirs.makers
            and not {cause.site, other.site} & mine.makers
            and not {cause, other} & self.own
            and self.forward.order(other.site) < self.forward.order(cause.site)
        )

    def selections(self, causes: Iterable[Cause]) -> set[Site]:
        """Return the selections that dropped the entries of these causes."""
        runs = [run for cause in causes for run in self.counts[cause].values()]
        return {site for run in runs for count in run.values() for site in count.selections}

    def overflow(
        self, marks: dict[Any, np.ndarray], site: Site, at: Any, value: np.ndarray, active: Any
    ) -> None:
        """Add used entries that are not finite and have no mark, such as those of an overflow."""
        bad = ~np.isfinite(value)
        if bad.any() and (bad := bad & active & ~united_masks(marks.values())).any():
            cause = Cause("GENUINE", site)
            self.count(cause, at).add(bad, name_of(value[bad]))
            marks[cause] = bad

    def spare(
        self, marks: dict[Any, np.ndarray], at: tuple[Any, Any], absent: np.ndarray, dropped: Marks
    ) -> None:
        """Turn causes of used entries into BLOCKED ones where a selection drops them here."""
        # It lies before the operation in the program: ordinary autodiff multiplies these by 0.
        for cause in [x for x in marks if x.kind == "GENUINE"]:
            lost = combined(np.logical_and, marks[cause], absent)
            if not parts(lost).any():
                continue
            blocked = replace(cause, kind="BLOCKED")
            # Several selections, as both operands of a maximum, may drop entries of one run.
            (run, *more) = self.counts[cause] or [at[0]]
            count = self.count(blocked, (at[0] if more else run, at))
            count.selections.update({by: int((x & lost).sum()) for by, x in dropped.items()})
            known = [one for run in self.counts[cause].values() for one in run.values()]
            same = [one for one in known if one.met is not None and one.met.shape == lost.shape]
            count.add(lost, next((one.what for one in known), ""))
            if len(known) == len(same) == 1 and known[0].times == 1:
                known[0].keep(~lost)
            marks[blocked] = combined(np.logical_or, marks.get(blocked, False), lost)
            marks[cause] = but(marks[cause], lost)

    def findings(
        self, reached: Iterable[Cause], result: Any, named: Callable[[Site], str]
    ) -> Iterator[Finding]:
        """Yield findings from the causes that reach the gradient, and from a nonfinite value."""
        every, forward = list(dict.fromkeys(reached)), self.forward
        makers = {cause: _makers(forward, cause) for cause in every}
        used = forward.makers_of(result)
        for maker in sorted(used, key=forward.order):
            yield self._forward(maker, named)
        for cause in every:
            of_value = cause.kind == "GENUINE" and used & (makers[cause] | {cause.site})
            follows = cause not in self.own and _follows(cause, makers, forward)
            if not (of_value or follows):
                yield self._finding(cause, named)

    def interim(self, result: Any, named: Callable[[Site], str]) -> Iterator[Finding]:
        """Yield a finding for each operation that made a value not finite, but not the result."""
        used = self.forward.makers_of(result)
        for site, made in self.forward.sites.items():
            # Such as the -inf that a maximum starts from.
            is_number = made.written and not made.shape
            if made.entries and site not in used and not is_number:
                yield replace(self._forward(site, named, every=True), kind="INTERIM")

    def _finding(self, cause: Cause, named: Callable[[Site], str]) -> Finding:
        runs = [
            max(run.values(), key=lambda count: count.entries)
            for run in self.counts[cause].values()
        ]
        one = runs[0] if runs else Count()
        selections = sum((run.selections for run in runs), Counter[Site]()).most_common()
        # A loop drops a carry that nothing reads, beside what its steps select; a branch likewise.
        by = min((x for x, _ in selections), key=lambda x: x.operation in CONTROL, default=None)
        return Finding(
            cause.kind,
            named(cause.site),
            cause.site.where,
            sum(run.entries for run in runs),
            one.shape,
            one.what,
            named(by) if by else "",
            by.where if by else None,
            nan_operand=self.forward.sites.get(cause.site, Made()).nan,
            value=self.forward.value_of(cause.site),
            times=max(sum(run.times for run in runs), 1),
            rows=self._rows(one.shape, set().union(*(run.rows for run in runs))),
        )

    def _rows(self, shape: tuple[int, ...], rows: Iterable[int]) -> tuple[int, ...]:
        """Return rows of the batch; none if all rows are meant, or if they are not of the batch."""
        found = tuple(sorted(rows))
        if shape[:1] != (self.batch,) or shape in self.leaves or len(found) == self.batch:
            return ()
        return found

    def _forward(
        self, maker: Site, named: Callable[[Site], str], *, every: bool = False
    ) -> Finding:
        made = self.forward.sites.get(maker, Made())
        entries, rows = made.entries, made.rows
        for active in () if every else self.active[maker]:
            if made.met is not None and made.times == 1 and active.shape == made.met.shape:
                met = made.met & active
                entries, rows = (
                    (int(met.sum()), {*rows_with(met)}) if met.any() else (entries, rows)
                )
        name = "input" if maker == INPUT else named(maker)
        times = max(made.times, 1)
        seen = () if maker == INPUT else self._rows(made.shape, rows)
        return Finding(
            "FORWARD", name, maker.where, entries, made.shape, made.what, times=times, rows=seen
        )


def _follows(cause: Cause, makers: Mapping[Cause, set[Site]], forward: Forward) -> bool:
    """Whether an earlier finding already explains the nonfinite operands of a cause."""
    if not makers[cause]:
        return False
    others = [other for other in makers if other.kind == cause.kind and other != cause]
    if makers[cause] <= {other.site for other in others}:
        return True
    own = forward.order(cause.site)
    return any(
        makers[other] & makers[cause] and forward.order(other.site) < own for other in others
    )


def _makers(forward: Forward, cause: Cause) -> set[Site]:
    """Return the other operations that made the operands of a cause not finite."""
    record = forward.sites.get(cause.site)
    return set() if record is None else record.makers - {cause.site}


def update_counts(slope: Slope, numbers: np.ndarray) -> Slope:
    """Update the counts that have met a slope with what the slope has become."""
    for count in slope.counts:
        if count.met is not None and count.met.shape == numbers.shape:
            count.what = name_of(numbers[count.met]) or count.what
    return slope


def missing(
    findings: Sequence[Finding], *, value: str, ordinary: int, masked: int
) -> Iterator[Finding]:
    """Yield a finding for each fact without one, so that no report is clean by mistake."""
    # `value` is what the value is, if it is not finite; `ordinary` and `masked` are the numbers of
    # entries of the framework's own gradient, and of the masked one, that are not finite.
    kinds = {finding.kind for finding in findings}
    if value and "FORWARD" not in kinds:
        yield Finding("FORWARD", "", what=value)
    if masked and not kinds & {"FORWARD", "GENUINE", "UNKNOWN"}:
        yield Finding("UNKNOWN", "the program", reason="lost")
    if ordinary > masked and "BLOCKED" not in kinds:
        yield Finding("BLOCKED", "")


def reaching(results: Iterable[tuple[Marks, np.ndarray]]) -> Iterator[Cause]:
    """Yield the causes that make results not finite, or would in ordinary autodiff."""
    for tainted, value in results:
        for cause, mask in tainted.items():
            if cause.kind == "BLOCKED" or (mask & ~np.isfinite(value)).any():
                yield cause


def united(a: Marks, b: Marks) -> dict[Any, np.ndarray]:
    """Return the union of two sets of marks."""
    return {**a, **b, **{x: combined(np.logical_or, a[x], b[x]) for x in a.keys() & b}}


def united_masks(masks: Iterable[np.ndarray]) -> Any:
    """Return where any of several masks is True."""
    return functools.reduce(partial(combined, np.logical_or), masks, np.zeros((), bool))


def dropped_by_selection(site: Site, absent: np.ndarray, dropped: Marks) -> dict[Any, np.ndarray]:
    """Return which selection dropped each absent entry: this one, where no earlier one did."""
    marks = {key: combined(np.logical_and, mask, absent) for key, mask in dropped.items()}
    new = functools.reduce(but, marks.values(), absent)
    return {key: mask for key, mask in united(marks, {site: new}).items() if parts(mask).any()}

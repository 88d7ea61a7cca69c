"""
Evidence: what a backward pass over pairs has seen, and what follows from it.

The frameworks share this. Each runs its backward pass on concrete values, and tells where a
coefficient that is not finite met entries, absent or active ones, and which operations of the
forward pass made values that are not finite. What of it reaches the gradient becomes a finding.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from safeops.autodiff._explain.locations import Location
from safeops.autodiff._explain.report import Finding, Kind


@dataclass(frozen=True)
class Site:
    """An operation of the program, where it stands, and the calls that lead there."""

    operation: str
    where: Location | None = None
    path: tuple[Any, ...] = ()
    caller: str = ""  # the function of a library that it is a part of


INPUT = Site("input")
SOME = "an operation"  # that could not be found


@dataclass(frozen=True)
class Cause:
    """What makes entries of a cotangent not finite."""

    kind: Kind
    site: Site


Marks: TypeAlias = Mapping[Any, np.ndarray]  # where a Cause, or the Site of a selection, has been


@dataclass
class Count:
    """Entries that were met, in all runs of an operation."""

    entries: int = 0
    times: int = 0
    shape: tuple[int, ...] = ()
    what: str = ""
    met: np.ndarray | None = None  # in the last run
    selections: Counter[Site] = field(default_factory=Counter)

    def add(self, met: np.ndarray, what: str) -> None:
        """Count one run."""
        self.entries += int(met.sum())
        self.times += 1
        self.shape = met.shape
        self.what = self.what or what
        self.met = met


@dataclass
class Made(Count):
    """Entries that an operation of the forward pass made so, and of what."""

    makers: set[Site] = field(default_factory=set)  # of operands that are not finite
    nan: bool = False  # whether an operand was NaN
    nonfinite: bool = False  # whether a result was not finite, whoever made it so
    written: bool = False  # whether it is an infinity that was given, such as -inf in a mask


class Forward:
    """Which operations made values that are not finite."""

    def __init__(self, numbers: Callable[[Any], np.ndarray | None], inputs: Iterable[Any]) -> None:
        self.numbers = numbers  # of a value, if it is one that can be infinite
        self.sites: dict[Site, Made] = {}  # in the order in which they ran first
        # By identity of the value: what made it so.
        self.known: dict[int, tuple[Any, frozenset[Site]]] = {}
        for x, x_numbers in self.nonfinite(inputs):
            self.known[id(x)] = (x, frozenset([INPUT]))
            bad = ~np.isfinite(x_numbers)
            record = self.sites.setdefault(INPUT, Made())
            record.add(bad, name_of(x_numbers[bad]))
            record.written = record.what != "nan"

    def nonfinite(self, values: Iterable[Any]) -> list[tuple[Any, np.ndarray]]:
        """Return the values that are not finite, with their numbers."""
        every = ((x, self.numbers(x)) for x in values)
        return [(x, y) for x, y in every if y is not None and not np.isfinite(y).all()]

    def order(self, site: Site) -> int:
        """Return when an operation ran first."""
        return list(self.sites).index(site) if site in self.sites else -1

    def makers_of(self, x: Any) -> frozenset[Site]:
        """Return what made a value not finite."""
        return self.known[id(x)][1] if id(x) in self.known else frozenset()

    def made(self, site: Site, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        """Take note of what an operation made of what."""
        record = self.sites.setdefault(site, Made())
        operands, results = self.nonfinite(ins), self.nonfinite(outs)
        record.nan |= any(np.isnan(y).any() for _, y in operands)
        record.nonfinite |= bool(results)
        if not results:
            record.makers |= self.all_makers(operands)
        for value, out in results:
            self.known[id(value)] = (value, self.makers_in(site, record, operands, out))

    def all_makers(self, values: Iterable[tuple[Any, np.ndarray]]) -> frozenset[Site]:
        """Return what made values not finite."""
        return frozenset[Site]().union(*(self.makers_of(x) for x, _ in values))

    def value_of(self, site: Site) -> str:
        """Return "finite" if all results of an operation, or of its library's function, were."""
        if site not in self.sites:
            return ""
        whole = [x for x in self.sites if (x.where, x.caller) == (site.where, site.caller)]
        of_it = whole if site.caller else [site]
        return "" if any(self.sites[x].nonfinite for x in of_it) else "finite"

    def makers_in(
        self, site: Site, record: Made, operands: list[tuple[Any, np.ndarray]], out: np.ndarray
    ) -> frozenset[Site]:
        """Return what made a result not finite, and take note if this operation did."""
        new = made_here(out, [y for _, y in operands])
        if not new.any() and not np.isinf(out).any():  # NaN comes of NaN, and not of infinity
            operands = [(x, y) for x, y in operands if np.isnan(y).any()]
        makers = self.all_makers(operands)
        record.makers |= makers
        # A NaN counts by itself if an infinity made it that was given, such as -inf in a mask.
        tainted = np.isnan(out[new]).any() and all(self.sites[maker].written for maker in makers)
        if makers and not tainted:
            return makers
        # What nothing made is a constant of the program, and counts where it is met first.
        met = new if new.any() else ~np.isfinite(out)
        constant = any(id(x) not in self.known for x, _ in operands)
        record.written |= constant and not np.isnan(out[met]).any()
        record.add(met, name_of(out[met]))
        return frozenset([site])


def made_here(out: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Return where NaN came of what is not NaN, or infinity of what is finite."""
    bad = [x for x in operands if not np.isfinite(x).all()]
    if any(x.shape not in (out.shape, ()) for x in bad):
        return np.isnan(out) & (not any(np.isnan(x).any() for x in bad))
    nan, infinite = np.zeros(out.shape, bool), np.zeros(out.shape, bool)
    for x in bad:
        nan, infinite = nan | np.isnan(x), infinite | ~np.isfinite(x)
    return np.asarray((np.isnan(out) & ~nan) | (np.isinf(out) & ~infinite))


def name_of(numbers: np.ndarray) -> str:
    """Return what numbers are, those that are not finite; "" if all are."""
    numbers = numbers[~np.isfinite(numbers)]
    if not numbers.size:
        return ""
    if np.isnan(numbers).any() or np.iscomplexobj(numbers):
        return "nan"
    return "-inf" if (numbers < 0).all() else "inf"


class Slope(NamedTuple):
    """The derivative of one operation, as far as its formula has come, and who asks for it."""

    site: Site
    value: Any
    counts: tuple[Count, ...]


class Meeting(NamedTuple):
    """A coefficient and a cotangent that are multiplied."""

    site: Site
    at: tuple[Any, Any]  # which run of the operation, and which operation of the backward pass
    slope: np.ndarray
    active: np.ndarray
    dropped: Marks
    tainted: Marks
    # Which entries of the product are made of a mask of the cotangent and one of the coefficient.
    reached: Callable[[np.ndarray, np.ndarray], np.ndarray]
    elementwise: bool
    used: Kind = "GENUINE"
    # Whether it is infinite by a division here, and not by what an earlier operation made.
    own: bool = False


class Evidence:
    """What the backward pass has met."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        # By cause, by the run of the operation that has it, and by the operation of the backward
        # pass: one of the program may need several.
        self.counts: dict[Cause, dict[Any, dict[Any, Count]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(Count))
        )
        self.active: dict[Site, list[np.ndarray]] = defaultdict(list)
        self.own: set[Cause] = set()  # whose slope is infinite by itself

    def uses(self, site: Site, active: Sequence[np.ndarray]) -> None:
        """Keep what is used of a result, if it is one that is not finite."""
        if self.forward.sites.get(site, Made()).entries:
            self.active[site] += active

    def count(self, cause: Cause, at: tuple[Any, Any]) -> Count:
        """Return the count of a cause in one operation of the backward pass."""
        return self.counts[cause][at[0]][at[1]]

    def meet(self, m: Meeting) -> tuple[dict[Cause, np.ndarray], list[Count]]:
        """Return where a coefficient that is not finite met entries, and count these."""
        found: dict[Cause, np.ndarray] = {}
        counts: list[Count] = []
        bad = ~np.isfinite(m.slope)
        if not bad.any():
            return found, counts
        # Below an operation without a rule nobody knows whether an entry is used.
        unclear = united_masks(mask for cause, mask in m.tainted.items() if cause.kind == "UNKNOWN")
        masks = {Cause("BLOCKED", m.site): ~m.active, Cause(m.used, m.site): m.active & ~unclear}
        for cause, mask in masks.items():
            hit = m.reached(mask, bad)
            if not hit.any():
                continue
            found[cause] = hit
            if m.own:
                self.own.add(cause)
            counts.append(self.count(cause, m.at))
            where = hit if m.elementwise else bad
            counts[-1].add(where, name_of(np.broadcast_to(m.slope, where.shape)[where]))
            for selection, dropped in m.dropped.items():
                counts[-1].selections[selection] += int(m.reached(dropped & mask, bad).sum())
        return found, counts

    def selections(self, causes: Iterable[Cause]) -> set[Site]:
        """Return what dropped the entries that causes concern."""
        runs = [run for cause in causes for run in self.counts[cause].values()]
        return {site for run in runs for count in run.values() for site in count.selections}

    def overflow(
        self, marks: dict[Any, np.ndarray], site: Site, at: Any, value: np.ndarray, active: Any
    ) -> None:
        """Add where a used value is not finite and no mark says why, such as an overflow."""
        bad = ~np.isfinite(value) & active & ~united_masks(marks.values())
        if bad.any():
            cause = Cause("GENUINE", site)
            self.count(cause, at).add(bad, name_of(value[bad]))
            marks[cause] = bad

    def findings(
        self, reached: Iterable[Cause], result: Any, named: Callable[[Site], str]
    ) -> Iterator[Finding]:
        """Yield what follows, of the causes that reach the gradient and of the value."""
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

    def _finding(self, cause: Cause, named: Callable[[Site], str]) -> Finding:
        runs = [
            max(run.values(), key=lambda count: count.entries)
            for run in self.counts[cause].values()
        ]
        one = runs[0] if runs else Count()
        selections = sum((run.selections for run in runs), Counter[Site]()).most_common(1)
        by = selections[0][0] if selections else None
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
        )

    def _forward(self, maker: Site, named: Callable[[Site], str]) -> Finding:
        made = self.forward.sites.get(maker, Made())
        entries = made.entries
        for active in self.active[maker]:
            if made.met is not None and made.times == 1 and active.shape == made.met.shape:
                entries = int((made.met & active).sum()) or entries
        name = "input" if maker == INPUT else named(maker)
        times = max(made.times, 1)
        return Finding("FORWARD", name, maker.where, entries, made.shape, made.what, times=times)


def _follows(cause: Cause, makers: Mapping[Cause, set[Site]], forward: Forward) -> bool:
    """Whether an earlier finding tells why the operands of an operation are not finite."""
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
    """Return what made the operands of an operation of the program not finite."""
    record = forward.sites.get(cause.site)
    return set() if record is None else record.makers - {cause.site}


def tell(slope: Slope, numbers: np.ndarray) -> Slope:
    """Tell those who have met a slope what it is by now."""
    for count in slope.counts:
        if count.met is not None and count.met.shape == numbers.shape:
            count.what = name_of(numbers[count.met]) or count.what
    return slope


def missing(
    findings: Sequence[Finding], *, value: bool, ordinary: int, masked: int
) -> Iterator[Finding]:
    """Yield what is known to be there and was not found: no report is clean by mistake."""
    kinds = {finding.kind for finding in findings}
    if value and "FORWARD" not in kinds:
        yield Finding("FORWARD", SOME)
    if masked and not kinds & {"FORWARD", "GENUINE", "UNKNOWN"}:
        yield Finding("GENUINE", SOME)
    if ordinary > masked and "BLOCKED" not in kinds:
        yield Finding("BLOCKED", SOME)


def reaching(results: Iterable[tuple[Marks, np.ndarray]]) -> Iterator[Cause]:
    """Yield what makes results not finite, or would in ordinary autodiff."""
    for tainted, value in results:
        for cause, mask in tainted.items():
            if cause.kind == "BLOCKED" or (mask & ~np.isfinite(value)).any():
                yield cause


def united(a: Marks, b: Marks) -> dict[Any, np.ndarray]:
    """Return marks that are in one or the other."""
    return {key: np.logical_or(a.get(key, False), b.get(key, False)) for key in {**a, **b}}


def united_masks(masks: Iterable[np.ndarray]) -> Any:
    """Return where one of several masks is."""
    return functools.reduce(np.logical_or, masks, np.zeros((), bool))


def blamed(site: Site, absent: np.ndarray, dropped: Marks) -> dict[Any, np.ndarray]:
    """Return what dropped the entries that are absent: this operation, if no earlier one did."""
    marks = {key: mask & absent for key, mask in dropped.items()}
    new = absent.copy()
    for mask in marks.values():
        new &= ~mask
    if new.any():
        marks[site] = marks.get(site, False) | new
    return {key: mask for key, mask in marks.items() if mask.any()}

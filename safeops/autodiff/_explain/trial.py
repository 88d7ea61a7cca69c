"""
Edits on trial: the program runs again with them, before they are offered.

The functions of the program get the code of the edited source, in place, while it runs; no file is
written. So closures, methods and notebooks can be tried too. A gradient that is finite then may
still be wrong: where the program is smooth its differences tell.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from linecache import getlines
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import numpy as np

from safeops.autodiff._explain.finding import CAVEAT, Edit, Repair
from safeops.autodiff._explain.report import Report

Leaves: TypeAlias = Sequence[np.ndarray]
STEP = 1e-2  # of a difference, relative to the entry
MOST = 3  # entries at which differences are taken
ROUND = "with the edits some entries are still not finite: edit, and explain again"
UNTRIED = "the edits have not been run: apply them, and explain again"
FAILED = "with the edits the program raises {}, so none is given"
IN_VAIN = "with the edits as many entries are not finite, so none is given"
STAYS = "with the edits the gradient is finite, and the value stays {}"
HALF = (
    "float16 overflows above 65504: compute in float32, or by one operation for the whole, such as "
    "safe_softmax or safe_standardize"
)
WRONG = (
    "the whole has a slope of about {:.3g} where the edits would make {:.3g}, so none is given; "
    "simplify it, or use one operation for it, such as safe_prod or safe_logsumexp(x, b=weights)"
)


@dataclass(frozen=True)
class Program:
    """How to run a program, all as arrays of NumPy."""

    value_and_grad: Callable[[], tuple[Any, Leaves]]  # as the framework takes it
    value_at: Callable[[Leaves], Any]
    leaves: Leaves
    masked: Leaves  # the masked gradient
    is_half: bool = False  # whether it runs in float16
    before: tuple[Any, Leaves] | None = None  # value and gradient without edits, if known


def tried(report: Report, program: Program) -> Report:
    """Return a report whose edits have run, with what they make of value and gradient."""
    found = with_verdict(report, program)
    forward = [f for f in report.findings if f.kind == "FORWARD"]
    overflows = any("inf" in f.what or f.entered_at is not None for f in forward)
    is_cured = ROUND not in found.notes and any(f.repair.edit for f in found.findings)
    return noted(found, HALF) if program.is_half and overflows and not is_cured else found


def with_verdict(report: Report, program: Program) -> Report:
    """Return a report with what its edits make of value and gradient, and without those in vain."""
    repairs = {f.repair for f in report.findings if f.repair.edit is not None}
    if not repairs:
        return report
    try:
        before = program.before or program.value_and_grad()
        with in_place(repairs) as known:
            after = program.value_and_grad() if known else None
    except Exception as error:  # noqa: BLE001  (whatever a program raises)
        return without_edits(report, FAILED.format(type(error).__name__))
    if after is None:
        return report
    left, bad = count_of(after), count_of(before)
    if left and not is_infinite_alone(before, after):
        return noted(report, ROUND) if left < bad else without_edits(report, IN_VAIN)
    slopes = list(differences(program, before, after))
    for slope, found in slopes:
        if slope is not None and abs(slope - found) > max(noise_of(before[0]), 0.2 * abs(slope)):
            return without_edits(report, WRONG.format(slope, found + 0.0))  # no -0
    is_smooth = bool(slopes) and all(slope is not None for slope, _ in slopes)
    return noted(report, verdict(program, before, after, is_smooth=is_smooth))


def is_infinite_alone(before: tuple[Any, Leaves], after: tuple[Any, Leaves]) -> bool:
    """Whether edits make the gradient finite, and leave the value at the infinity that it was."""
    return bool(after[0] == before[0]) and all(np.isfinite(x).all() for x in after[1])


def verdict(
    program: Program, before: tuple[Any, Leaves], after: tuple[Any, Leaves], *, is_smooth: bool
) -> str:
    """Return what edits make of value and gradient, in words."""
    (was, _), (value, gradients) = before, after
    same = bool(np.isclose(was, value, rtol=1e-4, atol=1e-6))
    if same and not np.isfinite(was):
        return STAYS.format(was)
    text = (
        "" if same else f"the value becomes {value:.4g}, it was {was:.4g}: is that what you mean?"
    )
    if not np.isfinite(was):
        of = "is finite"
    elif all(np.isfinite(x).all() for x in program.masked):
        pairs = zip(gradients, program.masked, strict=True)
        equal = all(np.allclose(x, y, rtol=1e-3, atol=1e-5) for x, y in pairs)
        of = "is that of masked autodiff" if equal else "is finite, and not that of masked autodiff"
    else:
        of = "is that of differences" if is_smooth else "is finite, and chosen where there is none"
    return f"with the edits the gradient {of}" + (f", and {text}" if text else "")


def differences(
    program: Program, before: tuple[Any, Leaves], after: tuple[Any, Leaves]
) -> Iterator[tuple[float | None, float]]:
    """Yield slopes of a smooth program by differences, None at kinks, and those after the edits."""
    if not np.isfinite(before[0]) or all(np.isfinite(x).all() for x in program.masked):
        return
    places = [
        (i, tuple(at)) for i, x in enumerate(before[1]) for at in np.argwhere(~np.isfinite(x))
    ]
    for i, at in places[:MOST]:
        yield slope_of(program, before[0], i, at), float(after[1][i][at].real)


def noise_of(value: Any) -> float:
    """Return what differences of a value cannot tell from 0."""
    return 1e-3 * max(1.0, abs(float(value)))


def slope_of(program: Program, value: Any, i: int, at: tuple[int, ...]) -> float | None:
    """Return the slope at one entry by differences; None if they do not settle to one number."""
    found = []
    for sign in (1, -1):
        wide, narrow = (quotient(program, value, (i, at), sign * h) for h in (STEP, STEP / 4))
        if np.isfinite(wide) and np.isfinite(narrow):
            found.append((wide, narrow))
    settled = [y for x, y in found if abs(x - y) <= 0.1 * max(abs(x), abs(y))]
    if len(settled) < len(found) or not found:
        return None
    return settled[0] if np.ptp(settled) <= 0.1 * max(map(abs, settled)) else None


def quotient(program: Program, value: Any, place: tuple[int, tuple[int, ...]], h: float) -> float:
    """Return the difference quotient at one entry."""
    i, at = place
    moved = [np.array(x) for x in program.leaves]
    step = h * (abs(moved[i][at]) or 1.0)
    moved[i][at] += step
    return float((program.value_at(moved) - value) / step)


def count_of(result: tuple[Any, Leaves]) -> int:
    """Return the number of entries that are not finite, of the value and its gradients."""
    return sum(int((~np.isfinite(x)).sum()) for x in (result[0], *result[1]))


def noted(report: Report, text: str) -> Report:
    """Return a report with one more note."""
    return replace(report, notes=(*report.notes, text))


def untried(report: Report) -> Report:
    """Return a report that says of its edits that nobody has run them."""
    has_edits = any(f.repair.edit is not None for f in report.findings)
    return noted(report, UNTRIED) if has_edits else report


def without_edits(report: Report, why: str) -> Report:
    """Return a report without edits, and with the reason."""
    texts = (f.repair.text.partition(CAVEAT)[0] for f in report.findings)
    findings = (
        replace(f, repair=Repair(text=text)) for f, text in zip(report.findings, texts, strict=True)
    )
    return noted(replace(report, findings=tuple(findings)), why)


# The code in place


@contextmanager
def in_place(repairs: set[Repair]) -> Iterator[bool]:
    """Context in which the functions of a program have its edits; False if there are none."""
    every = [x for x in gc.get_objects() if type(x) is FunctionType]
    changed: list[tuple[FunctionType, CodeType]] = []
    given: list[tuple[dict[str, Any], str]] = []
    names: dict[str, Any] = {}
    for repair in repairs:
        exec(repair.imports, names)  # noqa: S102  (a line of this package)
    try:
        for file in {r.edit.where.file for r in repairs if r.edit is not None}:
            codes = edited_codes(file, [r.edit for r in repairs if r.edit is not None])
            for f in every:
                new = codes.get(key_of(f.__code__)) if f.__code__.co_filename == file else None
                if new is None or new.co_freevars != f.__code__.co_freevars:
                    continue
                changed.append((f, f.__code__))
                f.__code__ = new
                missing = set(names) - set(f.__globals__)
                given += [(f.__globals__, name) for name in missing]
                f.__globals__.update({name: names[name] for name in missing})
        yield bool(changed)
    finally:
        for f, code in changed:
            f.__code__ = code
        for scope, name in given:
            scope.pop(name, None)


def edited_codes(file: str, edits: Sequence[Edit]) -> dict[Any, CodeType]:
    """Return the code of each function that edits change, by its place; none if it has no other."""
    source = edited = "".join(getlines(file))
    here = {edit for edit in edits if edit.where.file == file}
    for edit in sorted(here, key=lambda edit: -edit.where.line):
        edited = edit.applied(edited)
    try:
        trees = [compile(text, file, "exec", dont_inherit=True) for text in (source, edited)]
    except SyntaxError:  # a notebook may wait at the top of a cell
        return {}
    old, new = map(codes_in, trees)
    same = [x.co_qualname for x in old] == [x.co_qualname for x in new]
    pairs = zip(old, new, strict=True) if same else matched(old, new)
    keys = Counter(map(key_of, old))  # of functions of one name on one line it is unknown which
    return {key_of(x): y for x, y in pairs if x != y and keys[key_of(x)] == 1}


def matched(
    old: Sequence[CodeType], new: Sequence[CodeType]
) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the codes of one name, where new functions stand among them."""
    for code in old:
        same = [x for x in new if x.co_qualname == code.co_qualname]
        if len(same) == sum(x.co_qualname == code.co_qualname for x in old):
            yield code, same[[x for x in old if x.co_qualname == code.co_qualname].index(code)]


def codes_in(code: CodeType) -> list[CodeType]:
    """Return the codes of the functions in a code, outer ones first."""
    inner = [x for x in code.co_consts if isinstance(x, CodeType)]
    return [y for x in inner for y in (x, *codes_in(x))]


def key_of(code: CodeType) -> tuple[str, int]:
    """Return the place of a function in its file."""
    return code.co_qualname, code.co_firstlineno

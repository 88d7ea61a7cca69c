"""SO003, SO010: an argument at the end of a domain, or beyond it by rounding."""

import math
from collections.abc import Iterator

from safeops._lint.bounds import bounds
from safeops._lint.found import File, Found
from safeops._lint.heuristics import SCHEDULE
from safeops._lint.operations import ENDS
from safeops._lint.shapes import CLOSE, is_square, number
from safeops._lint.terms import Term

HALF = 0.5
DOTS = frozenset({"dot", "matmul", "inner", "vdot", "cosine_similarity", "einsum"})


def clipped(file: File) -> Iterator[Found]:
    """SO003, SO010: ``sqrt(clip(x, 0))``; ``acos(clip(dot, -1, 1))``."""
    for term in file.terms(*ENDS, "pow"):
        word = "sqrt" if is_fraction(term) else term.operation
        framework = file.framework(term) if word in ENDS else ""
        if not framework:
            continue
        inner = term.args[0]
        end = clip_at(inner, *ENDS[word])
        is_angle = word == "acos" and (is_dot(unclipped(inner)) or is_trace(unclipped(inner)))
        if word == "log" and is_sech2(unclipped(inner)) and file.is_live(term.node, term):
            yield saturated(file, term, framework)
            continue
        unbounded = is_angle and inner.operation not in {"clip", "maximum", "minimum"}
        if (end is None and not unbounded) or not file.is_live(term.node, term):
            continue
        if is_of_schedule(term):
            continue
        yield clip_found(file, term, framework, end, is_angle=is_angle)


def is_fraction(term: Term) -> bool:
    """Whether a term is a power between 0 and 1, whose slope is infinite at 0 as that of a root."""
    return term.operation == "pow" and 0 < number(term.args[1]) < 1


def saturated(file: File, term: Term, framework: str) -> Found:
    """Return the finding about ``log(1 - tanh(x)**2)``."""
    text = file.text(term.node)
    why = f"`{text}` is -inf where tanh rounds to 1, from 9 on in float32: its slope is NaN"
    return Found("SO003", term.node, why, term.node, framework, term)


def clip_found(
    file: File, term: Term, framework: str, end: float | None, *, is_angle: bool
) -> Found:
    """Return the finding about a clip, or about an angle without a clip."""
    text = file.text(term.node)
    if end is None:
        why = f"rounding takes the argument of `{text}` beyond 1, where there is NaN"
    else:
        why = f"`{text}` clips at {end:g}, where the slope is infinite: the gradient is inf or NaN"
    numbers = dict.fromkeys(term.atoms, 1.0 if end is None else end)
    cure = "the angle is 2 * atan2(|a/|a| - b/|b||, |a/|a| + b/|b||)" if is_angle else ""
    rule = "SO010" if is_angle else "SO003"
    return Found(rule, term.node, why, term.node, framework, term, numbers, cure)


def is_of_schedule(term: Term) -> bool:
    """Whether all names are those of a schedule: ``sigma_next**2 - sigma**2``."""
    return all(SCHEDULE.search(name.split("@")[0].split()[0]) for name in term.atoms)


def is_sech2(term: Term) -> bool:
    """Whether a term is ``1 - tanh(x)**2``."""
    if term.operation != "sub" or number(term.args[0]) != 1 or not is_square(term.args[1]):
        return False
    return term.args[1].args[0].operation == "tanh"


def is_trace(term: Term) -> bool:
    """Whether a term is the cosine of a rotation's angle: ``(trace - 1) / 2``."""
    if term.operation == "mul":
        halves = [x for x, y in (term.args, term.args[::-1]) if number(y) == HALF]
    else:
        halves = [term.args[0]] if term.operation == "div" and number(term.args[1]) == 2 else []  # noqa: PLR2004  (a half)
    return any(x.operation == "sub" and number(x.args[1]) == 1 for x in halves)


def clip_at(term: Term, low: float, high: float) -> float | None:
    """Return where a term is clipped at an end of a domain, before it is scaled; None if not."""
    word, args = term.operation, term.args
    if (line := line_of(term)) is not None:
        x, a, b = line
        return clip_at(x, *sorted(((low - b) / a, (high - b) / a)))
    if word == "clip":
        least, most = number(args[1]), number(args[2])
        inside = bounds(args[0])
        if low - CLOSE <= least <= low + tolerance(low) and inside.low <= low:
            return low
        at_high = math.isfinite(high) and abs(most - high) <= CLOSE and inside.high >= high
        return high if at_high else None
    if word == "relu" and term.framework == "tensorflow" and low == 0:
        return low  # its kernel multiplies the slope by 0, where others select
    if word == "maximum":
        for x, y in (args, args[::-1]):
            if number(x) == low and bounds(y).low <= low and not bounds(y).is_positive:
                return low
    return None


def line_of(term: Term) -> tuple[Term, float, float] | None:
    """Return x, a and b of ``a * x + b``; None if a term is none."""
    word, args = term.operation, term.args
    if word == "neg":
        return args[0], -1.0, 0.0
    if word not in {"add", "sub", "mul", "div"}:
        return None
    x, y = number(args[0]), number(args[1])
    if math.isfinite(y):
        lines = {"add": (1.0, y), "sub": (1.0, -y), "mul": (y, 0.0)}
        a, b = (1 / y if y else 0.0, 0.0) if word == "div" else lines[word]
        return (args[0], a, b) if a else None
    if math.isfinite(x) and word != "div":
        a, b = {"add": (1.0, x), "sub": (-1.0, x), "mul": (x, 0.0)}[word]
        return (args[1], a, b) if a else None
    return None


def tolerance(end: float) -> float:
    """Return the distance to an end below which float32 rounds to the end."""
    return CLOSE if end else 0.0


def unclipped(term: Term) -> Term:
    """Return the term inside clips."""
    while term.operation in {"clip", "maximum", "minimum"}:
        term = max(term.args, key=lambda x: len(x.every))
    return term


def is_dot(term: Term) -> bool:
    """Whether a term is a dot product, perhaps divided by lengths."""
    word, args = term.operation, term.args
    if word == "div":
        return is_dot(args[0])
    if word == "sum":
        return args[0].operation == "mul" and args[0].args[0].key != args[0].args[1].key
    return word in DOTS

"""SO003, SO010: an argument at the end of a domain, or beyond it by rounding."""

import math
from collections.abc import Iterator

from safeops._core.operations import ENDS
from safeops._lint.found import File, Found
from safeops._lint.heuristics import SCHEDULE
from safeops._lint.shapes import is_square, number
from safeops._lint.terms import Term, spelling
from safeops._lint.values import bounds

CLOSE = 3e-8  # float32 rounds 1 - CLOSE to 1
DOTS = frozenset({"dot", "matmul", "inner", "vdot", "cosine_similarity", "einsum"})
ANGLE = "the angle is 2 * atan2(|a/|a| - b/|b||, |a/|a| + b/|b||)"
CLIPS = frozenset({"clip", "maximum", "minimum"})


def clipped(file: File) -> Iterator[Found]:
    """SO003, SO010: ``sqrt(clip(x, 0))``; ``acos(clip(dot, -1, 1))``; ``log(1 - tanh(x)**2)``."""
    for term in file.terms(*ENDS, "pow"):
        # The slope of a power between 0 and 1 is infinite at 0 as that of a root.
        is_power = term.operation == "pow"
        if is_power and not 0 < number(term.args[1]) < 1:
            continue
        word, text = "sqrt" if is_power else term.operation, file.brief(term.node)
        inner, core = term.args[0], unclipped(term.args[0])
        end = clip_at(inner, *ENDS[word])
        is_of_trace = line_of(core)[1:] == (0.5, -0.5)  # the cosine of a rotation: (trace - 1) / 2
        is_angle = word == "acos" and (is_dot(core) or is_of_trace)
        if word == "log" and is_sech2(core):
            why = f"`{text}` is -inf where tanh rounds to 1, from 9 on in float32: its slope is NaN"
            end = None
        elif end is not None:
            at = f"`{text}` clips at {end:g}"
            why = f"{at}, where the slope is infinite: the gradient is inf or NaN"
        elif is_angle and inner.operation not in CLIPS:
            why, end = f"rounding takes the argument of `{text}` beyond 1, where there is NaN", 1.0
        else:
            continue
        is_schedule = all(SCHEDULE.search(spelling(name)) for name in term.atoms)
        if file.is_live(term.node, term) and not is_schedule:
            rule, cure = ("SO010", ANGLE) if is_angle else ("SO003", "")
            numbers = {} if end is None else dict.fromkeys(term.atoms, end)
            yield Found(rule, term.node, why, term.node, term, numbers, cure)


def is_sech2(term: Term) -> bool:
    """Whether a term is ``1 - tanh(x)**2``."""
    is_rest = term.operation == "sub" and number(term.args[0]) == 1 and is_square(term.args[1])
    return is_rest and term.args[1].args[0].operation == "tanh"


def clip_at(term: Term, low: float, high: float) -> float | None:
    """Return where a term is clipped at an end of a domain, before it is scaled; None if not."""
    x, a, b = line_of(term)
    low, high = sorted(((low - b) / a, (high - b) / a))
    word, args = x.operation, x.args
    if is_square(x) and 0 < high < math.inf:  # sqrt(1 - clip(x, -1, 1)**2)
        return clip_at(args[-1] if word == "mul" else args[0], -math.sqrt(high), math.sqrt(high))
    if word == "clip":
        least, most, inside = number(args[1]), number(args[2]), bounds(args[0])
        if low - CLOSE <= least <= low + (CLOSE if low else 0.0) and inside.low <= low:
            return low
        is_at_high = math.isfinite(high) and abs(most - high) <= CLOSE and inside.high >= high
        return high if is_at_high else None
    if word == "maximum":
        others = [bounds(y) for end, y in (args, args[::-1]) if number(end) == low]
        return low if any(x.low <= low and not x.is_positive for x in others) else None
    # The kernel of TensorFlow multiplies the slope of `relu` by 0, where others select.
    return low if word == "relu" and x.framework == "tensorflow" and low == 0 else None


def line_of(term: Term) -> tuple[Term, float, float]:
    """Return x, a and b of ``a * x + b``, where a is not 0."""
    word, args = term.operation, term.args
    if word == "neg":
        return scaled(args[0], -1.0, 0.0)
    if word not in {"add", "sub", "mul", "div"}:
        return term, 1.0, 0.0
    x, y = (number(z) or math.nan for z in args)
    with_y = {"add": (1.0, y), "sub": (1.0, -y), "mul": (y, 0.0), "div": (1 / y, 0.0)}[word]
    with_x = {"add": (1.0, x), "sub": (-1.0, x), "mul": (x, 0.0)}.get(word, (0.0, 0.0))
    for inner, (a, b) in ((args[0], with_y), (args[1], with_x)):
        if a and math.isfinite(a) and math.isfinite(b):
            return scaled(inner, a, b)
    return term, 1.0, 0.0


def scaled(term: Term, a: float, b: float) -> tuple[Term, float, float]:
    """Return the line that a line of a term is."""
    x, c, d = line_of(term)
    return (x, a * c, a * d + b) if a * c else (term, a, b)


def unclipped(term: Term) -> Term:
    """Return the term inside clips."""
    while term.operation in CLIPS:
        term = max(term.args, key=lambda x: len(x.every))
    return term


def is_dot(term: Term) -> bool:
    """Whether a term is a dot product, perhaps divided by lengths."""
    word, args = term.operation, term.args
    if word == "sum":
        return args[0].operation == "mul" and args[0].args[0].key != args[0].args[1].key
    return word in DOTS or (word == "div" and is_dot(args[0]))

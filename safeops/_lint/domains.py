"""SO002, SO003, SO008, SO010, SO011: an argument at the end of a domain, or close to it."""

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterator

from safeops._core.operations import ENDS
from safeops._lint.found import File, Found, zeros
from safeops._lint.heuristics import CONSTANTS, SAFE, SCHEDULE, WINDOW
from safeops._lint.probes import causes_of
from safeops._lint.terms import Term, spelling
from safeops._lint.values import STEEP, bounds, is_square, length_of, number
from safeops._source.edits import last_word

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


UNITS = frozenset({"diag_embed", "diagflat", "eye", "identity", "ones", "ones_like", "new_ones"})


def padded(file: File) -> Iterator[Found]:
    """SO002: ``v / (norm(v) + eps)``."""
    for term in file.terms("div"):
        length = padded_length(term.args[1])
        if length is not None and file.is_live(term.node, length):
            why = (
                f"the eps saves the value where `{file.brief(length.node)}` is 0, and not the "
                "gradient: the slope of the length is not finite there"
            )
            yield Found("SO002", length.node, why, term.node, length, zeros(length))


def padded_length(term: Term) -> Term | None:
    """Return the length, or the deviation, in ``length + eps``, ``maximum(length, eps)``."""
    pairs = (
        (term.args[:2], term.args[1::-1]) if term.operation in {"add", "maximum", "clip"} else ()
    )
    small = (x for x, y in pairs if 0 < number(y) < 1)
    # A deviation has no slope where all entries are equal.
    lengths = (x for x in small if length_of(x) or (x.operation == "std" and x.framework in STEEP))
    return next(lengths, None)


def rooted(file: File) -> Iterator[Found]:
    """SO008: ``sqrt(sum(x**2))``; the norm of the differences of points with themselves."""
    for term in file.terms("sqrt", "pow", "norm"):
        inside = length_of(term)
        if inside is None or not file.is_live(term.node, term) or is_of_constants(inside):
            continue
        is_between = is_pairwise(inside)
        if term.operation == "norm" and not is_between:
            continue
        if not any(is_written_unit(file, x.node) for x in inside.every):
            where = "the two points are one" if is_between else "all that it sums up is 0"
            why = f"the slope of `{file.brief(term.node)}` is not finite where {where}"
            yield Found("SO008", term.node, why, term.node, term, zeros(term))


def normalised(file: File) -> Iterator[Found]:
    """SO008: ``n / norm(n)`` of a cross product, or of the differences of points."""
    for term in file.terms("div"):
        v, length = term.args
        inside = length.args[0] if length.operation == "norm" else length_of(length)
        while inside is not None and inside.operation in {"sum", "pow", "square", "mul"}:
            inside = inside.args[0]
        is_cross = v.operation == "cross"
        if inside is None or inside.key != v.key or not (is_cross or is_pairwise(v)):
            continue
        if file.is_live(term.node, term):
            case = "two vectors are parallel" if is_cross else "the two points are one"
            why = f"`{file.brief(term.node)}` is 0 / 0 where {case}"
            yield Found("SO008", term.node, why, term.node, term, zeros(length))


def is_of_constants(term: Term) -> bool:
    """Whether the names are those of constants that are squared: ``sigma**2 + noise_level**2``."""
    arrays = [spelling(x.name) for x in term.every if x.operation == "atom"]
    is_window = bool(arrays) and all(map(WINDOW.search, arrays))
    names = list(map(spelling, term.atoms))
    return is_window or any(SAFE.search(x) or CONSTANTS.search(x) for x in names)


def is_written_unit(file: File, node: ast.expr) -> bool:
    """Whether a name is an array that begins with ones, such as `eye`, and is written in part."""
    scope = file.definitions.get(file.scope_of(node), {})
    every = scope.get(node.id, []) if isinstance(node, ast.Name) else []
    made = [x.value for x in every if x.value is not None]
    targets = (y for x in every for y in getattr(x.statement, "targets", ()))
    is_written = any(isinstance(x, ast.Subscript) for x in targets)
    return is_written and len(made) == 1 and last_word(made[0]) in UNITS


def is_pairwise(term: Term) -> bool:
    """Whether a term contains differences between the rows of an array: ``x[:, None] - x``."""
    return any(x.operation == "sub" and x.args[0].key == x.args[1].key for x in term.every)


# The smallest number above 0, and the distance from 1 to the next number below.
HALVES = {"float16": (2.0**-24, 2.0**-11), "bfloat16": (2.0**-133, 2.0**-8)}
WORDS = {"half": "float16", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
WORDS |= {x: x for x in (*HALVES, "double", "float", "float32", "float64")}
# Calls that make, convert or choose a dtype; a dtype elsewhere may only be asked for.
SETTERS = re.compile(
    r"^(as_?tensor|asarray|array|astype|autocast|cast|constant|empty|full|normal|ones|Policy|rand\w*|"
    r"set_default_dtype|set_(global_)?policy|set_dtype_policy|tensor|to|type|uniform|Variable|"
    r"zeros)(_like)?$"
)
SINGULAR = (*ENDS, "div", "pow", "reciprocal")
# Operations whose result autocast of PyTorch leaves in float32.
IN_FLOAT32 = frozenset(
    """
    acos asin cdist cosine_similarity cosh cross_entropy cumsum div exp expm1 log log10 log1p log2
    log_softmax logsumexp norm pow prod reciprocal rsqrt sinh softmax sum tan
    """.split()  # noqa: SIM905  (names read best in a row)
)
CURE = "take an eps from finfo of the dtype, or a safe operation, which needs none"


def vanished(file: File) -> Iterator[Found]:
    """SO011: ``log(x + 1e-12)`` in float16; ``log(1 - clip(p, 1e-6, 1 - 1e-6))`` in bfloat16."""
    dtypes = dtypes_of(file)
    if set().union(*dtypes.values()).isdisjoint(HALVES):
        return
    for term in file.terms(*SINGULAR):
        homes = [file.tree, *filter(is_home, file.above(term.node))]
        named = set().union(*(dtypes.get(x, ()) for x in homes))
        # Where a float32 stands beside it, which of the two is meant is unknown.
        dtype = max(named) if named and named <= HALVES.keys() else ""
        if dtype and file.is_live(term.node, term):
            for part, said in lost_in(causes_of(term)[0], dtype):
                yield Found("SO011", part.node, said, part.node, cure=CURE)


def lost_in(term: Term, dtype: str) -> Iterator[tuple[Term, str]]:
    """Yield the numbers inside an operand that a dtype does not have, and what becomes of them."""
    smallest, below = HALVES[dtype]
    for outer in term.every:
        is_sum = outer.operation == "add"
        is_wide = any(x.operation in IN_FLOAT32 for x in outer.args)
        if outer.operation not in {"maximum", "minimum", "clip"} and not (
            is_sum and outer is term and not is_wide
        ):
            continue
        for part in outer.args:
            is_guess = any(isinstance(x, ast.Name) for x in ast.walk(part.node))
            number, text = None if is_guess else part.value, ast.unparse(part.node)
            if number is not None and 0 < number <= smallest / 2:
                yield part, f"`{text}` is 0 in {dtype}, whose smallest number is {smallest:.1g}"
            elif number is not None and not is_sum and 0 < 1 - number <= below / 2:
                last = f"{1 - below:.4g}"
                yield part, f"`{text}` is 1 in {dtype}, whose last number below 1 is {last}"


def is_home(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def dtypes_of(file: File) -> dict[ast.AST, set[str]]:
    """Return the dtypes that each function, and the module outside of them, sets."""
    found: dict[ast.AST, set[str]] = defaultdict(set)
    for node in file.order:
        if isinstance(node, ast.Call) and (set_here := dtypes_set(node)):
            found[next(filter(is_home, file.above(node)), file.tree)] |= set_here
    return found


def dtypes_set(call: ast.Call) -> set[str]:
    word = last_word(call)
    if word in {"half", "bfloat16", "float", "double"} and isinstance(call.func, ast.Attribute):
        return {WORDS[word]}
    if not SETTERS.search(word):
        return set()
    given = [*call.args, *(k.value for k in call.keywords)]
    words = [getattr(x, "attr", getattr(x, "value", "")) for x in given]
    found = {WORDS[x] for x in words if isinstance(x, str) and x in WORDS}
    if word == "autocast" and not found:
        is_off = any(getattr(x, "value", True) is False for x in given)
        return {"float32" if is_off else "float16"}
    return found

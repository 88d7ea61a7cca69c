"""The ten rules: each yields the places of a file that have its pattern."""

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from safeops._lint.bounds import bounds
from safeops._lint.guards import Guards
from safeops._lint.masks import is_never_empty, last_word
from safeops._lint.names import DIFFERENTIATED, Names
from safeops._lint.probes import Hit, asks_by_value, first_bad, hit, is_safe
from safeops._lint.scopes import Scopes
from safeops._lint.shapes import (
    CLOSE,
    ENDS,
    is_mask,
    is_named_mask,
    is_root,
    length_of,
    number,
)
from safeops._lint.terms import TRUTH, Reader, Term

TITLES = {
    "SO001": "where-drops-singular-branch",
    "SO002": "eps-after-the-norm",
    "SO003": "clip-at-the-singular-point",
    "SO004": "nan-to-num-hides-the-slope",
    "SO005": "mask-times-infinity",
    "SO006": "division-by-empty-mask",
    "SO007": "softmax-of-empty-row",
    "SO008": "root-of-a-zero-length",
    "SO009": "guard-that-nan-passes",
    "SO010": "acos-of-a-dot-product",
}


@dataclass(eq=False)
class Found:
    """A place where a rule holds: the fault, its reason, and its cure."""

    rule: str
    node: ast.expr  # where the caret stands
    why: str
    whole: ast.expr  # the expression that has the fault
    framework: str
    culprit: Term | None = None  # the operation that a safe operation can replace
    numbers: dict[str, float] = field(default_factory=dict)  # the point at which it fails, by atom
    cure: str = ""  # in words, if there is no edit
    selection: ast.Call | None = None  # the `where` that `safe_where` can replace
    filled: Term | None = None  # the value that a selection fills in


class File:
    """A file as the rules see it."""

    def __init__(self, tree: ast.Module, differentiated: frozenset[str] = DIFFERENTIATED) -> None:
        """Read the names and assignments of a file."""
        self.tree, self.differentiated = tree, differentiated
        self._hits: dict[tuple[object, ...], tuple[int, dict[str, float]] | None] = {}
        self.names = Names(self.scopes.order)

    @cached_property
    def scopes(self) -> Scopes:
        """The assignments of the file, read on first use."""
        return Scopes(self.tree)

    @cached_property
    def reader(self) -> Reader:
        """The reader of expressions."""
        return Reader(self.names, self.scopes, self.differentiated)

    @cached_property
    def guards(self) -> Guards:
        """The context of expressions."""
        return Guards(self.names, self.scopes, self.reader.called, self.differentiated)

    @cached_property
    def expressions(self) -> list[ast.expr]:
        """All expressions that a rule may concern, outer ones first."""
        kinds = ast.Call | ast.BinOp | ast.Subscript
        every = (node for node in self.scopes.order if isinstance(node, kinds))
        return [x for x in every if not isinstance(getattr(x, "ctx", None), ast.Store)]

    def terms(self, *operations: str) -> Iterator[Term]:
        """Yield the terms of these operations, anywhere in the file."""
        for term in self.every_term:
            if term.operation in operations:
                yield term

    @cached_property
    def every_term(self) -> list[Term]:
        """The terms of all expressions that are differentiated."""
        return [term for node in self.expressions for term in self._term(node)]

    def _term(self, node: ast.expr) -> Iterator[Term]:
        term = self.reader.term(node)
        if term.node is node and term.operation not in {"atom", "constant"}:
            yield term

    def framework(self, *terms: Term) -> str:
        """Return the framework of the operations in terms; "" if these are not differentiated."""
        named = [part.framework for term in terms for part in term.every if part.framework]
        found = [x for x in named if x in self.differentiated]
        if found:
            return found[0]
        home = self.names.home
        return home if home in self.differentiated and not named and self.names.frameworks else ""

    def is_live(self, node: ast.AST, *terms: Term) -> bool:
        """Whether an expression is differentiated, and no `if` tests its operands."""
        nodes = [node, *(term.node for term in terms)]
        if any(term.is_plain for term in terms) or not all(map(self.guards.has_gradient, nodes)):
            return False
        words = self.guards.words_of(*terms)
        return not any(self.guards.is_asked(one, words) for one in nodes)

    def hit(self, *terms: Term) -> Hit | None:
        """Return the fault of a selection; copies of one are computed once."""
        every = [part for term in terms for part in term.every]
        kinds = ((x.framework, x.is_plain) for x in every)
        key = (*(x.key for x in terms), *kinds)
        if key not in self._hits:
            found = hit(*terms)
            place = next((i for i, x in enumerate(every) if found and x is found.culprit), 0)
            self._hits[key] = None if found is None else (place, found.numbers)
        known = self._hits[key]
        return None if known is None else Hit(every[known[0]], known[1])

    def text(self, node: ast.AST) -> str:
        """Return the source of an expression, on one line and shortened."""
        text = " ".join(ast.unparse(node).split())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


LONGEST = 48  # characters of an expression in a message
Rule = Callable[[File], Iterator[Found]]


def at(file: File, culprit: Term, numbers: dict[str, float]) -> str:
    """Return the point at which an operation fails, in words: ``x = 0``."""
    shown = []
    for name, atom in culprit.atoms.items():
        if name in numbers and not atom.is_plain:
            where = file.text(atom.node)
            shown.append(f"{where} = {numbers[name]:g}")
    return " and ".join(shown[:2])


# SO001 and SO004: a selection drops entries that have no finite slope.


def selections(file: File) -> Iterator[tuple[Term, Term, Term, Term]]:
    """Yield each selection as (itself, condition, case if true, case if false)."""
    for term in file.terms("where", "index"):
        if term.operation == "where":
            yield (term, *term.args)  # type: ignore[misc]  # three of them
        else:
            x, mask = term.args
            yield term, mask, x, file.reader.zero(term.node)
    yield from assignments(file)


def assignments(file: File) -> Iterator[tuple[Term, Term, Term, Term]]:
    """Yield each ``y[cond] = number``."""
    for node in file.scopes.order:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
            continue
        target = node.targets[0]
        if not isinstance(target.value, ast.Name):
            continue
        term, cond = file.reader.term(target.value), file.reader.term(target.slice)
        if cond.operation not in TRUTH:
            continue
        other = file.reader.term(node.value)
        yield term, cond, other, term


def dropped(file: File) -> Iterator[Found]:
    """SO001, SO004: ``where(x > 0, log(x), 0)``; ``where(isnan(y), 0, y)``."""
    for whole, cond, taken, other in selections(file):
        framework = file.framework(whole, taken, other)
        if not framework:
            continue
        found = file.hit(cond, taken, other)
        if found is None or not file.is_live(whole.node, found.culprit):
            continue
        if file.framework(found.culprit) or not found.culprit.framework:
            put = taken if found.culprit in other.every else other
            yield from drop(file, framework, (whole, cond, put), found)


def drop(
    file: File, framework: str, selection: tuple[Term, Term, Term], found: Hit
) -> Iterator[Found]:
    """Yield a finding if a selection drops entries that have no finite slope."""
    whole, cond, put = selection
    culprit, numbers = found
    if NAN.search(ast.unparse(whole.node)):  # it marks missing values
        return
    text = file.text(culprit.node)
    why = (
        f"line {whole.node.lineno} drops `{text}` at {at(file, culprit, numbers)}, but not its "
        "slope, which is not finite there: 0 times that is NaN in the gradient"
    )
    call = whole.node if isinstance(whole.node, ast.Call) else None
    rule = "SO004" if asks_by_value(cond) else "SO001"
    one = Found(rule, culprit.node, why, whole.node, framework, culprit, numbers)
    one.selection, one.filled = call, put
    yield one


NAN = re.compile(r"\bnan\b", re.IGNORECASE)


def replaced(file: File) -> Iterator[Found]:
    """SO004: ``nan_to_num(x / y)``."""
    for term in file.terms("nan_to_num"):
        framework = file.framework(term)
        if not framework:
            continue
        found = first_bad(term.args[0])
        if found is None or not file.is_live(term.node, found.culprit):
            continue
        text = file.text(found.culprit.node)
        why = (
            f"nan_to_num mends the value of `{text}` at {at(file, *found)}, and not its slope: "
            "the gradient stays NaN"
        )
        yield Found("SO004", found.culprit.node, why, term.node, framework, *found)


# SO005: 0 times infinity.


def multiplied(file: File) -> Iterator[Found]:
    """SO005: ``mask * log(x)``."""
    for term in file.terms("mul"):
        for mask, other in (term.args, term.args[::-1]):
            framework = file.framework(term)
            if not framework or not is_mask(mask) or is_mask(other):
                continue
            zero = file.reader.zero(term.node)
            found = log_of(other) if is_named_mask(mask) else file.hit(mask, other, zero)
            if found is None or not file.is_live(term.node, found.culprit):
                continue
            text = file.text(found.culprit.node)
            why = (
                f"the mask leaves `{text}` in at {at(file, *found)}: 0 times infinity is NaN, in "
                "the gradient if not in the value"
            )
            yield Found("SO005", found.culprit.node, why, term.node, framework, *found)


def log_of(term: Term) -> Hit | None:
    """Return where a logarithm is infinite, if the term is a logarithm of one array."""
    inner = term
    while inner.operation in {"neg", "mul"}:
        inner = next((x for x in inner.args if x.operation.startswith("log")), inner.args[-1])
    if inner.operation not in {"log", "log2", "log10"} or inner.args[0].operation != "atom":
        return None
    return first_bad(inner)


# SO002, SO008: lengths.


def padded(file: File) -> Iterator[Found]:
    """SO002: ``v / (norm(v) + eps)``."""
    for term in file.terms("div"):
        length = padded_length(term.args[1])
        framework = file.framework(term) if length else ""
        if length is None or not framework or not file.is_live(term.node, length):
            continue
        why = (
            f"the eps saves the value where `{file.text(length.node)}` is 0, and not the gradient: "
            "the slope of the length is not finite there"
        )
        yield Found("SO002", length.node, why, term.node, framework, length, zeros(length))


def padded_length(term: Term) -> Term | None:
    """Return the length in ``length + eps``, ``maximum(length, eps)``."""
    if term.operation not in {"add", "maximum", "clip"}:
        return None
    for x, y in (term.args[:2], term.args[1::-1]):
        if 0 < number(y) < 1 and (length_of(x) is not None or is_deviation(x)):
            return x
    return None


def is_deviation(term: Term) -> bool:
    """Whether a term is a deviation, which has no slope where all entries are equal."""
    return term.operation == "std" and term.framework in {"jax", "tensorflow", "keras", "xp"}


def zeros(term: Term) -> dict[str, float]:
    """Return 0 for every atom."""
    return dict.fromkeys(term.atoms, 0.0)


def rooted(file: File) -> Iterator[Found]:
    """SO008: ``sqrt(sum(x**2))``; the norm of the differences of points with themselves."""
    for term in file.terms("sqrt", "pow", "norm"):
        inside = length_of(term)
        framework = file.framework(term) if inside is not None else ""
        if inside is None or not framework or not file.is_live(term.node, term):
            continue
        if (term.operation == "norm" and not is_pairwise(inside)) or is_of_constants(inside):
            continue
        if any(is_written_unit(file, x.node) for x in inside.every):
            continue
        where = "the two points are one" if is_pairwise(inside) else "all that it sums up is 0"
        why = f"the slope of `{file.text(term.node)}` is not finite where {where}"
        yield Found("SO008", term.node, why, term.node, framework, term, zeros(term))


def is_of_constants(term: Term) -> bool:
    """Whether the names are those of constants that are squared: ``sigma**2 + noise_level**2``."""
    arrays = [x.name.split("@")[0] for x in term.every if x.operation == "atom"]
    if arrays and all(WINDOW.search(name) for name in arrays):
        return True
    return any(
        is_safe(name) or CONSTANTS.search(name.split("@")[0].split()[0]) for name in term.atoms
    )


CONSTANTS = re.compile(r"(^|_|\.)(sigma|noise|scale|std|var|radius|h|w)s?(_\w+)?$", re.IGNORECASE)


def is_written_unit(file: File, node: ast.expr) -> bool:
    """Whether a name is an array that begins with ones, such as `eye`, and is written in part."""
    if not isinstance(node, ast.Name):
        return False
    every = file.scopes.definitions.get(file.scopes.scope_of(node), {}).get(node.id, [])
    made = [x.value for x in every if x.value is not None]
    is_written = any(
        isinstance(target, ast.Subscript)
        for x in every
        if isinstance(x.statement, ast.Assign)
        for target in x.statement.targets
    )
    return is_written and len(made) == 1 and last_word(made[0]) in UNITS


UNITS = frozenset({"diag_embed", "diagflat", "eye", "identity", "ones", "ones_like", "new_ones"})


WINDOW = re.compile(r"(^|_|\.)windows?$")


def is_of_schedule(term: Term) -> bool:
    """Whether all names are those of a schedule: ``sigma_next**2 - sigma**2``."""
    return all(SCHEDULE.search(name.split("@")[0].split()[0]) for name in term.atoms)


SCHEDULE = re.compile(r"(^|_|\.)(alpha|beta|sigma)s?(_|$)", re.IGNORECASE)


def is_pairwise(term: Term) -> bool:
    """Whether a term contains differences between the rows of an array: ``x[:, None] - x``."""
    return any(x.operation == "sub" and x.args[0].key == x.args[1].key for x in term.every)


# SO003, SO010: a clip exactly at the end of a domain.


def clipped(file: File) -> Iterator[Found]:
    """SO003, SO010: ``sqrt(clip(x, 0))``; ``acos(clip(dot, -1, 1))``."""
    for term in file.terms(*ENDS, "pow"):
        word = "sqrt" if is_root(term) else term.operation
        framework = file.framework(term) if word in ENDS else ""
        if not framework:
            continue
        inner = term.args[0]
        end = clip_at(inner, *ENDS[word])
        is_angle = word == "acos" and is_dot(unclipped(inner))
        unbounded = is_angle and inner.operation not in {"clip", "maximum", "minimum"}
        if (end is None and not unbounded) or not file.is_live(term.node, term):
            continue
        if is_of_schedule(term):
            continue
        yield clip_found(file, term, framework, end, is_angle=is_angle)


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


def clip_at(term: Term, low: float, high: float) -> float | None:
    """Return the end of a domain at which a term is clipped; None if it is not."""
    word, args = term.operation, term.args
    if word == "clip":
        least, most = number(args[1]), number(args[2])
        inside = bounds(args[0])
        if low - CLOSE <= least <= low + tolerance(low) and inside.low <= low:
            return low
        at_high = math.isfinite(high) and abs(most - high) <= CLOSE and inside.high >= high
        return high if at_high else None
    if word == "maximum":
        for x, y in (args, args[::-1]):
            if number(x) == low and bounds(y).low <= low and not bounds(y).is_positive:
                return low
    return None


def tolerance(end: float) -> float:
    """Return the distance to an end below which float32 rounds to the end."""
    return CLOSE if end else 0.0


def unclipped(term: Term) -> Term:
    """Return the term inside clips."""
    while term.operation in {"clip", "maximum", "minimum"}:
        term = max(term.args, key=lambda x: len(x.every))
    return term


DOTS = frozenset({"dot", "matmul", "inner", "vdot", "cosine_similarity", "einsum"})


def is_dot(term: Term) -> bool:
    """Whether a term is a dot product, perhaps divided by lengths."""
    word, args = term.operation, term.args
    if word == "div":
        return is_dot(args[0])
    if word == "sum":
        return args[0].operation == "mul" and args[0].args[0].key != args[0].args[1].key
    return word in DOTS


# SO006, SO007: a mask that keeps nothing.


def averaged(file: File) -> Iterator[Found]:
    """SO006: ``sum(loss * mask) / mask.sum()``."""
    for term in file.terms("div"):
        total = term.args[1]
        if total.operation not in {"sum", "mean"} or not is_mask(total.args[0]):
            continue
        if term.args[0].key == total.args[0].key:  # it normalises weights
            continue
        if is_never_empty(file.scopes, file.guards, total.args[0]) or is_of_nan(file, term.node):
            continue
        framework = file.framework(term)
        if not framework or not file.guards.has_gradient(term.node):
            continue
        if term.args[0].is_plain or is_accuracy(term.args[0]):
            continue
        words = file.guards.words_of(total)
        if file.guards.is_asked(term.node, words) or file.guards.is_asked(total.node, words):
            continue
        text = file.text(total.node)
        why = f"`{text}` is 0 where the mask keeps nothing: 0 / 0 is NaN"
        yield Found("SO006", term.node, why, term.node, framework, term, zeros(total))


def is_accuracy(term: Term) -> bool:
    """Whether a term counts what is equal and kept: ``((p == y) * mask).sum()``."""
    return is_count(term) and any(x.operation == "eq" for x in term.every)


def is_count(term: Term) -> bool:
    """Whether a term is made of constants and masks."""
    if term.operation in TRUTH or not term.args:
        return term.is_plain or is_named_mask(term)
    return all(map(is_count, term.args))


def is_of_nan(file: File, node: ast.AST) -> bool:
    """Whether a function such as `nanmean` is NaN for an empty slice, as in NumPy."""
    functions = (x for x in file.scopes.around(node) if isinstance(x, ast.FunctionDef))
    return any(x.name.startswith("nan") for x in functions)


def emptied(file: File) -> Iterator[Found]:
    """SO007: ``softmax(masked_fill(x, mask, -inf))``; the sum of two masks of ``finfo.min``."""
    for term in file.terms("softmax", "log_softmax"):
        framework = file.framework(term)
        inner = term.args[0]
        if not framework or is_mended(file, term.node):
            continue
        mask = mask_of_infinity(inner)
        if mask is not None and not is_never_empty(file.scopes, file.guards, mask):
            text = file.text(mask.node)
            why = f"a row that `{text}` leaves out as a whole is all -inf, and its softmax is NaN"
        elif len(minimum_masks(inner)) > 1:
            why = "the sum of two masks of finfo.min is -inf: a row of these has the softmax NaN"
        else:
            continue
        if not file.guards.is_asked(term.node, file.guards.words_of(inner) - {"float"}):
            yield Found("SO007", term.node, why, term.node, framework, term)


def mask_of_infinity(term: Term) -> Term | None:
    """Return the mask that puts -inf into the argument of a softmax."""
    if term.operation == "where":
        cond, x, y = term.args
        return cond if -math.inf in {number(x), number(y)} else None
    if term.operation in {"add", "sub", "mul", "div", "if"}:
        return next((m for x in term.args if (m := mask_of_infinity(x)) is not None), None)
    return None


def minimum_masks(term: Term) -> list[Term]:
    """Return the masks filled with the least number that a term adds up."""
    if term.operation == "add":
        return [mask for x in term.args for mask in minimum_masks(x)]
    least = any(number(x) <= LEAST for x in term.every)
    return [term] if least and term.operation in {"where", "mul"} else []


LEAST = -1e38


def is_mended(file: File, node: ast.expr) -> bool:
    """Whether the result of a softmax goes directly through a selection."""
    parent = file.scopes.parents[node]
    while isinstance(parent, ast.Attribute | ast.Call):
        if last_word(parent) in MENDS:
            return True
        parent = file.scopes.parents[parent]
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    uses = file.guards.uses(parent.targets[0], parent)[:MOST_USES]
    return any(
        isinstance(x, ast.Call) and last_word(x) in MENDS
        for use in uses
        for x in file.scopes.up_to_statement(use)
    )


MOST_USES = 20  # uses of a name that are looked at
MENDS = frozenset({"nan_to_num", "masked_fill", "where", "nan_to_num_", "masked_fill_"})


# SO009: a comparison with NaN is False.


def passed(file: File) -> Iterator[Found]:
    """SO009: ``if norm <= tol: raise``."""
    for node in file.scopes.order:
        if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Raise):
            continue
        for test in ast.walk(node.test):
            if is_refused(file, test):
                continue
            if isinstance(test, ast.Compare) and is_small_guard(file, test):
                why = f"NaN passes `{file.text(test)}`: every comparison with NaN is False"
                found = Found("SO009", test, why, test, file.names.home)
                found.cure = "ask for what is right: `if not norm > tol`"
                yield found


def is_refused(file: File, test: ast.AST) -> bool:
    """Whether a comparison is negated: ``not (error < tol).all()`` is true for NaN too."""
    around = (x for x in file.scopes.around(test) if isinstance(x, ast.UnaryOp))
    return any(isinstance(x.op, ast.Not | ast.Invert) for x in around)


def is_small_guard(file: File, test: ast.Compare) -> bool:
    """Whether a comparison tests if an entry of an array is small."""
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Lt | ast.LtE):
        return False
    left, right = file.reader.term(test.left), file.reader.term(test.comparators[0])
    if not 0 < number(right) <= SMALL or left.value is not None:
        return False
    used = {part.framework for part in left.every if part.framework}
    return bool(used & {*file.differentiated, "numpy"}) and left.operation in LENGTHS


SMALL = 1e-2
LENGTHS = frozenset({"norm", "abs", "sqrt", "max", "min", "sum", "mean", "div", "sub"})

RULES: tuple[Rule, ...] = (
    dropped,
    replaced,
    multiplied,
    padded,
    clipped,
    rooted,
    averaged,
    emptied,
    passed,
)


def check(file: File) -> list[Found]:
    """Return the findings of the rules, one for each place, in the order of the text."""
    found: dict[tuple[int, int], Found] = {}
    for rule in RULES:
        for one in rule(file):
            found.setdefault((one.node.lineno, one.node.col_offset), one)
    return [found[key] for key in sorted(found)]

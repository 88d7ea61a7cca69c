"""Which function of safeops computes a whole expression: a table of patterns, and the matching."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import permutations
from typing import NamedTuple, TypeAlias

from safeops._source.edits import Page, Rewriting, last_word, named, operands, root
from safeops._source.names import NAMED

# A capital stands for an expression, the same one wherever it stands, and `**O` for the options
# axis and keepdims. Functions, squares, roots, limits from below and options match in all their
# spellings, sums and products in any order. The first pattern that matches is the answer.
PATTERNS = """
log(cosh(X)) == log_cosh(X)
log((exp(X) + exp(-X)) / 2) == log_cosh(X)
log((exp(X) + exp(-X)) * 0.5) == log_cosh(X)
log(sinh(X) / X) == log_sinhc(X)
log(1 - tanh(X)**2) == log_sech2(X)
log1p(-tanh(X)**2) == log_sech2(X)
log(1 - exp(-X)) == log1mexp(X)
log1p(-exp(-X)) == log1mexp(X)
log(-expm1(-X)) == log1mexp(X)
log(expm1(X)) == log_expm1(X)
log(exp(X) - 1) == log_expm1(X)
logsumexp(X + log(W), **O) == safe_logsumexp(X, **O, b=W)
exp(sum(log(X), **O)) == safe_prod(X, **O)
exp(sum(log1p(-X), **O)) == safe_prod(1 - X, **O)
exp(sum(log1p(X), **O)) == safe_prod(1 + X, **O)
sqrt(sum(X**2, **O)) == safe_norm(X, **O)
sqrt(mean(X**2, **O)) == safe_rms(X, **O)
sqrt(X**2 + Y**2) == safe_hypot(X, Y)
sqrt(maximum(X, 0)) == safe_sqrt(X)
X / norm(X) == safe_normalize(X, axis=None)
X / norm(X, keepdims=True) == safe_normalize(X, axis=None)
X / norm(X, axis=A, keepdims=True) == safe_normalize(X, axis=A)
l2_normalize(X, axis=A) == safe_normalize(X, axis=A)
F.normalize(X) == safe_normalize(X, axis=1)
F.normalize(X, axis=A) == safe_normalize(X, axis=A)
F.normalize(X, ord=2, axis=A) == safe_normalize(X, axis=A)
F.cosine_similarity(X, Y) == safe_cosine_similarity(X, Y, axis=1)
F.cosine_similarity(X, Y, axis=A) == safe_cosine_similarity(X, Y, axis=A)
sum(X * Y) / (norm(X) * norm(Y)) == safe_cosine_similarity(X, Y, axis=None)
sum(X * Y, **O) / (norm(X, **O) * norm(Y, **O)) == safe_cosine_similarity(X, Y, **O)
(X - mean(X)) / np.std(X) == safe_standardize(X)
(X - mean(X)) / torch.std(X) == safe_standardize(X, correction=1)
((X - mean(X, axis=A, keepdims=True)) / np.std(X, axis=A, keepdims=True)
 == safe_standardize(X, axis=A))
((X - mean(X, axis=A, keepdims=True)) / torch.std(X, axis=A, keepdims=True)
 == safe_standardize(X, axis=A, correction=1))
"""
# Functions that are not finite wherever what they replace is dropped: at 0, or at a weight 0.
STEEP = frozenset({"log1mexp", "log_expm1", "safe_logsumexp"})
REST = "**"  # the keyword of `**O`

# Options by their names in safeops, and their order among the arguments; all frameworks agree.
OPTIONS = {"dim": "axis", "keepdim": "keepdims", "p": "ord"}
OPTIONS |= {x: x for x in ("axis", "keepdims", "ord", REST)}
ORDER = {
    "F_cosine_similarity": ("axis",),
    "F_normalize": ("ord", "axis"),
    "l2_normalize": ("axis",),
    "log_softmax": ("axis",),
    "logsumexp": ("axis",),
    "mean": ("axis", "keepdims"),
    "norm": ("ord", "axis", "keepdims"),
    "sample_std": ("axis",),
    "softmax": ("axis",),
    "std": ("axis",),
    "sum": ("axis", "keepdims"),
}
COMMUTES = frozenset({"add", "maximum", "mul"})

Options: TypeAlias = dict[str, ast.expr]


class Bound(NamedTuple):
    """What stands for each capital and for `**O`, and all expressions that do so."""

    parts: Mapping[str, ast.expr]
    options: Options | None
    every: tuple[ast.expr, ...]


NOTHING = Bound({}, None, ())


class Pattern(NamedTuple):
    """An expression with capitals, the function of safeops, and the call that takes its place."""

    tree: ast.expr
    name: str
    call: str


class Whole(NamedTuple):
    """An expression to replace, the function of safeops, and the new source."""

    node: ast.expr
    name: str
    change: Rewriting


class Form(NamedTuple):
    """An operation in its usual spelling: its word, operands and options."""

    word: str
    args: Sequence[ast.expr]
    options: Options


@cache
def patterns() -> tuple[Page, dict[str, list[Pattern]]]:
    """Return the table by the outermost operations, and the page that it stands on."""
    page = Page(tuple(PATTERNS.splitlines(keepends=True)), ast.parse(PATTERNS))
    for call in (x for x in page.expressions if isinstance(x, ast.Call)):
        for keyword in call.keywords:
            keyword.arg = keyword.arg or REST
    found: dict[str, list[Pattern]] = defaultdict(list)
    for row in (x for x in page.expressions if isinstance(x, ast.Compare)):
        text, form = page.text(row.comparators[0]), form_of(page, row.left)
        found[form.word if form else ""].append(Pattern(row.left, text.partition("(")[0], text))
    return page, found


def whole_of(page: Page, node: ast.expr, *, is_dropped: bool) -> Whole | None:
    """Return the innermost whole that an operation is a part of, not as an operand, if any."""
    around = (x for x in page.around(node) if isinstance(x, ast.expr))
    for whole in (node, *around):
        form = form_of(page, whole)
        for pattern in patterns()[1].get(form.word, ()) if form else ():
            if is_dropped and pattern.name in STEEP:
                continue
            for bound in matches(page, pattern.tree, whole, NOTHING):
                if not any(part is node for x in bound.every for part in ast.walk(x)):
                    return Whole(whole, pattern.name, partial(written, pattern.call, bound))
    return None


def matches(page: Page, pattern: ast.expr, node: ast.expr, bound: Bound) -> Iterator[Bound]:
    """Yield what the capitals of a pattern may stand for in an expression."""
    if isinstance(pattern, ast.Name):
        known = bound.parts.get(pattern.id, node)
        if page.text(known) == page.text(node):
            parts = {**bound.parts, pattern.id: known}
            yield bound._replace(parts=parts, every=(*bound.every, node))
        return
    if isinstance(pattern, ast.Constant):
        if isinstance(node, ast.Constant) and node.value == pattern.value:
            yield bound
        return
    wanted, given = form_of(patterns()[0], pattern), form_of(page, node)
    if wanted is None or given is None or not wanted.word == given.word != "":
        return
    if len(wanted.args) == len(given.args):
        for args in permutations(given.args) if given.word in COMMUTES else (given.args,):
            for found in each_matches(page, wanted.args, args, bound):
                yield from options_match(page, wanted.options, given.options, found)


def each_matches(
    page: Page, wanted: Sequence[ast.expr], given: Sequence[ast.expr], bound: Bound
) -> Iterator[Bound]:
    """Yield what the capitals of several patterns may stand for in as many expressions."""
    if not wanted:
        yield bound
        return
    for found in matches(page, wanted[0], given[0], bound):
        yield from each_matches(page, wanted[1:], given[1:], found)


def options_match(page: Page, wanted: Options, given: Options, bound: Bound) -> Iterator[Bound]:
    """Yield what the capitals of options may stand for."""
    if REST in wanted:
        alike = bound.options is None or texts_of(page, bound.options) == texts_of(page, given)
        if alike and set(given) <= {"axis", "keepdims"}:
            yield bound._replace(options=given, every=(*bound.every, *given.values()))
    elif set(wanted) == set(given):
        yield from each_matches(page, list(wanted.values()), [given[x] for x in wanted], bound)


def texts_of(page: Page, options: Options) -> dict[str, str]:
    """Return the source of options."""
    return {name: page.text(x) for name, x in options.items()}


def form_of(page: Page, node: ast.expr) -> Form | None:
    """Return an operation in its usual spelling; None for all else."""
    if node not in page.forms:
        page.forms[node] = _form_of(page, node)
    return page.forms[node]


def _form_of(page: Page, node: ast.expr) -> Form | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return Form("neg", [node.operand], {})
    parts = operands(page, node)
    if parts is None:
        return None
    args, keywords = parts
    if isinstance(node, ast.BinOp):
        word = "add" if isinstance(node.op, ast.Add) else named(node)
    else:
        word = word_of(node, keywords)
    if word in ORDER:
        count = 2 if word == "F_cosine_similarity" else 1
        options = options_of(word, args[count:], keywords)
        return None if options is None else Form(word, args[:count], options)
    return plain_form(page, Form(word, args, keywords))


def plain_form(page: Page, form: Form) -> Form:
    """Return squares, roots and limits from below as such, in whatever way they are written."""
    word, args, options = form
    if word in {"clamp_min", "clip"}:
        limits = dict(zip(("min", "max"), args[1:], strict=False))
        limits |= {name.removeprefix("a_"): x for name, x in options.items()}
        given = {name: x for name, x in limits.items() if getattr(x, "value", x) is not None}
        return Form("maximum", [args[0], given["min"]], {}) if set(given) == {"min"} else form
    if len(args) != 2 or options:  # noqa: PLR2004  (a base and an exponent, or two factors)
        return form
    exponent = getattr(args[1], "value", None) if isinstance(args[1], ast.Constant) else None
    if word == "pow" and exponent in {2, 0.5}:
        return Form({2: "square", 0.5: "sqrt"}[exponent], args[:1], {})
    is_square = word == "mul" and page.text(args[0]) == page.text(args[1])
    return Form("square", args[:1], {}) if is_square else form


def word_of(node: ast.expr, keywords: Options) -> str:
    """Return the word of a call: functions of one name differ between modules."""
    name, function = named(node), getattr(node, "func", node)
    row = NAMED.get(name)
    word = name if row is None else row.word
    if word in {"cosine_similarity", "normalize"}:  # of `torch.nn.functional`, with its defaults
        module = last_word(getattr(function, "value", function))
        return f"F_{word}" if module in {"F", "functional"} else word
    return spread_of(root(function), keywords) if word == "std" else word


def spread_of(module: str, keywords: Options) -> str:
    """Return which standard deviation a call is, or "" where nobody can say by its source."""
    ways = [keywords.pop(x) for x in ("ddof", "correction", "unbiased") if x in keywords]
    if ways:  # 0 or False, 1 or True
        number = getattr(ways[0], "value", None)
        return "std" if number == 0 else "sample_std" if number == 1 else ""
    if module == "torch" or {"dim", "keepdim"} & set(keywords):
        return "sample_std"
    return "std" if module in {"jnp", "np", "numpy", "tf"} else ""  # PyTorch takes axis= too


def options_of(
    word: str, args: Sequence[ast.expr], keywords: Options
) -> dict[str, ast.expr] | None:
    """Return options by their names in safeops; None if one of them has no such name."""
    order = ORDER[word]
    if len(args) > len(order) or not set(keywords) <= set(OPTIONS):
        return None
    found = dict(zip(order, args, strict=False)) | {OPTIONS[k]: x for k, x in keywords.items()}
    words = [x for x in found.values() if isinstance(x, ast.Constant) and isinstance(x.value, str)]
    return None if words else found  # ord="fro"


def written(call: str, bound: Bound, render: Callable[[ast.expr], str]) -> str:
    """Return a call with what its capitals stand for."""

    def put(found: re.Match[str]) -> str:
        before, name = found.groups()
        if before.endswith("**"):
            given = bound.options or {}
            return "".join(f", {option}={render(x)}" for option, x in given.items())
        x = bound.parts[name]
        bare = before[0] not in "+-" or isinstance(x, (ast.Call, ast.Name, ast.Subscript))
        return before + (render(x) if bare else f"({render(x)})")

    return re.sub(r"(\(|, \*\*|, |=|[-+] )([A-Z])\b", put, call)

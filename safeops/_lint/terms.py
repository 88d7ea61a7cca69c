"""Terms: an expression as a tree of operations, with the same names for all frameworks."""

import ast
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise

from safeops._core.operations import CONSTANTS, FULL, OPERATIONS, PLAIN, REDUCTIONS, SAME, TRUTH
from safeops._lint.heuristics import MASK, PLAIN_NAMES, SMALL
from safeops._lint.names import NO_GRADIENT, Called, Definition, Names, mentions
from safeops._source.edits import Assignment, last_word, root

DEEPEST = 200  # expressions in expressions and names; what is deeper is an atom
LARGEST = 120  # operations that a name may stand for; beyond that it is an atom
BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "logical_and",
    ast.BitOr: "logical_or",
}
COMPARISONS = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
UNARY = {ast.USub: "neg", ast.Not: "logical_not", ast.Invert: "logical_not"}
# Attributes of finfo, about as large as in float32.
LIMITS = {"tiny": 1.2e-38, "smallest_normal": 1.2e-38, "eps": 1e-7, "max": 3e38, "min": -3e38}
OPTION = 1.7  # the value of a parameter that is a float by its annotation
EPSILON = 1e-6  # the value of a name such as eps
ASPECTS = frozenset({"shape", "ndim", "size", "data", "device", "dtype"})  # of an array
WORDS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": 0.0}
WORDS |= {"Inf": math.inf, "infty": math.inf, "NaN": math.nan}


@dataclass(eq=False)
class Term:
    """An operation on terms, a constant, or an atom (an unknown value)."""

    operation: str
    args: tuple["Term", ...]
    node: ast.expr
    framework: str = ""
    value: float | None = None  # the number of a constant
    identity: Callable[[ast.expr], str] = ast.unparse  # makes the name of an atom on demand
    is_plain: bool = False  # has no gradient
    options: dict[str, ast.expr] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        return self.identity(self.node) if self.operation == "atom" else ""

    @cached_property
    def key(self) -> str:
        """A key that is the same for terms of the same value."""
        if self.operation == "atom":
            return self.name
        if self.operation == "constant":
            return repr(self.value)
        options = "".join(f", {k}={ast.unparse(x)}" for k, x in sorted(self.options.items()))
        return f"{self.operation}({', '.join(x.key for x in self.args)}{options})"

    @cached_property
    def every(self) -> list["Term"]:
        """The term and all its parts, outer ones first."""
        found, stack = [], [self]
        while stack:
            term = stack.pop()
            found.append(term)
            stack += reversed(term.args)
        return found

    @cached_property
    def atoms(self) -> dict[str, "Term"]:
        """The atoms by name; reductions count as atoms."""
        if self.operation == "atom" or self.operation in REDUCTIONS:
            return {self.key: self}
        return {name: x for part in self.args for name, x in part.atoms.items()}


def spelling(name: str) -> str:
    """Return the source of an atom, up to its first space, from its name."""
    return re.split("[@ ]", name, maxsplit=1)[0]


# Sums over the entries with the same index; functions called `scatter` are so with an option.
SEGMENTS = frozenset({"segment_sum", "unsorted_segment_sum", "scatter_sum"})
SCATTERS = frozenset({"scatter", "segment"})


class Reader(Names):
    """Reads the expressions of a file as terms."""

    def __init__(
        self, lines: tuple[str, ...], tree: ast.Module, differentiated: frozenset[str]
    ) -> None:
        """Read with the frameworks whose functions have a gradient."""
        super().__init__(lines, tree)
        self.differentiated = differentiated
        self.aliases: dict[int, set[str]] = {}  # the names that stand for a term, by its identity
        self._terms: dict[int, Term] = {}
        self._depth = 0  # of the expression that is being read

    def term(self, node: ast.expr) -> Term:
        """Return the term of an expression."""
        found = self._terms.get(id(node))
        if found is None:
            # Unknown while it is being read: a name may stand for itself, as in `a, b = b, a`.
            self._terms[id(node)] = found = self._atom(node)
            read = getattr(self, f"_{type(node).__name__.lower()}", None)
            if read is not None and self._depth < DEEPEST:
                self._depth += 1
                self._terms[id(node)] = found = read(node) or found
                self._depth -= 1
        return found

    def _atom(self, node: ast.expr, *, is_plain: bool = False) -> Term:
        return Term("atom", (), node, identity=self._identity, is_plain=is_plain)

    def _identity(self, node: ast.expr) -> str:
        """Return the source of an expression; each name has the line of its assignment."""
        if isinstance(node, ast.Name):
            found = self.definition_of(node)
            return node.id if found is None else f"{node.id}@{self.order.get(found.statement, 0)}"
        names = sorted({self._identity(x) for x in ast.walk(node) if isinstance(x, ast.Name)})
        return f"{ast.unparse(node)} {' '.join(names)}"

    def number(self, node: ast.expr, value: float) -> Term:
        return Term("constant", (), node, value=value, is_plain=True)

    def _operation(
        self,
        node: ast.expr,
        word: str,
        args: Iterable[Term],
        framework: str = "",
        options: Mapping[str, ast.expr] | None = None,
    ) -> Term:
        args = tuple(args)
        plain = word in TRUTH or (bool(args) and all(x.is_plain for x in args))
        plain = plain or (bool(framework) and framework not in self.differentiated)
        return Term(word, args, node, framework, is_plain=plain, options=dict(options or {}))

    def _constant(self, node: ast.Constant) -> Term | None:
        is_number = isinstance(node.value, int | float)
        return self.number(node, _float(node.value)) if is_number else None

    def _name(self, node: ast.Name) -> Term | None:
        name, found = node.id, self.definition_of(node)
        word = self.full(node).rpartition(".")[2]
        if found is None and word in WORDS:
            return self.number(node, WORDS[word])
        if found is not None and found.is_number and self.home != "jax":
            return self.number(node, OPTION)
        if found is not None and found.value is not None and not self._is_constant(found):
            term = self.term(found.value)
            if (term.operation != "atom" and len(term.every) <= LARGEST) or term.is_plain:
                self.aliases.setdefault(id(term), set()).add(name)
                return term
        elif SMALL.search(name):
            return self.number(node, EPSILON)
        return self._atom(node, is_plain=found is not None and self._is_plain(found))

    def _is_constant(self, found: Definition) -> bool:
        """Whether the assignment of a name has no gradient: in no_grad, or a part of a constant."""
        if not isinstance(found.statement, ast.Assign):
            return False
        is_part = found.value is None and isinstance(found.statement.targets[0], ast.Tuple)
        blocks = (x for x in self.above(found.statement) if isinstance(x, ast.With))
        return any(map(is_without_gradient, blocks)) or (
            is_part and self.term(found.statement.value).is_plain
        )

    def _is_plain(self, found: Definition) -> bool:
        """Whether every value that a name may have has no gradient."""
        if found.is_plain or PLAIN_NAMES.search(found.name) or self._is_constant(found):
            return True
        values = [self.term(x) for x in found.perhaps]
        return bool(values) and all(x.is_plain for x in values)

    def _attribute(self, node: ast.Attribute) -> Term | None:
        word, full, given = node.attr, self.full(node), self._given(node)
        if given is not None:
            return self.term(given)
        if word in WORDS and (full or root(node) == "math"):
            return self.number(node, WORDS[word])
        if last_word(node.value) == "finfo":
            return self.number(node, LIMITS[word]) if word in LIMITS else None
        if SMALL.search(word) or full:  # a constant of a module: np.euler_gamma
            return self.number(node, EPSILON if SMALL.search(word) else OPTION)
        if word in {"T", "mT", "real"}:
            return self.term(node.value)
        return self._atom(node, is_plain=bool(PLAIN_NAMES.search(word)) or word in ASPECTS)

    @cached_property
    def _members(self) -> dict[tuple[ast.AST | None, str], list[ast.expr]]:
        """What a class assigns to each attribute of ``self``."""
        found: dict[tuple[ast.AST | None, str], list[ast.expr]] = defaultdict(list)
        for node in self.order:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            if isinstance(node, Assignment) and root(targets[0]) == "self" and node.value:
                found[self._class_of(node), last_word(targets[0])].append(node.value)
        return found

    def _class_of(self, node: ast.AST) -> ast.AST | None:
        return next((x for x in self.above(node) if isinstance(x, ast.ClassDef)), None)

    def _given(self, node: ast.Attribute) -> ast.expr | None:
        """Return the parameter, a number, that an attribute of ``self`` is and nothing else."""
        values = self._members.get((self._class_of(node), node.attr), ())
        one = values[0] if len(values) == 1 and root(node) == "self" else None
        found = self.definition_of(one) if isinstance(one, ast.Name) else None
        return one if found is not None and found.is_number else None

    def _subscript(self, node: ast.Subscript) -> Term | None:
        array, index = self.term(node.value), self.term(node.slice)
        if _is_view(node.slice):
            return array
        if index.operation in TRUTH and not array.is_plain:
            return self._operation(node, "index", (array, index))
        return self._atom(node, is_plain=array.is_plain)

    def _binop(self, node: ast.BinOp) -> Term | None:
        word, parts = BINARY.get(type(node.op)), [self.term(node.left), self.term(node.right)]
        if word is None:  # `//` has no gradient, and `%` none of constants
            is_flat = isinstance(node.op, ast.FloorDiv) or all(x.is_plain for x in parts)
            return self._atom(node, is_plain=is_flat)
        numbers = [x.value for x in parts if x.value is not None]
        if len(numbers) == len(parts) and word not in TRUTH:
            return self.number(node, OPERATIONS[word].at(*numbers))
        return self._operation(node, word, parts)

    def _unaryop(self, node: ast.UnaryOp) -> Term | None:
        word, part = UNARY.get(type(node.op)), self.term(node.operand)
        if word == "neg" and part.value is not None:
            return self.number(node, -part.value)
        return part if word is None else self._operation(node, word, [part])

    def _all(self, node: ast.expr, word: str, terms: Iterable[Term]) -> Term:
        """Return the terms, joined by a logical operation."""
        return reduce(lambda x, y: self._operation(node, word, (x, y)), terms)

    def _compare(self, node: ast.Compare) -> Term | None:
        if not all(type(op) in COMPARISONS for op in node.ops):
            return self._atom(node, is_plain=True)
        pairs = pairwise([self.term(x) for x in (node.left, *node.comparators)])
        words = [COMPARISONS[type(op)] for op in node.ops]
        each = [self._operation(node, *one) for one in zip(words, pairs, strict=True)]
        return self._all(node, "logical_and", each)

    def _boolop(self, node: ast.BoolOp) -> Term | None:
        word = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return self._all(node, word, map(self.term, node.values))

    def _ifexp(self, node: ast.IfExp) -> Term | None:
        return self._operation(node, "if", map(self.term, (node.test, node.body, node.orelse)))

    def _namedexpr(self, node: ast.NamedExpr) -> Term | None:
        return self.term(node.value)

    def _tuple(self, node: ast.Tuple | ast.List) -> Term:
        """Return the term of a list of arrays; a constant if all of these are."""
        return self._atom(node, is_plain=all(self.term(x).is_plain for x in node.elts))

    _list = _tuple

    def _call(self, node: ast.Call) -> Term | None:
        called = self.called(node)
        if called is None:
            return self._set_at(node) or self._loss(node) or self._other(node)
        word, framework, args, _ = called
        if word == "requires_grad" or any(map(_is_option, node.keywords)):
            return self._atom(node)
        literal = [x.value for x in args[:1] if word == "float" and isinstance(x, ast.Constant)]
        if word in CONSTANTS or literal:
            return self.number(node, CONSTANTS[word] if word in CONSTANTS else _float(literal[0]))
        if word in FULL and len(args) > FULL[word]:
            return self.term(args[FULL[word]])
        if framework == "numpy" and "numpy" not in self.differentiated:
            return self._known(node, called) or self._atom(node, is_plain=True)
        return self._of_array(node, called)

    def _of_array(self, node: ast.Call, called: Called) -> Term | None:
        """Return the term of a call of a framework with gradients, or of a builtin function."""
        word, args = called.operation, called.args
        if word in PLAIN or _is_integer(called) or "rounding_mode" in called.options:
            return self._atom(node, is_plain=True)
        if word in SAME and args:
            return self.term(args[0])
        is_number = called.framework == "python" and word not in {"abs", "pow"}
        return (None if is_number else self._known(node, called)) or self._other(node)

    def _other(self, node: ast.Call) -> Term:
        word, full = last_word(node), self.full(node.func)
        is_function = isinstance(node.func, ast.Name) or bool(full)
        is_sum = word.startswith(("scatter", "segment", "unsorted_segment"))
        if is_function and is_sum and node.args:
            return self._segments(node, word)  # the method `x.scatter_add_` begins with an axis
        is_number = ".random." in f".{full}" or root(node.func) == "math" or word in PLAIN
        is_number = is_number or word.endswith("meshgrid") or word.startswith("is_")
        return self._atom(node, is_plain=is_number or self._is_of_constants(node))

    def _segments(self, node: ast.Call, word: str) -> Term:
        """Return the term of sums over the entries with the same index, as a reduction."""
        array, reductions = self.term(node.args[0]), (x for x in node.keywords if x.arg == "reduce")
        is_added = any(getattr(x.value, "value", "") in {"add", "sum"} for x in reductions)
        if array.is_plain or not (word in SEGMENTS or (is_added and word in SCATTERS)):
            return self._atom(node, is_plain=array.is_plain)
        options = {f"#{i}": x for i, x in enumerate(node.args[1:])}
        return self._operation(node, "segment", [array], options=options)

    def _is_of_constants(self, node: ast.Call) -> bool:
        """Whether a call takes only values without gradient."""
        given = [*node.args, *(k.value for k in node.keywords)]
        if isinstance(node.func, ast.Attribute) and not self.full(node.func):
            given = [node.func.value, *given]
        if last_word(node)[:1].isupper() or any(map(_is_option, node.keywords)):
            return False  # a class; its objects may have parameters
        texts = [isinstance(getattr(x, "value", 0), str | bytes | None) for x in given]
        given = [x for x, is_text in zip(given, texts, strict=True) if not is_text]
        return bool(given) and all(self.term(x).is_plain for x in given)

    def _known(self, node: ast.Call, called: Called) -> Term | None:
        word, args = called.operation, called.args
        if word not in ORDERS:
            return None
        is_method = isinstance(node.func, ast.Attribute) and not self.full(node.func)
        if word == "where" and is_method and called.framework == "torch" and len(args) == 3:  # noqa: PLR2004  (x, cond, y)
            args = (args[1], args[0], args[2])
        if word == "where" and args and isinstance(args[0], ast.List):
            return self._choices(node, called)
        found = _in_order(ORDERS[word], args, called.options)
        if found is None:  # where(cond) returns indices
            return self._atom(node, is_plain=True) if word == "where" else None
        parts, rest = found
        terms = [self.number(node, math.nan) if x is None else self.term(x) for x in parts]
        if word == "masked_fill":
            word, terms = "where", [terms[1], terms[2], terms[0]]
        framework = "" if called.framework == "python" else called.framework
        return self._operation(node, PICKS.get(word, word), terms, framework, rest)

    def _choices(self, node: ast.Call, called: Called) -> Term | None:
        """Return ``select([cond, ...], [x, ...], y)`` as a `where` in a `where`."""
        conds, values, *last = (*called.args, *called.options.values())
        whole = self.term(last[0]) if last else self.number(node, 0.0)
        if not isinstance(conds, ast.List) or not isinstance(values, ast.List):
            return None
        for pair in zip(conds.elts[::-1], values.elts[::-1], strict=False):
            whole = self._operation(node, "where", (*map(self.term, pair), whole), called.framework)
        return whole

    @cached_property
    def losses(self) -> set[str]:
        """The names and attributes that are assigned a squared error: ``self.mse = MSELoss()``."""
        every = (x for x in self.order if isinstance(x, ast.Assign) and len(x.targets) == 1)
        return {ast.unparse(x.targets[0]) for x in every if last_word(x.value) == "MSELoss"}

    def _loss(self, node: ast.Call) -> Term | None:
        """Return the term of ``self.mse(x, y)`` after ``self.mse = nn.MSELoss()``."""
        if len(node.args) != 2 or ast.unparse(node.func) not in self.losses:  # noqa: PLR2004  (x and y)
            return None
        return self._operation(node, "mse_loss", map(self.term, node.args), "torch")

    def _set_at(self, node: ast.Call) -> Term | None:
        """Return ``x.at[cond].set(y)`` of JAX as ``where(cond, y, x)``."""
        f = node.func
        at = f.value if isinstance(f, ast.Attribute) and f.attr == "set" else None
        if not isinstance(at, ast.Subscript) or last_word(at.value) != "at" or len(node.args) != 1:
            return None
        array = at.value.value if isinstance(at.value, ast.Attribute) else at.value
        cond, *cases = map(self.term, (at.slice, node.args[0], array))
        if cond.operation not in TRUTH and not MASK.search(last_word(at.slice)):
            return None  # a place: `x.at[i].set(y / i)`
        return self._operation(node, "where", (cond, *cases), "jax")


def is_without_gradient(block: ast.With) -> bool:
    return any(mentions(x.context_expr, NO_GRADIENT) for x in block.items)


def _in_order(
    order: tuple[tuple[str, ...], ...], args: tuple[ast.expr, ...], options: Mapping[str, ast.expr]
) -> tuple[list[ast.expr | None], dict[str, ast.expr]] | None:
    """Return the array arguments in their order, and the other options."""
    rest = {f"#{i}": x for i, x in enumerate(args[len(order) :])} | dict(options)
    named = [next((rest.pop(x) for x in words if x in rest), None) for words in order]
    found = [*args, *named[len(args) :]][: len(order)]
    is_open = any(x is None and words[0] for x, words in zip(found, order, strict=True))
    return None if is_open else (found, rest)


PICKS = {"boolean_mask": "index", "masked_select": "index"}  # functions that are an index
X = ("x", "input", "a", "tensor", "input_tensor", "logits", "t", "value", "features")
Y = ("y", "other", "b", "x2")
ORDER = {1: (X,), 2: ((*X, "x1"), Y)}
ORDERS: dict[str, tuple[tuple[str, ...], ...]] = {
    **{word: ORDER[row.arrays] for word, row in OPERATIONS.items() if row.arrays},
    "where": (("condition", "cond", "pred"), ("x", "input", "self"), ("y", "other")),
    "masked_fill": (X, ("mask",), ("value", "fill_value")),
    **dict.fromkeys(PICKS, (X, ("mask",))),
    "clip": (
        X,
        ("", "min", "a_min", "clip_value_min", "x_min", "min_value"),
        ("", "max", "a_max", "clip_value_max", "x_max", "max_value"),
    ),
    "cosine_similarity": (("x1", "x"), ("x2", "y")),
}


def _is_integer(called: Called) -> bool:
    """Whether a call converts an array to integers."""
    if called.operation not in {"to", "astype", "cast", "type", "asarray", "tensor", "array"}:
        return False
    given = [*called.args[1:], *called.options.values()]
    return any(re.search(r"(^|\W)(u?int\d*|long|bool_?)\b", ast.unparse(x)) for x in given)


def _is_view(index: ast.expr) -> bool:
    """Whether an index keeps every entry: ``x[..., None]``."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(x, ast.Constant) and x.value in (None, ...))
        or (isinstance(x, ast.Slice) and x.lower is x.upper is x.step is None)
        or (isinstance(x, ast.Attribute) and x.attr == "newaxis")
        for x in parts
    )


def _is_option(option: ast.keyword) -> bool:
    """Whether an option may ask for a gradient."""
    is_off = isinstance(option.value, ast.Constant) and not option.value.value
    return option.arg is None or (option.arg == "requires_grad" and not is_off)


def _float(value: object) -> float:
    """Return a number, or the number in ``float("-inf")``."""
    try:
        return float(value)  # type: ignore[arg-type]  # a constant of the source
    except (TypeError, ValueError, OverflowError):
        return math.nan

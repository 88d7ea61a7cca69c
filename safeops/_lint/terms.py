"""Terms: an expression as a tree of operations, with the same names for all frameworks."""

import ast
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import add, mul, sub, truediv
from typing import TYPE_CHECKING, Any

from safeops._lint.heuristics import PLAIN_NAMES, SMALL
from safeops._lint.names import DIFFERENTIATED, Called, Names
from safeops._lint.operations import OPERATIONS, REDUCTIONS, TRUTH
from safeops._lint.scopes import Definition, Scopes, last_word
from safeops._source.edits import root

if TYPE_CHECKING:
    from collections.abc import Callable

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
# Operations that return their argument in another shape, dtype or place.
SAME = frozenset(
    """
    array asarray as_tensor astype broadcast_arrays broadcast_to cast clone constant contiguous
    convert_to_tensor copy cpu cuda double ensure_shape expand expand_as expand_dims flatten float
    float32 float64 half identity item moveaxis permute ravel repeat reshape
    scalar_tensor squeeze swapaxes tensor tile to transpose type type_as unsqueeze
    view view_as
    """.split()  # noqa: SIM905  (names read best in a row)
)
CONSTANTS = {"ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}
CONSTANTS |= {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0}
FULL = {"fill": 1, "full": 1, "full_like": 1, "new_full": 2}
# Operations without a gradient: counts, indices, booleans.
PLAIN = frozenset(
    """
    all any arange argmax argmin argsort argwhere bincount bool bucketize byte ceil colcount
    count_nonzero degree detach meshgrid digitize eye floor from_numpy int int32 int64 isin len
    linspace long nonzero numel numpy rowcount
    one_hot ones rand randint randn randn_like rand_like range rank rint round searchsorted
    shape sign size
    sorted stop_gradient tolist tril tril_indices triu triu_indices unique zeros zero_stop_gradient
    """.split()  # noqa: SIM905  (names read best in a row)
)
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
    identity: "Callable[[ast.expr], str] | None" = None  # makes the name of an atom on demand
    is_plain: bool = False  # has no gradient
    options: dict[str, ast.expr] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The name of an atom."""
        return "" if self.identity is None else self.identity(self.node)

    @cached_property
    def key(self) -> str:
        """A key that is the same for terms of the same value."""
        if self.operation == "atom":
            return self.name
        if self.operation == "constant":
            return repr(self.value)
        return f"{self.operation}({', '.join(x.key for x in self.args)}{self.extra})"

    @cached_property
    def extra(self) -> str:
        """The options in the key."""
        return "".join(f", {k}={ast.unparse(x)}" for k, x in sorted(self.options.items()))

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


# Sums over the entries with the same index; functions called `scatter` are so with an option.
SEGMENTS = frozenset({"segment_sum", "unsorted_segment_sum", "scatter_sum"})
SCATTERS = frozenset({"scatter", "segment"})


class Reader:
    """Reads expressions as terms."""

    def __init__(
        self, names: Names, scopes: Scopes, differentiated: frozenset[str] = DIFFERENTIATED
    ) -> None:
        """Read with the names and the assignments of one file."""
        self.names, self.scopes, self.differentiated = names, scopes, differentiated
        self.called: dict[int, set[str]] = {}  # the names that stand for a term, by its identity
        self._terms: dict[int, Term] = {}
        self._depth = 0  # of the expression that is being read
        self._by_type: dict[type, Callable[[Any], Term | None]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.Call: self._call,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Compare: self._compare,
            ast.BoolOp: self._both,
            ast.IfExp: self._if,
            ast.NamedExpr: self._named,
            ast.Tuple: self._several,
            ast.List: self._several,
        }

    def term(self, node: ast.expr) -> Term:
        """Return the term of an expression."""
        found = self._terms.get(id(node))
        if found is None:
            # Unknown while it is being read: a name may stand for itself, as in `a, b = b, a`.
            self._terms[id(node)] = found = self._atom(node)
            read = self._by_type.get(type(node)) if self._depth < DEEPEST else None
            if read is not None:
                self._depth += 1
                found = read(node) or found
                self._depth -= 1
            self._terms[id(node)] = found
        return found

    def zero(self, node: ast.expr) -> Term:
        """Return the constant 0."""
        return self._number(node, 0.0)

    def _atom(self, node: ast.expr, *, is_plain: bool = False) -> Term:
        return Term("atom", (), node, identity=self._identity, is_plain=is_plain)

    def _identity(self, node: ast.expr) -> str:
        """Return the source of an expression; each name has the line of its assignment."""
        if isinstance(node, ast.Name):
            found = self.scopes.definition_of(node)
            order = self.scopes.order
            return node.id if found is None else f"{node.id}@{order.get(found.statement, 0)}"
        names = sorted({self._identity(x) for x in ast.walk(node) if isinstance(x, ast.Name)})
        return f"{ast.unparse(node)} {' '.join(names)}"

    def _number(self, node: ast.expr, value: float) -> Term:
        return Term("constant", (), node, value=value, is_plain=True)

    def _constant(self, node: ast.Constant) -> Term | None:
        value = node.value
        if isinstance(value, int | float):
            return self._number(node, _float(value))
        return None

    def _name(self, node: ast.Name) -> Term | None:
        name, found = node.id, self.scopes.definition_of(node)
        word = self.names.full(node).rpartition(".")[2]
        if found is None and word in WORDS:
            return self._number(node, WORDS[word])
        if found is not None and found.is_number and self.names.home != "jax":
            return self._number(node, OPTION)
        if found is not None and found.value is not None and not self._is_constant(found):
            term = self.term(found.value)
            if (term.operation != "atom" and len(term.every) <= LARGEST) or term.is_plain:
                self.called.setdefault(id(term), set()).add(name)
                return term
        elif SMALL.search(name):
            return self._number(node, EPSILON)
        return self._atom(node, is_plain=found is not None and self._is_plain(found))

    def _is_constant(self, found: Definition) -> bool:
        """Whether the assignment of a name has no gradient: in no_grad, or a part of a constant."""
        if isinstance(found.statement, ast.Assign):
            return self.scopes.is_without_gradient(found.statement) or (
                found.value is None
                and isinstance(found.statement.targets[0], ast.Tuple)
                and self.term(found.statement.value).is_plain
            )
        return False

    def _is_plain(self, found: Definition) -> bool:
        """Whether every value that a name may have has no gradient."""
        if found.is_plain or PLAIN_NAMES.search(found.name) or self._is_constant(found):
            return True
        values = [self.term(x) for x in found.perhaps]
        return bool(values) and all(x.is_plain for x in values)

    def _attribute(self, node: ast.Attribute) -> Term | None:
        word = node.attr
        if word in WORDS and (self.names.full(node) or root(node) == "math"):
            return self._number(node, WORDS[word])
        if isinstance(node.value, ast.Call) and last_word(node.value.func) == "finfo":
            return self._number(node, LIMITS[word]) if word in LIMITS else None
        if SMALL.search(word):
            return self._number(node, EPSILON)
        if self.names.full(node):  # a constant of a module: np.euler_gamma
            return self._number(node, OPTION)
        if word in {"T", "mT", "real"}:
            return self.term(node.value)
        is_plain = bool(PLAIN_NAMES.search(word)) or word in ASPECTS
        return self._atom(node, is_plain=True) if is_plain else None

    def _subscript(self, node: ast.Subscript) -> Term | None:
        if _is_view(node.slice):
            return self.term(node.value)
        array = node.value
        if isinstance(array, ast.Attribute) and array.attr == "shape":
            return self._atom(node, is_plain=True)
        if self.term(array).is_plain:
            return self._atom(node, is_plain=True)
        index = self.term(node.slice)
        if index.operation in TRUTH:
            return self._operation(node, "index", (self.term(array), index))
        return None

    def _operation(
        self, node: ast.expr, operation: str, args: tuple[Term, ...], **more: object
    ) -> Term:
        plain = operation in TRUTH or (bool(args) and all(x.is_plain for x in args))
        return Term(operation, args, node, is_plain=plain, **more)  # type: ignore[arg-type]  # framework and options

    def _binary(self, node: ast.BinOp) -> Term | None:
        word = BINARY.get(type(node.op))
        if word is None:  # `//` has no gradient, and `%` none of constants
            parts = [self.term(x) for x in (node.left, node.right)]
            is_flat = isinstance(node.op, ast.FloorDiv) or all(x.is_plain for x in parts)
            return self._atom(node, is_plain=is_flat)
        args = (self.term(node.left), self.term(node.right))
        if (known := folded(node)) is not None:
            return self._number(node, known)
        return self._operation(node, word, args)

    def _unary(self, node: ast.UnaryOp) -> Term | None:
        word, part = UNARY.get(type(node.op)), self.term(node.operand)
        if word == "neg" and part.value is not None:
            return self._number(node, -part.value)
        return part if word is None else self._operation(node, word, (part,))

    def _compare(self, node: ast.Compare) -> Term | None:
        if not all(type(op) in COMPARISONS for op in node.ops):
            return self._atom(node, is_plain=True)
        sides = [self.term(x) for x in (node.left, *node.comparators)]
        words = [COMPARISONS[type(op)] for op in node.ops]
        whole, *others = (
            self._operation(node, word, pair)
            for word, pair in zip(words, pairwise(sides), strict=True)
        )
        for other in others:
            whole = self._operation(node, "logical_and", (whole, other))
        return whole

    def _both(self, node: ast.BoolOp) -> Term | None:
        word = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        whole, *others = (self.term(x) for x in node.values)
        for other in others:
            whole = self._operation(node, word, (whole, other))
        return whole

    def _if(self, node: ast.IfExp) -> Term | None:
        parts = tuple(self.term(x) for x in (node.test, node.body, node.orelse))
        return self._operation(node, "if", parts)

    def _named(self, node: ast.NamedExpr) -> Term | None:
        return self.term(node.value)

    def _several(self, node: ast.Tuple | ast.List) -> Term:
        """Return the term of a list of arrays; a constant if all of these are."""
        return self._atom(node, is_plain=all(self.term(x).is_plain for x in node.elts))

    def _call(self, node: ast.Call) -> Term | None:
        called = self.names.called(node)
        if called is None:
            return self._set_at(node) or self._loss(node) or self._other(node)
        if called.operation == "requires_grad_" or any(map(_is_option, node.keywords)):
            return self._atom(node)
        if (number := self._made(node, called)) is not None:
            return number
        if called.framework == "numpy" and "numpy" not in self.differentiated:
            return self._known(node, called) or self._atom(node, is_plain=True)
        return self._of_array(node, called)

    def _of_array(self, node: ast.Call, called: Called) -> Term | None:
        """Return the term of a call of a framework with gradients, or of a builtin function."""
        word, args = called.operation, called.args
        if word in PLAIN or _is_integer(called) or "rounding_mode" in called.options:
            return self._atom(node, is_plain=True)
        if word in SAME and args:
            return self.term(args[0])
        if called.framework == "python" and word not in {"abs", "pow"}:
            return self._other(node)
        return self._known(node, called) or self._other(node)

    def _made(self, node: ast.Call, called: Called) -> Term | None:
        """Return the number of an array that is made from one number."""
        word, args = called.operation, called.args
        if word in CONSTANTS:
            return self._number(node, CONSTANTS[word])
        if word in FULL and len(args) > FULL[word]:
            return self.term(args[FULL[word]])
        if word == "float" and args and isinstance(args[0], ast.Constant):
            return self._number(node, _float(args[0].value))
        return None

    def _other(self, node: ast.Call) -> Term:
        word = last_word(node.func)
        plain = word in PLAIN or word.endswith("meshgrid") or word.startswith("is_")
        plain = plain or ".random." in f".{self.names.full(node.func)}"
        is_function = isinstance(node.func, ast.Name) or bool(self.names.full(node.func))
        is_sum = word.startswith(("scatter", "segment", "unsorted_segment"))
        if is_function and is_sum and node.args:  # the method `x.scatter_add_` begins with an axis
            plain = self.term(node.args[0]).is_plain  # a sum of constants
        plain = plain or self._is_of_constants(node)
        if not plain and (whole := self._segments(node, word)) is not None:
            return whole
        return self._atom(node, is_plain=plain or root(node.func) == "math")

    def _segments(self, node: ast.Call, word: str) -> Term | None:
        """Return the term of sums over the entries with the same index, as a reduction."""
        is_sum = word in SEGMENTS or any(
            x.arg == "reduce" and getattr(x.value, "value", "") in {"add", "sum"}
            for x in node.keywords
        )
        is_function = isinstance(node.func, ast.Name) or bool(self.names.full(node.func))
        if not (is_sum and is_function and node.args and word in SEGMENTS | SCATTERS):
            return None
        options = {f"#{i}": x for i, x in enumerate(node.args[1:])}
        return self._operation(node, "segment", (self.term(node.args[0]),), options=options)

    def _is_of_constants(self, node: ast.Call) -> bool:
        """Whether a call takes only values without gradient."""
        given = [*node.args, *(k.value for k in node.keywords)]
        if isinstance(node.func, ast.Attribute) and not self.names.full(node.func):
            given = [node.func.value, *given]
        if last_word(node.func)[:1].isupper() or any(map(_is_option, node.keywords)):
            return False  # a class; its objects may have parameters
        given = [x for x in given if not _is_text(x)]
        return bool(given) and all(self.term(x).is_plain for x in given)

    def _known(self, node: ast.Call, called: Called) -> Term | None:
        word, args, options = called.operation, called.args, called.options
        order = ORDERS.get(word)
        if order is None:
            return None
        if word == "where" and isinstance(node.func, ast.Attribute):
            args = _where_args(called, args, self.names.full(node.func))
        found = _in_order(order, args, options)
        if found is None:  # where(cond) returns indices
            return self._atom(node, is_plain=True) if word == "where" else None
        parts, rest = found
        terms = tuple(self._number(node, math.nan) if x is None else self.term(x) for x in parts)
        more = {"framework": called.framework, "options": rest}
        if word == "masked_fill":
            word, terms = "where", (terms[1], terms[2], terms[0])
        found_term = self._operation(node, word, terms, **more)
        if called.framework not in self.differentiated:
            found_term.is_plain = True
        return found_term

    def _loss(self, node: ast.Call) -> Term | None:
        """Return the term of ``self.mse(x, y)`` after ``self.mse = nn.MSELoss()``."""
        if len(node.args) != 2 or ast.unparse(node.func) not in self.scopes.losses:  # noqa: PLR2004  (x and y)
            return None
        parts = tuple(map(self.term, node.args))
        return self._operation(node, "mse_loss", parts, framework="torch")

    def _set_at(self, node: ast.Call) -> Term | None:
        """Return ``x.at[cond].set(y)`` of JAX as ``where(cond, y, x)``."""
        f = node.func
        if not (isinstance(f, ast.Attribute) and f.attr == "set" and len(node.args) == 1):
            return None
        at = f.value
        if not (isinstance(at, ast.Subscript) and isinstance(at.value, ast.Attribute)):
            return None
        if at.value.attr != "at":
            return None
        cond = self.term(at.slice)
        parts = (cond, self.term(node.args[0]), self.term(at.value.value))
        return self._operation(node, "where", parts, framework="jax")


def _in_order(
    order: tuple[tuple[str, ...], ...], args: tuple[ast.expr, ...], options: dict[str, ast.expr]
) -> tuple[list[ast.expr | None], dict[str, ast.expr]] | None:
    """Return the array arguments in their order, and the other options."""
    rest = dict(options)
    found: list[ast.expr | None] = []
    for place, spellings in enumerate(order):
        optional = spellings[0] == ""
        given = next((rest.pop(word) for word in spellings if word in rest), None)
        if place < len(args):
            given = args[place]
        if given is None and not optional:
            return None
        found.append(given)
    for place, more in enumerate(args[len(order) :]):
        rest[f"#{place}"] = more
    return found, rest


X = ("x", "input", "a", "tensor", "input_tensor", "logits", "t", "value", "features")
Y = ("y", "other", "b", "x2")
ORDER = {1: (X,), 2: ((*X, "x1"), Y)}
ORDERS: dict[str, tuple[tuple[str, ...], ...]] = {
    **{word: ORDER[row.arrays] for word, row in OPERATIONS.items() if row.arrays},
    "where": (("condition", "cond", "pred"), ("x", "input", "self"), ("y", "other")),
    "masked_fill": (X, ("mask",), ("value", "fill_value")),
    "clip": (
        X,
        ("", "min", "a_min", "clip_value_min", "x_min", "min_value"),
        ("", "max", "a_max", "clip_value_max", "x_max", "max_value"),
    ),
    "cosine_similarity": (("x1", "x"), ("x2", "y")),
}


def _where_args(called: Called, args: tuple[ast.expr, ...], full: str) -> tuple[ast.expr, ...]:
    """Return (cond, x, y), for the method ``x.where(cond, y)`` too."""
    if not full and called.framework == "torch" and len(args) == 3:  # noqa: PLR2004  (x, cond, y)
        return (args[1], args[0], args[2])
    return args


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


def folded(node: ast.expr) -> float | None:
    """Return the number of arithmetic on literals, such as ``1 / 3``; None for all else."""
    if isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        return _float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = folded(node.operand)
        return None if inner is None else -inner
    if not isinstance(node, ast.BinOp) or type(node.op) not in FOLDED:
        return None
    left = folded(node.left)
    right = folded(node.right) if left is not None else None
    if left is None or right is None:
        return None
    try:
        return float(FOLDED[type(node.op)](left, right))
    except (ArithmeticError, ValueError, TypeError):  # a complex power too
        return None


FOLDED: dict[type[ast.operator], Any] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
    ast.Pow: pow,
}


def _is_option(option: ast.keyword) -> bool:
    """Whether an option may ask for a gradient."""
    is_off = isinstance(option.value, ast.Constant) and not option.value.value
    return option.arg is None or (option.arg == "requires_grad" and not is_off)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, int | float)


def _float(value: object) -> float:
    """Return a number, or the number in ``float("-inf")``."""
    try:
        return float(value)  # type: ignore[arg-type]  # a constant of the source
    except (TypeError, ValueError, OverflowError):
        return math.nan

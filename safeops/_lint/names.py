"""The names of a file: what a call means, and which value a name has where it is read."""

import ast
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from typing import NamedTuple

from safeops._core.operations import OPERATIONS
from safeops._lint.heuristics import SHAPE, SMALL
from safeops._source.edits import Page, last_word
from safeops._source.names import NAMED

# The first word of a module's name, and the framework whose functions it has.
FRAMEWORKS = {
    "autograd": "jax",  # HIPS autograd, whose functions JAX took over
    "jax": "jax",
    "keras": "keras",
    "numpy": "numpy",
    "scipy": "numpy",
    "tensorflow": "tensorflow",
    "tf_keras": "tensorflow",
    "torch": "torch",
    "xp": "xp",
}
DIFFERENTIATED = frozenset({"jax", "keras", "tensorflow", "torch", "xp"})
# Usual names of a namespace that is passed in.
NAMESPACES = {"xp": "xp", "xnp": "xp"}
# The one word for each operation: those of `explain`, and those that only lint needs.
WORDS = {name: row.word for name, row in NAMED.items()} | {
    name: word for word, row in OPERATIONS.items() for name in row.names.split()
}
# Methods of arrays that mean the function of the same name.
METHODS = frozenset(
    """
    abs absolute acos acosh add all amax amin any arccos arcsin arctanh asin astype atan2 atanh bool
    byte clamp clamp_max clamp_min clip clone contiguous cos cosh cpu cuda cumsum detach digamma div
    divide double eq erfinv exp expand expand_as expm1 flatten float ge greater gt half int isfinite
    isinf isnan item le lgamma log log10 log1p log2 logical_and logical_not logical_or logit
    logsumexp long lt masked_fill masked_select max maximum mean min minimum mul multiply nan_to_num
    nansum ne neg new_full new_ones new_zeros norm numpy permute pow power prod ravel reciprocal
    relu repeat requires_grad reshape rsqrt sigmoid sign sin sinh softmax sqrt square squeeze std
    sub sum tanh to tolist transpose true_divide type type_as unsqueeze var view view_as where
    """.split()  # noqa: SIM905  (names read best in a row)
)
BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "pow", "range", "round"})


class Called(NamedTuple):
    """A call: the operation, its framework, and its arguments, first the array of a method."""

    operation: str
    framework: str
    args: tuple[ast.expr, ...]
    options: dict[str, ast.expr]


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Scope = Function | Comprehension | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
BLOCKS = ("body", "orelse", "finalbody", "handlers")
# Statements with a block that may not run: its assignments are uncertain afterwards.
MAYBE = ast.If | Loop | ast.Try | ast.Match | ast.ExceptHandler
PLAIN = frozenset({"int", "bool", "float", "str"})  # Python numbers: they have no gradient
MANY = 50  # assignments of a name that are compared; with more it is unknown
NO_GRADIENT = ("no_grad", "inference_mode", "_no_grad")


@dataclass(eq=False)
class Definition:
    """A place where a name gets a value; `value` is None unless it is that of one expression."""

    name: str
    statement: ast.AST
    value: ast.expr | None = None
    is_plain: bool = False  # a Python number, by its annotation
    is_number: bool = False  # a float, by its annotation or its default
    perhaps: tuple[ast.expr, ...] = ()  # the values that it may have


class Names(Page):
    """The modules and functions that a file imports, and the assignments in it."""

    @cached_property
    def order(self) -> dict[ast.AST, int]:
        """The nodes, numbered in the order of the text; `parents` come with them."""
        found: dict[ast.AST, int] = {}
        self.parents = {}
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            found[node] = len(found)
            children = list(ast.iter_child_nodes(node))
            self.parents |= dict.fromkeys(children, node)
            stack += reversed(children)
        return found

    @cached_property
    def meant(self) -> dict[str, str]:
        """The full name of each imported name."""
        found = {}
        for node in self.order:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    found[alias.asname or name] = name
            elif isinstance(node, ast.ImportFrom):
                module = f"{'.' if node.level else ''}{node.module or ''}"
                found |= {x.asname or x.name: f"{module}.{x.name}" for x in node.names}
        return found

    @cached_property
    def frameworks(self) -> set[str]:
        """The frameworks whose functions the file can call."""
        return {framework_of(name) for name in self.meant.values()} - {""}

    @cached_property
    def home(self) -> str:
        """The framework of array methods: the only one that the file imports, or PyTorch."""
        found = (self.frameworks & DIFFERENTIATED) or self.frameworks
        return "torch" if "torch" in found else min(found, default="xp")

    def full(self, node: ast.expr) -> str:
        """Return the full name of a module or function; "" if it is neither."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        name = node.id if isinstance(node, ast.Name) else ""
        first = self.meant.get(name) or NAMESPACES.get(name, "")
        return ".".join([first, *reversed(words)]) if first else ""

    def called(self, call: ast.Call) -> Called | None:
        """Return the operation that a call of a known framework means."""
        options = {k.arg: k.value for k in call.keywords if k.arg}
        is_open = any(isinstance(x, ast.Starred) for x in call.args)
        f, full = call.func, self.full(call.func)
        if is_open or len(options) < len(call.keywords):
            return None
        if framework := framework_of(full):
            return Called(word_of(full), framework, tuple(call.args), options)
        if isinstance(f, ast.Name) and not full and f.id in BUILTINS:
            return Called(f.id, "python", tuple(call.args), options)
        if isinstance(f, ast.Attribute) and not full and f.attr.removesuffix("_") in METHODS:
            return Called(word_of(f.attr), self.home, (f.value, *call.args), options)
        return None

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, inner ones first."""
        while node is not self.tree:
            node = self.parents[node]
            yield node

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function, comprehension or module that contains a node."""
        return next((x for x in self.above(node) if isinstance(x, Scope)), self.tree)

    @cached_property
    def definitions(self) -> dict[ast.AST, dict[str, list[Definition]]]:
        """The definitions by scope and name, in the order of the text."""
        found: dict[ast.AST, dict[str, list[Definition]]] = defaultdict(lambda: defaultdict(list))
        for node in self.order:
            for one in definitions_in(node):
                scope = node if isinstance(node, Function) else self.scope_of(one.statement)
                found[scope][one.name].append(one)
                if isinstance(node, ast.AugAssign) and isinstance(one.value, ast.BinOp):
                    # `x + y` of `x += y` is not in the text: it becomes a part of its statement.
                    self.parents |= {one.value: node, one.value.left: one.value}
        return found

    @cached_property
    def shared(self) -> set[str]:
        """The names that a function assigns for others, by `global` or `nonlocal`."""
        kinds = ast.Global | ast.Nonlocal
        return {name for x in self.order if isinstance(x, kinds) for name in x.names}

    @cached_property
    def reads(self) -> dict[tuple[ast.AST, str], list[ast.Name]]:
        """Where each name is read, by each function around it, in the order of the text."""
        found: dict[tuple[ast.AST, str], list[ast.Name]] = defaultdict(list)
        for node in self.order:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                for outer in self.above(node):
                    if isinstance(outer, Scope):
                        found[outer, node.id].append(node)
        return found

    @cached_property
    def attributes(self) -> dict[tuple[ast.AST, str], list[ast.expr]]:
        """What each attribute such as ``self.mask`` is assigned, by each function around it."""
        found: dict[tuple[ast.AST, str], list[ast.expr]] = defaultdict(list)
        for node in self.order:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                for outer in self.above(node):
                    if isinstance(outer, Scope):
                        found[outer, ast.unparse(node.targets[0])].append(node.value)
        return found

    def uses(self, target: ast.Name, statement: ast.AST) -> list[ast.Name]:
        """Return where a name is read after a statement; in a loop, before it too."""
        read = self.reads.get((self.scope_of(target), target.id), [])
        if any(isinstance(x, Loop) for x in self.above(statement)):
            return read
        parts = (x for x in ast.walk(statement) if isinstance(x, ast.stmt | ast.expr))
        end = max(self.order.get(x, 0) for x in parts)  # `x + y` of `x += y` is not in the text
        return read[bisect_right(read, end, key=self.order.__getitem__) :]

    def definition_of(self, name: ast.Name) -> Definition | None:
        """Return the definition of a name where it is read; None if unknown."""
        if name.id in self.shared:
            return Definition(name.id, self.tree)
        statement, scope, is_outer = self.statement(name), self.scope_of(name), False
        while not (every := self.definitions.get(scope, {}).get(name.id)):
            if scope is self.tree:
                return None
            is_outer = is_outer or not isinstance(scope, ast.Lambda | Comprehension)
            scope = self.scope_of(scope)
        if is_outer:
            return every[0] if len(every) == 1 else Definition(name.id, every[0].statement)
        return self._reaching(every, statement)

    def _reaching(self, every: list[Definition], use: ast.AST) -> Definition:
        count = bisect_left(every, self.order[use], key=lambda one: self.order[one.statement])
        if not count:
            return Definition(every[0].name, every[0].statement)
        last = every[count - 1]
        if self.has_run(last.statement, use) and not self._comes_round(every, last, use):
            return last
        before = every[:count] if count <= MANY else []
        values = tuple(one.value for one in before if one.value is not None)
        perhaps = values if len(values) == len(before) else ()
        return Definition(last.name, last.statement, perhaps=perhaps)

    def _comes_round(self, every: list[Definition], last: Definition, use: ast.AST) -> bool:
        """Whether a loop around the use assigns the name after the use."""
        outside = set(self.above(last.statement))
        loops = {x for x in self.above(use) if isinstance(x, Loop) and x not in outside}
        return any(loop in self.above(one.statement) for loop in loops for one in every)

    def has_run(self, statement: ast.AST, use: ast.AST) -> bool:
        """Whether a statement has certainly run before a later one runs."""
        around = list(self.above(use))
        holding = zip(around, [use, *around], strict=False)
        inside = dict(holding)  # what holds the use, by its parent
        child = statement
        for outer in () if isinstance(statement, Scope) else self.above(statement):
            if isinstance(outer, MAYBE):
                beside = inside.get(outer)
                if beside is None or self.block_of(child) != self.block_of(beside):
                    return False
            if isinstance(outer, Scope):
                break
            child = outer
        return True

    def block_of(self, statement: ast.AST) -> str:
        """Return which block of another statement contains one."""
        return self.places[statement][0] if statement in self.places else ""

    @cached_property
    def buffers(self) -> list[ast.Call]:
        """The calls of `register_buffer`, which name an attribute and its value."""
        calls = (x for x in self.order if isinstance(x, ast.Call) and len(x.args) > 1)
        return [x for x in calls if last_word(x) == "register_buffer"]

    @cached_property
    def called_by(self) -> dict[str, set[str]]:
        """The last words of the functions that each function of the file calls, by its name."""
        found: dict[str, set[str]] = defaultdict(set)
        for node in self.order:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] |= calls_in(ast.walk(node))
        return found

    @cached_property
    def places(self) -> dict[ast.AST, tuple[str, int]]:
        """The block that contains each statement, and its place in it."""
        blocks = ((name, getattr(x, name, None)) for x in self.order for name in BLOCKS)
        lists = ((name, block) for name, block in blocks if type(block) is list)
        return {x: (name, i) for name, block in lists for i, x in enumerate(block)}


def word_of(name: str) -> str:
    last = name.rpartition(".")[2]
    last = last.removesuffix("_") or last
    return WORDS.get(last, last)


def framework_of(full: str) -> str:
    """Return the framework of a full name; "" if it belongs to none."""
    return FRAMEWORKS.get(full.partition(".")[0], "")


def calls_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the last words of the functions that are called."""
    return {last_word(x) for x in nodes if isinstance(x, ast.Call)}


def mentions(node: ast.AST, words: tuple[str, ...]) -> bool:
    """Whether any of the given names is in an expression."""
    names = (x for x in ast.walk(node) if isinstance(x, ast.Name | ast.Attribute))
    return any(last_word(x) in words for x in names)


def definitions_in(node: ast.AST) -> Iterator[Definition]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _targets(target, node, node.value)
    elif isinstance(node, ast.AugAssign):
        yield from _targets(node.target, node, _sum_of(node))
    elif isinstance(node, ast.Expr) and _in_place(node.value):
        yield Definition(_in_place(node.value), node, node.value)
    elif isinstance(node, Function):
        yield from _parameters(node)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _targets(node.target, node, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _targets(node.optional_vars, node, None)


def _targets(target: ast.expr, statement: ast.AST, value: ast.expr | None) -> Iterator[Definition]:
    if isinstance(target, ast.Name):
        yield Definition(target.id, statement, value)
    elif isinstance(target, ast.Tuple | ast.List):
        given = value.elts if isinstance(value, ast.Tuple) else ()
        values = given if len(given) == len(target.elts) else [None] * len(target.elts)
        plain = value is not None and bool(SHAPE.search(ast.unparse(value)))
        for one, part in zip(target.elts, values, strict=True):
            for found in _targets(one, statement, part):
                found.is_plain = found.is_plain or plain
                yield found
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, statement, None)
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        yield Definition(target.value.id, statement)  # a write into an array


def _sum_of(node: ast.AugAssign) -> ast.expr | None:
    """Return ``x + y`` for ``x += y``, with the same location."""
    if not isinstance(node.target, ast.Name):
        return None
    left = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
    return ast.copy_location(ast.BinOp(left, node.op, node.value), node)


def _in_place(node: ast.expr) -> str:
    """Return the name of the tensor that a call such as ``x.clamp_(0)`` writes into."""
    f = node.func if isinstance(node, ast.Call) else None
    if not isinstance(f, ast.Attribute) or not isinstance(f.value, ast.Name):
        return ""
    return f.value.id if f.attr.endswith("_") and not f.attr.startswith("_") else ""


def _parameters(node: Function) -> Iterator[Definition]:
    """Yield the parameters of a function: numbers by annotation or default, or integers."""
    args = node.args
    some, others = [*args.posonlyargs, *args.args], filter(None, (args.vararg, args.kwarg))
    required = [None] * (len(some) - len(args.defaults))
    defaults = chain(required, args.defaults, args.kw_defaults)
    for one, default in zip_longest([*some, *args.kwonlyargs, *others], defaults):
        hint = one.annotation
        words = {x.id for x in ast.walk(hint) if isinstance(x, ast.Name)} if hint else set()
        is_integer = "int" in words and words.isdisjoint({"float", "Callable"})
        is_number = isinstance(hint, ast.Name) and hint.id in PLAIN
        is_float = is_number and words == {"float"}
        number = getattr(default, "value", None) if hint is None else None
        is_given = isinstance(number, float) and number != 0 and not SMALL.search(one.arg)
        yield Definition(
            one.arg, node, is_plain=is_number or is_integer, is_number=is_float or is_given
        )

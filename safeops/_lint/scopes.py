"""Which value a name has where it is read: that of an earlier assignment, if it can only be one."""

import ast
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from safeops._lint.heuristics import SHAPE

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Scope = Function | Comprehension | ast.Module
BLOCKS = ("body", "orelse", "finalbody", "handlers")
# Statements with a block that may not run: its assignments are uncertain afterwards.
MAYBE = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match, ast.ExceptHandler)
PLAIN = frozenset({"int", "bool", "float", "str"})  # Python numbers: they have no gradient

MANY = 50  # assignments of a name that are compared; with more it is unknown

SQUARED = frozenset({"MSELoss"})

NO_GRADIENT = ("no_grad", "inference_mode", "_no_grad")


@dataclass(eq=False)
class Definition:
    """A place where a name gets a value; `value` is None unless it is that of one expression."""

    name: str
    statement: ast.AST
    value: ast.expr | None = None
    is_plain: bool = False  # a Python number, by its annotation
    is_number: bool = False  # a float, by its annotation
    perhaps: tuple[ast.expr, ...] = ()  # the values that it may have


@dataclass(eq=False)
class Scopes:
    """The assignments of a file."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    order: dict[ast.AST, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Number the nodes in the order of the text."""
        stack: list[ast.AST] = [self.tree]
        while stack:
            node = stack.pop()
            self.order[node] = len(self.order)
            children = parts_of(node)
            for child in children:
                self.parents[child] = node
            children.reverse()
            stack += children

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, inner ones first."""
        while node is not self.tree:
            node = self.parents[node]
            yield node

    def up_to_statement(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the expressions around an expression, inner ones first."""
        while not isinstance(node, ast.stmt) and node is not self.tree:
            node = self.parents[node]
            yield node

    def statement_of(self, node: ast.AST) -> ast.AST:
        """Return the statement that contains an expression."""
        while not isinstance(node, ast.stmt) and node is not self.tree:
            node = self.parents[node]
        return node

    def is_without_gradient(self, node: ast.AST) -> bool:
        """Whether a statement is in a block without gradients, such as ``no_grad``."""
        blocks = (x for x in self.around(node) if isinstance(x, ast.With))
        return any(mentions(x.context_expr, NO_GRADIENT) for one in blocks for x in one.items)

    def scope_of(self, node: ast.AST) -> ast.AST:
        """Return the function, class or module that contains a node."""
        return next((x for x in self.around(node) if isinstance(x, Scope)), self.tree)

    @cached_property
    def definitions(self) -> dict[ast.AST, dict[str, list[Definition]]]:
        """The definitions by scope and name, in the order of the text."""
        found: dict[ast.AST, dict[str, list[Definition]]] = defaultdict(lambda: defaultdict(list))
        for node in list(self.order):
            for one in definitions_in(node):
                scope = node if isinstance(node, Function) else self.scope_of(one.statement)
                found[scope][one.name].append(one)
                self._place(one)
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
                for outer in self.around(node):
                    if isinstance(outer, Scope):
                        found[outer, node.id].append(node)
        return found

    def _place(self, one: Definition) -> None:
        """Make ``x + y`` of ``x += y``, which is not in the text, a part of its statement."""
        if isinstance(one.value, ast.BinOp) and one.value not in self.parents:
            self.parents[one.value] = one.statement
            self.parents[one.value.left] = one.value

    def definition_of(self, name: ast.Name) -> Definition | None:
        """Return the definition of a name where it is read; None if unknown."""
        if name.id in self.shared:
            return Definition(name.id, self.tree)
        statement = self.statement_of(name)
        scope: ast.AST = name
        is_outer = False
        while scope is not self.tree:
            scope = self.scope_of(scope)
            every = self.definitions[scope].get(name.id) if scope in self.definitions else None
            if every:
                return self._of_outer(every) if is_outer else self._reaching(every, statement)
            is_outer = is_outer or not isinstance(scope, ast.Lambda | Comprehension)
        return None

    def _of_outer(self, every: list[Definition]) -> Definition | None:
        """Return the definition of a name that an enclosing function assigns."""
        return every[0] if len(every) == 1 else Definition(every[0].name, every[0].statement)

    def _reaching(self, every: list[Definition], use: ast.AST) -> Definition:
        count = bisect_left(every, self.order[use], key=lambda one: self.order[one.statement])
        if not count:
            return Definition(every[0].name, every[0].statement)
        last = every[count - 1]
        if self.has_run(last.statement, use) and not self._comes_round(every, last, use):
            return last
        before = every[:count] if count <= MANY else []
        values = [one.value for one in before if one.value is not None]
        perhaps = tuple(values) if len(values) == len(before) else ()
        return Definition(last.name, last.statement, perhaps=perhaps)

    def _comes_round(self, every: list[Definition], last: Definition, use: ast.AST) -> bool:
        """Whether a loop around the use assigns the name after the use."""
        loops = [x for x in self.around(use) if isinstance(x, ast.For | ast.AsyncFor | ast.While)]
        inner = [x for x in loops if x not in list(self.around(last.statement))]
        return any(loop in self.around(one.statement) for loop in inner for one in every)

    def has_run(self, statement: ast.AST, use: ast.AST) -> bool:
        """Whether a statement has certainly run before a later one runs."""
        if isinstance(statement, Scope):
            return True
        outside = {id(x) for x in self.around(use)}
        child = statement
        for outer in self.around(statement):
            if isinstance(outer, MAYBE) and not (
                id(outer) in outside and self.block_of(outer, child) == self._branch_of(outer, use)
            ):
                return False
            if isinstance(outer, Scope):
                return True
            child = outer
        return True

    def _branch_of(self, outer: ast.AST, node: ast.AST) -> str:
        while self.parents[node] is not outer:
            node = self.parents[node]
        return self.block_of(outer, node)

    def block_of(self, outer: ast.AST, child: ast.AST) -> str:
        """Return which block of a statement contains another one."""
        return self.blocks.get(child, "") if self.parents[child] is outer else ""

    @cached_property
    def blocks(self) -> dict[ast.AST, str]:
        """The name of the block that contains each statement."""
        every = ((x, name) for x in self.order for name in BLOCKS)
        lists = ((getattr(x, name, None), name) for x, name in every)
        return {one: name for block, name in lists if type(block) is list for one in block}

    @cached_property
    def buffers(self) -> list[ast.Call]:
        """The calls of `register_buffer`, which name an attribute and its value."""
        calls = (x for x in self.order if isinstance(x, ast.Call) and len(x.args) > 1)
        return [x for x in calls if last_word(x) == "register_buffer"]

    @cached_property
    def losses(self) -> set[str]:
        """The names and attributes that are assigned a squared error: ``self.mse = MSELoss()``."""
        every = (x for x in self.order if isinstance(x, ast.Assign) and len(x.targets) == 1)
        made = (x for x in every if isinstance(x.value, ast.Call) and last_word(x.value) in SQUARED)
        return {ast.unparse(x.targets[0]) for x in made}

    @cached_property
    def functions(self) -> list[Function]:
        """All functions."""
        return [node for node in self.order if isinstance(node, Function)]


def parts_of(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node; `ast.iter_child_nodes` takes twice the time."""
    found: list[ast.AST] = []
    for name in node._fields:
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            found.append(part)
        elif type(part) is list:
            found += [x for x in part if isinstance(x, ast.AST)]
    return found


def last_word(node: ast.AST) -> str:
    """Return the last word of a name, an attribute or a called function; "" for all else."""
    f = node.func if isinstance(node, ast.Call) else node
    return str(getattr(f, "attr", "") or getattr(f, "id", ""))


def mentions(node: ast.AST, words: tuple[str, ...]) -> bool:
    """Whether any of the given names is in an expression."""
    names = (x for x in ast.walk(node) if isinstance(x, ast.Name | ast.Attribute))
    return any(last_word(x) in words for x in names)


def definitions_in(node: ast.AST) -> Iterator[Definition]:
    """Yield the definitions of names in a node."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node, node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _targets(node.target, node, node.value)
    elif isinstance(node, ast.AugAssign):
        yield from _targets(node.target, node, _sum_of(node))
    elif isinstance(node, ast.Expr) and _in_place(node.value):
        yield Definition(_in_place(node.value), node, node.value)
    elif isinstance(node, Function):
        yield from _parameters(node)
    elif isinstance(node, ast.NamedExpr):
        yield Definition(node.target.id, node, node.value)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from _targets(node.target, node, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _targets(node.optional_vars, node, None)


def _targets(target: ast.expr, statement: ast.AST, value: ast.expr | None) -> Iterator[Definition]:
    if isinstance(target, ast.Name):
        yield Definition(target.id, statement, value)
    elif isinstance(target, ast.Tuple | ast.List):
        values: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(values):
            values = list(value.elts)
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
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    name, array = node.func.attr, node.func.value
    writes = name.endswith("_") and not name.startswith("_") and isinstance(array, ast.Name)
    return array.id if writes and isinstance(array, ast.Name) else ""


def _parameters(node: Function) -> Iterator[Definition]:
    args = node.args
    for one in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
        if one is not None:
            hint = one.annotation
            plain = isinstance(hint, ast.Name) and hint.id in PLAIN
            plain = plain or (hint is not None and _is_integer(hint))
            number = isinstance(hint, ast.Name) and hint.id == "float"
            yield Definition(one.arg, node, is_plain=plain, is_number=number)


def _is_integer(hint: ast.expr) -> bool:
    """Whether an annotation names integers, perhaps with arrays, and no floats."""
    words = {x.id for x in ast.walk(hint) if isinstance(x, ast.Name)}
    return "int" in words and words.isdisjoint({"float", "Callable"})

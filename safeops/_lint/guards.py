"""The context of an expression: an `if` around it, an early return, code without gradients."""

import ast
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property

from safeops._lint.heuristics import DATA, FIRST, OF_RULE
from safeops._lint.names import DIFFERENTIATED, Names, framework_of
from safeops._lint.scopes import (
    BLOCKS,
    NO_GRADIENT,
    Function,
    Scopes,
    last_word,
    mentions,
    parts_of,
)
from safeops._lint.terms import COMPARISONS, Term

# Functions with a derivative rule of their own: their bodies are not differentiated.
RULES = ("custom_gradient", "custom_jvp", "custom_vjp", "defjvp", "defvjp", "stop_gradient")
# Names of gradients, which are not differentiated themselves.
GRADIENTS = frozenset({"grad", "grads", "gradients", "updates", "opt_state", "optimizer_state"})
# What a function returns that makes the steps of an optimizer.
STEPS = ("GradientTransformation", "GradientTransformationExtraArgs", "Optimizer")
# Functions without a gradient; `assign` writes into a variable, from which none comes back.
STOPS = frozenset(
    """
    allclose argmax argmin argsort assign assign_add assign_sub bucketize detach isclose item
    no_grad nonzero numpy searchsorted stop_gradient tolist
    """.split()  # noqa: SIM905  (names read best in a row)
)
# Functions that differentiate what they are given, wherever their result goes.
DERIVATIVES = frozenset(
    """
    check_gradients check_grads explain grad gradcheck gradient hessian jacfwd jacobian jacrev jvp
    linearize masked_grad value_and_grad vjp
    """.split()  # noqa: SIM905  (names read best in a row)
)
BUILTINS = frozenset({"bool", "float", "int", "len", "print", "str"})
FIRST_OF_TWO = frozenset({"max", "min", "topk", "sort"})  # the second result is indices
EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# Attributes that say nothing about the entries of an array.
SHAPES = frozenset({"shape", "ndim", "size", "dtype", "device", "dim", "is_cuda", "requires_grad"})
NOT_WORDS = frozenset({"self", "cls", "all", "any", "item", "abs", "max", "min", "sum", "float"})


class Guards:
    """The context of each expression of a file."""

    def __init__(
        self,
        names: Names,
        scopes: Scopes,
        called: Mapping[int, set[str]],
        differentiated: frozenset[str] = DIFFERENTIATED,
    ) -> None:
        """Take a file's names and scopes, and the names that stand for each term."""
        self.names, self.scopes, self.called = names, scopes, called
        self.differentiated = differentiated

    def has_gradient(self, node: ast.AST) -> bool:
        """Whether an expression is differentiated."""
        return self._reaches(node, set())

    def _reaches(self, node: ast.AST, seen: set[ast.AST]) -> bool:
        """Whether a gradient reaches an expression, perhaps through names that stand for it."""
        if not self._goes_on(node):
            return False
        statement = self.scopes.statement_of(node)
        targets = _names_of(statement)
        if targets is None or statement in seen:
            return statement not in seen
        if not targets:
            return False
        seen.add(statement)
        uses = [use for target in targets for use in self.uses(target, statement)]
        return not uses or any(self._reaches(use, seen) for use in uses)

    def _goes_on(self, node: ast.AST) -> bool:
        """Whether a gradient passes the syntax around an expression."""
        return self._stop(node) is None and not any(x in self.ruled for x in self._around(node))

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        yield node
        yield from self.scopes.around(node)

    def _stop(self, node: ast.AST) -> ast.AST | None:
        """Return the syntax around an expression that stops gradients; None if there is none."""
        child = node
        for outer in self.scopes.around(node):
            if isinstance(outer, ast.Call) and last_word(outer.func) in DERIVATIVES:
                return None  # what is printed is the derivative
            if _is_stopped(outer, child) or self._is_foreign(outer):
                return outer
            child = outer
        return None

    def _is_foreign(self, outer: ast.AST) -> bool:
        """Whether a call belongs to a framework without gradients."""
        if not isinstance(outer, ast.Call):
            return False
        framework = framework_of(self.names.full(outer.func))
        return bool(framework) and framework not in self.differentiated

    def uses(self, target: ast.Name, statement: ast.AST) -> list[ast.Name]:
        """Return where a name is read after a statement; in a loop, before it too."""
        read = self.scopes.reads.get((self.scopes.scope_of(target), target.id), [])
        loops = ast.For | ast.While
        if any(isinstance(x, loops) for x in self.scopes.around(statement)):
            return read
        order = self.scopes.order
        parts = (x for x in ast.walk(statement) if isinstance(x, ast.stmt | ast.expr))
        end = max(order.get(x, 0) for x in parts)  # `x + y` of `x += y` is not in the text
        return read[bisect_right(read, end, key=order.__getitem__) :]

    @cached_property
    def ruled(self) -> set[ast.AST]:
        """The functions that are called only where nothing is differentiated."""
        functions = self._functions()
        sites = self._sites(functions)
        rules = {x for x in functions.values() if any(mentions(d, RULES) for d in x.decorator_list)}
        ruled: set[ast.AST] = set(rules)
        ruled |= {x for name, x in functions.items() if rules and OF_RULE.search(name)}
        count = -1
        while len(ruled) > count:
            count = len(ruled)
            for name, function in functions.items():
                others = [x for x in sites[name] if function not in self.scopes.around(x)]
                if others and all(self._is_silent(x, ruled) for x in others):
                    ruled.add(function)
        return ruled

    def _is_silent(self, site: ast.AST, ruled: set[ast.AST]) -> bool:
        around = list(self.scopes.around(site))
        return not ruled.isdisjoint(around) or self._stop(site) is not None

    def _functions(self) -> dict[str, ast.FunctionDef]:
        """Return functions and private methods whose names occur once in the file."""
        found = {x.name: x for x in self.scopes.tree.body if isinstance(x, ast.FunctionDef)}
        classes = (x for x in self.scopes.tree.body if isinstance(x, ast.ClassDef))
        methods = [x for one in classes for x in one.body if isinstance(x, ast.FunctionDef)]
        names = [x.name for x in methods]
        private = (x for x in methods if x.name.startswith("_") and not x.name.endswith("__"))
        return {x.name: x for x in private if names.count(x.name) == 1} | found

    def _sites(self, functions: Mapping[str, ast.FunctionDef]) -> dict[str, list[ast.AST]]:
        """Return, for each function, the places where its name is read."""
        found: dict[str, list[ast.AST]] = {name: [] for name in functions}
        for node in self.scopes.order:
            if isinstance(node, ast.Name | ast.Attribute) and last_word(node) in found:
                found[last_word(node)].append(node)
        return found

    def is_asked(self, node: ast.AST, words: set[str]) -> bool:
        """Whether an `if`, an early return or an assertion tests one of these names."""
        child = node
        for outer in self.scopes.around(node):
            test = outer.test if isinstance(outer, ast.If | ast.IfExp | ast.While) else None
            if test not in (None, child) and not words.isdisjoint(_asked(test)):
                return True
            if isinstance(child, ast.stmt) and child in self.places:
                asked, place = self.asked_in[outer], self.places[child]
                block = self.scopes.block_of(outer, child)
                if any(asked.get((block, word), place) < place for word in words):
                    return True
            if isinstance(outer, Function):
                return False
            child = outer
        return False

    def words_of(self, *terms: Term) -> set[str]:
        """Return the names in the source of terms."""
        found: set[str] = set()
        seen: set[ast.AST] = set()
        for part in (part for term in terms for part in term.every):
            found |= self.called.get(id(part), set())
            stack: list[ast.AST] = [part.node]
            while stack:
                node = stack.pop()
                if node not in seen:
                    seen.add(node)
                    found.add(last_word(node))
                    stack += parts_of(node)
        return found - self.names.meant.keys() - NOT_WORDS - {""}

    @cached_property
    def asked_in(self) -> dict[ast.AST, dict[tuple[str, str], int]]:
        """The first statement of each block after which a name has been tested, by its place."""
        found: dict[ast.AST, dict[tuple[str, str], int]] = defaultdict(dict)
        for child, place in self.places.items():
            outer = self.scopes.parents[child]
            asked = _asked(child.test) if isinstance(child, ast.Assert) else ()
            names = self._of_if(child) if isinstance(child, ast.If) else asked
            block = self.scopes.block_of(outer, child)
            for name in names:
                found[outer].setdefault((block, name), place)
        return found

    @cached_property
    def places(self) -> dict[ast.AST, int]:
        """The place of each statement in its block."""
        blocks = (getattr(x, name, None) for x in self.scopes.order for name in BLOCKS)
        return {x: i for block in blocks if type(block) is list for i, x in enumerate(block)}

    def _of_if(self, statement: ast.If) -> set[str]:
        """Return the names that an `if` tests for the statements behind it."""
        asked = set(_asked(statement.test))
        written = {
            one.id
            for one in ast.walk(statement)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        if any(isinstance(x, EXITS) for x in (*statement.body, *statement.orelse)):
            return asked
        return asked & written


def _names_of(statement: ast.AST) -> list[ast.Name] | None:
    """Return the names that a statement assigns; None if a value goes anywhere else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        target = statement.target
    else:
        return None
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    if len(parts) == 2 and last_word(getattr(statement.value, "func", statement)) in FIRST_OF_TWO:  # noqa: PLR2004  (values and places)
        parts = [] if last_word(parts[0]) == "_" else parts[:1]
    names = [x for x in parts if isinstance(x, ast.Name)]
    return names if len(names) == len(parts) else None


def _is_stopped(outer: ast.AST, child: ast.AST) -> bool:  # noqa: PLR0911  (a row for each kind)
    """Whether no gradient passes from a node to one of its parts."""
    if isinstance(outer, ast.Call):
        is_builtin = isinstance(outer.func, ast.Name) and outer.func.id in BUILTINS
        is_builtin = is_builtin or _writes_data(outer.func)  # w.data.copy_(x)
        return is_builtin or last_word(outer.func) in STOPS
    if isinstance(outer, ast.Attribute):
        return outer.attr in STOPS | SHAPES
    if isinstance(outer, ast.If | ast.While | ast.IfExp):
        return child is outer.test
    if isinstance(outer, ast.Assign):
        return all(isinstance(x, ast.Attribute) and x.attr == "data" for x in outer.targets)
    if isinstance(outer, ast.With):
        return any(mentions(x.context_expr, NO_GRADIENT) for x in outer.items)
    if isinstance(outer, ast.ClassDef):
        bases = [last_word(x) for x in outer.bases]
        is_made = getattr(child, "name", "") == "__init__" and "Module" in bases
        return is_made or any(DATA.search(name) for name in (outer.name, *bases))
    if isinstance(outer, ast.FunctionDef):
        return _is_without(outer)
    return isinstance(outer, ast.Compare | ast.JoinedStr)


def _writes_data(f: ast.expr) -> bool:
    if not isinstance(f, ast.Attribute) or not isinstance(f.value, ast.Attribute):
        return False
    return f.attr.endswith("_") and f.value.attr == "data"


def _is_without(function: ast.FunctionDef) -> bool:
    marked = any(mentions(x, NO_GRADIENT + RULES) for x in function.decorator_list)
    marked = marked or (function.returns is not None and mentions(function.returns, STEPS))
    args = function.args
    takes = {x.arg for x in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    return marked or bool(FIRST.search(function.name)) or not takes.isdisjoint(GRADIENTS)


def _asked(test: ast.expr | None) -> Iterator[str]:
    """Yield the names whose numbers a condition tests."""
    stack: list[ast.AST] = [test] if test is not None else []
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Attribute) and node.attr in SHAPES:
            continue
        if isinstance(node, ast.Call) and last_word(node.func) in {"len", "isinstance", "hasattr"}:
            continue
        if isinstance(node, ast.Compare) and not all(type(op) in COMPARISONS for op in node.ops):
            continue
        if isinstance(node, ast.Compare) and any(_is_text(x) for x in node.comparators):
            continue
        if isinstance(node, ast.Name | ast.Attribute):
            yield last_word(node)
        stack += ast.iter_child_nodes(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | None)

"""The context of an expression: an `if` around it, an early return, code without gradients."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from safeops._lint.heuristics import DATA, FIRST, OF_RULE
from safeops._lint.names import framework_of
from safeops._lint.scopes import NO_GRADIENT, Function, mentions
from safeops._lint.terms import COMPARISONS, Reader, Term, is_without_gradient
from safeops._source.edits import last_word

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
EXITS = ast.Return | ast.Raise | ast.Continue | ast.Break
# Attributes that say nothing about the entries of an array.
SHAPES = frozenset({"shape", "ndim", "size", "dtype", "device", "dim", "is_cuda", "requires_grad"})
NOT_WORDS = frozenset(
    {"self", "cls", "all", "any", "item", "abs", "max", "min", "sum", "float", ""}
)


class Guards(Reader):
    """The context of each expression of a file."""

    def has_gradient(self, node: ast.AST) -> bool:
        """Whether an expression is differentiated."""
        return self._reaches(node, set())

    def _reaches(self, node: ast.AST, seen: set[ast.AST]) -> bool:
        """Whether a gradient reaches an expression, perhaps through names that stand for it."""
        if self._is_stopped(node) or not self.ruled.isdisjoint({node, *self.above(node)}):
            return False
        statement = self.statement(node)
        targets = _names_of(statement)
        if targets is None or statement in seen:
            return statement not in seen
        seen.add(statement)
        uses = [use for target in targets for use in self.uses(target, statement)]
        if isinstance(getattr(statement, "value", None), ast.Lambda) and any(
            getattr(self.parents[x], "func", None) is not x for x in uses
        ):
            return True  # whoever takes a function may differentiate it
        return bool(targets) and (not uses or any(self._reaches(use, seen) for use in uses))

    def _is_stopped(self, node: ast.AST) -> bool:
        """Whether the syntax around an expression stops gradients."""
        child = node
        for outer in self.above(node):
            word = last_word(outer) if isinstance(outer, ast.Call) else ""
            if word in DERIVATIVES:
                return False  # what is printed is the derivative
            framework = framework_of(self.full(outer.func)) if isinstance(outer, ast.Call) else ""
            if _stops(outer, child) or framework not in {"", *self.differentiated}:
                return True
            child = outer
        return False

    @cached_property
    def ruled(self) -> set[ast.AST]:
        """The functions that are called only where nothing is differentiated."""
        functions, sites = self._functions, defaultdict(list)
        for node in self.order:
            if isinstance(node, ast.Name | ast.Attribute) and last_word(node) in functions:
                sites[last_word(node)].append(node)
        rules = {x for x in functions.values() if any(mentions(d, RULES) for d in x.decorator_list)}
        ruled: set[ast.AST] = set(rules)
        ruled |= {x for name, x in functions.items() if rules and OF_RULE.search(name)}
        count = -1
        while len(ruled) > count:
            count = len(ruled)
            for name, function in functions.items():
                others = [x for x in sites[name] if function not in self.above(x)]
                silent = (
                    not ruled.isdisjoint(self.above(x)) or self._is_stopped(x) for x in others
                )
                if others and all(silent):
                    ruled.add(function)
        return ruled

    @cached_property
    def _functions(self) -> dict[str, ast.FunctionDef]:
        """The functions, and private methods, whose names occur once in the file."""
        found = {x.name: x for x in self.tree.body if isinstance(x, ast.FunctionDef)}
        classes = (x for x in self.tree.body if isinstance(x, ast.ClassDef))
        methods = [x for one in classes for x in one.body if isinstance(x, ast.FunctionDef)]
        names = [x.name for x in methods]
        private = (x for x in methods if x.name.startswith("_") and not x.name.endswith("__"))
        return {x.name: x for x in private if names.count(x.name) == 1} | found

    def is_asked(self, node: ast.AST, words: set[str]) -> bool:
        """Whether an `if`, an early return or an assertion tests one of these names."""
        child = node
        for outer in self.above(node):
            test = outer.test if isinstance(outer, ast.If | ast.IfExp | ast.While) else None
            if test not in (None, child) and not words.isdisjoint(_asked(test)):
                return True
            if child in self.places:
                asked, (block, place) = self._asked_in[outer], self.places[child]
                if any(asked.get((block, word), place) < place for word in words):
                    return True
            if isinstance(outer, Function):
                return False
            child = outer
        return False

    def words_of(self, *terms: Term) -> set[str]:
        """Return the names in the source of terms."""
        parts = [part for term in terms for part in term.every]
        found = set().union(*(self.aliases.get(id(part), ()) for part in parts))
        seen: set[ast.AST] = set()
        stack: list[ast.AST] = [part.node for part in parts]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                found.add(last_word(node))
                stack += ast.iter_child_nodes(node)
        return found - self.meant.keys() - NOT_WORDS

    @cached_property
    def _asked_in(self) -> dict[ast.AST, dict[tuple[str, str], int]]:
        """The first statement of each block after which a name has been tested, by its place."""
        found: dict[ast.AST, dict[tuple[str, str], int]] = defaultdict(dict)
        for child, (block, place) in self.places.items():
            asked = set(_asked(child.test)) if isinstance(child, ast.Assert | ast.If) else set()
            if isinstance(child, ast.If):
                exits = any(isinstance(x, EXITS) for x in (*child.body, *child.orelse))
                names = (x for x in ast.walk(child) if isinstance(x, ast.Name))
                written = {x.id for x in names if isinstance(x.ctx, ast.Store)}
                asked = asked if exits else asked & written
            for name in asked:
                found[self.parents[child]].setdefault((block, name), place)
        return found


def _names_of(statement: ast.AST) -> list[ast.Name] | None:
    """Return the names that a statement assigns; None if a value goes anywhere else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        target = statement.target
    else:
        return None
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    value = statement.value
    if len(parts) == 2 and isinstance(value, ast.Call) and last_word(value) in FIRST_OF_TWO:  # noqa: PLR2004  (values and places)
        parts = [] if last_word(parts[0]) == "_" else parts[:1]
    names = [x for x in parts if isinstance(x, ast.Name)]
    return names if len(names) == len(parts) else None


def _stops(outer: ast.AST, child: ast.AST) -> bool:  # noqa: PLR0911  (a row for each kind)
    """Whether no gradient passes from a node to one of its parts."""
    if isinstance(outer, ast.Call):
        f = outer.func
        is_builtin = isinstance(f, ast.Name) and f.id in BUILTINS
        array = f.value if isinstance(f, ast.Attribute) and f.attr.endswith("_") else None
        is_write = isinstance(array, ast.Attribute) and array.attr == "data"  # w.data.copy_(x)
        return is_builtin or is_write or last_word(f) in STOPS
    if isinstance(outer, ast.Attribute):
        return outer.attr in STOPS | SHAPES
    if isinstance(outer, ast.If | ast.While | ast.IfExp):
        return child is outer.test
    if isinstance(outer, ast.Assign):
        return all(isinstance(x, ast.Attribute) and x.attr == "data" for x in outer.targets)
    if isinstance(outer, ast.With):
        return is_without_gradient(outer)
    if isinstance(outer, ast.ClassDef):
        bases = [last_word(x) for x in outer.bases]
        is_made = getattr(child, "name", "") == "__init__" and "Module" in bases
        return is_made or any(DATA.search(name) for name in (outer.name, *bases))
    if isinstance(outer, ast.FunctionDef):
        args = outer.args
        takes = {x.arg for x in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
        is_marked = any(mentions(x, NO_GRADIENT + RULES) for x in outer.decorator_list)
        is_step = outer.returns is not None and mentions(outer.returns, STEPS)
        is_first = bool(FIRST.search(outer.name)) or not takes.isdisjoint(GRADIENTS)
        return is_marked or is_step or is_first
    return isinstance(outer, ast.Compare | ast.JoinedStr)


def _asked(test: ast.AST) -> Iterator[str]:
    """Yield the names whose numbers a condition tests."""
    stack = [test]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Attribute) and node.attr in SHAPES:
            continue
        if isinstance(node, ast.Call) and last_word(node) in {"len", "isinstance", "hasattr"}:
            continue
        if isinstance(node, ast.Compare):
            texts = [x for x in node.comparators if isinstance(getattr(x, "value", 0), str | None)]
            if texts or not all(type(op) in COMPARISONS for op in node.ops):
                continue
        if isinstance(node, ast.Name | ast.Attribute):
            yield last_word(node)
        stack += ast.iter_child_nodes(node)

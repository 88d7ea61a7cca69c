"""What a program asks before it computes: an `if` around it, an early return, no gradient."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cached_property

from safeops._lint.names import Names
from safeops._lint.scopes import BLOCKS, Function, Scopes
from safeops._lint.terms import COMPARISONS, Term

NO_GRADIENT = ("no_grad", "inference_mode", "_no_grad")
# Functions with a derivative rule of their own: what they compute is not differentiated.
RULES = ("custom_gradient", "custom_jvp", "custom_vjp", "defjvp", "defvjp", "stop_gradient")
# Fills weights before training, or draws samples where `rsample` is what is differentiated.
FIRST = re.compile(r"^_?(init(ialize)?_|reset_parameters|_init_weights|sample$)")
# Classes that prepare data or measure, and functions of PyTorch with a backward pass of their own.
DATA = re.compile(
    r"(BaseTransform|Dataset|FeatureExtractor|ImageProcessor\w*|Processor|Metric|Function)$"
)
OF_RULE = re.compile(r"_(fwd|bwd|jvp|vjp)$")
STOPS = frozenset(
    {
        "argmax",
        "argmin",
        "argsort",
        "bucketize",
        "searchsorted",
        "detach",
        "stop_gradient",
        "item",
        "numpy",
        "tolist",
        "no_grad",
    }
)
EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# What says nothing about the numbers of an array.
SHAPES = frozenset({"shape", "ndim", "size", "dtype", "device", "dim", "is_cuda", "requires_grad"})
NOT_WORDS = frozenset({"self", "cls", "all", "any", "item", "abs", "max", "min", "sum", "float"})


class Guards:
    """What stands around and before an expression of a file."""

    def __init__(self, names: Names, scopes: Scopes, called: Mapping[int, set[str]]) -> None:
        """Look in one file, with the names that stand for terms."""
        self.names, self.scopes, self.called = names, scopes, called

    def has_gradient(self, node: ast.AST) -> bool:
        """Whether anything is differentiated where an expression stands."""
        if not self._goes_on(node):
            return False
        statement = self.scopes.statement_of(node)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return True
        uses = self._uses(statement.targets[0])
        return not uses or any(map(self._goes_on, uses))

    def _goes_on(self, node: ast.AST) -> bool:
        """Whether a gradient comes to an expression through what stands around it."""
        child = node
        for outer in self.scopes.around(node):
            if _is_stopped(outer, child) or outer in self.ruled:
                return False
            child = outer
        return True

    def _uses(self, target: ast.Name) -> list[ast.Name]:
        """Return where a name is read in its function."""
        nodes = ast.walk(self.scopes.scope_of(target))
        names = (x for x in nodes if isinstance(x, ast.Name) and x.id == target.id)
        return [x for x in names if isinstance(x.ctx, ast.Load)]

    @cached_property
    def ruled(self) -> set[ast.AST]:
        """Functions that only those with a derivative rule of their own call."""
        functions = {x.name: x for x in self.scopes.tree.body if isinstance(x, ast.FunctionDef)}
        calls = self._calls(functions)
        ruled: set[ast.AST] = {
            x for x in functions.values() if any(_mentions(d, RULES) for d in x.decorator_list)
        }
        ruled |= {x for name, x in functions.items() if ruled and OF_RULE.search(name)}
        count = -1
        while len(ruled) > count:
            count = len(ruled)
            for name, function in functions.items():
                others = calls[name] - {function}
                if others and others <= ruled:
                    ruled.add(function)
        return ruled

    def _calls(self, functions: Mapping[str, ast.FunctionDef]) -> dict[str, set[ast.AST]]:
        """Return, for each function of a file, in which others its name stands."""
        found: dict[str, set[ast.AST]] = {name: set() for name in functions}
        for statement in self.scopes.tree.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id in found:
                    found[node.id].add(statement)
        return found

    def is_asked(self, node: ast.AST, words: set[str]) -> bool:
        """Whether an `if`, an early return or an assertion asks about one of these names."""
        return any(not words.isdisjoint(found) for found in self._asked_before(node))

    def words_of(self, *terms: Term) -> set[str]:
        """Return the names from which terms are made."""
        found: set[str] = set()
        for term in terms:
            for part in term.every:
                found |= set(_words(part.node)) | self.called.get(id(part), set())
        return found - set(self.names.meant) - NOT_WORDS

    def _asked_before(self, node: ast.AST) -> Iterator[set[str]]:
        child = node
        for outer in self.scopes.around(node):
            if isinstance(outer, ast.If | ast.IfExp | ast.While) and child is not outer.test:
                yield set(_asked(outer.test))
            if isinstance(outer, Function | ast.Module) or hasattr(outer, "body"):
                yield from self._of_block(outer, child)
            if isinstance(outer, Function):
                return
            child = outer

    def _of_block(self, outer: ast.AST, child: ast.AST) -> Iterator[set[str]]:
        """Give what the statements before one ask, in the same block."""
        for block in BLOCKS:
            body = getattr(outer, block, ())
            if not isinstance(body, list) or child not in body:
                continue
            for statement in body[: body.index(child)]:
                if isinstance(statement, ast.Assert):
                    yield set(_asked(statement.test))
                elif isinstance(statement, ast.If):
                    yield from self._of_if(statement)

    def _of_if(self, statement: ast.If) -> Iterator[set[str]]:
        asked = set(_asked(statement.test))
        written = {
            one.id
            for one in ast.walk(statement)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        if any(isinstance(x, EXITS) for x in (*statement.body, *statement.orelse)):
            yield asked
        elif written:
            yield asked & written


def _is_stopped(outer: ast.AST, child: ast.AST) -> bool:  # noqa: PLR0911  (a row for each kind)
    """Whether no gradient goes through a node to one of its parts."""
    if isinstance(outer, ast.Call):
        return _word(outer.func) in STOPS
    if isinstance(outer, ast.Attribute):
        return outer.attr in STOPS | SHAPES
    if isinstance(outer, ast.If | ast.While | ast.IfExp):
        return child is outer.test
    if isinstance(outer, ast.With):
        return any(_mentions(x.context_expr, NO_GRADIENT) for x in outer.items)
    if isinstance(outer, ast.ClassDef):
        return any(DATA.search(_word(x)) for x in outer.bases)
    if isinstance(outer, ast.FunctionDef):
        return _is_without(outer)
    return isinstance(outer, ast.Compare)


def _is_without(function: ast.FunctionDef) -> bool:
    marked = any(_mentions(x, NO_GRADIENT + RULES) for x in function.decorator_list)
    return marked or bool(FIRST.match(function.name))


def _mentions(node: ast.AST, words: tuple[str, ...]) -> bool:
    return any(_word(x) in words for x in ast.walk(node))


def _word(node: ast.AST) -> str:
    return str(getattr(node, "attr", "") or getattr(node, "id", ""))


def _words(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute):
            yield _word(part)


def _asked(test: ast.expr) -> Iterator[str]:
    """Give the names about whose numbers a condition asks."""
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Attribute) and node.attr in SHAPES:
            continue
        if isinstance(node, ast.Call) and _word(node.func) in {"len", "isinstance", "hasattr"}:
            continue
        if isinstance(node, ast.Compare) and not all(type(op) in COMPARISONS for op in node.ops):
            continue
        if isinstance(node, ast.Compare) and any(_is_text(x) for x in node.comparators):
            continue
        if isinstance(node, ast.Name | ast.Attribute):
            yield _word(node)
        stack += ast.iter_child_nodes(node)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | None)

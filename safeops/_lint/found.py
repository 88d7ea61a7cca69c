"""What the rules take and give: a file as they see it, and a place where a rule holds."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from safeops._lint.heuristics import DATA, FIRST, OF_RULE
from safeops._lint.names import NO_GRADIENT, Function, framework_of, mentions
from safeops._lint.probes import Hit, causes_of, singular_point_of
from safeops._lint.terms import COMPARISONS, Reader, Term, is_without_gradient
from safeops._source.edits import Edits, last_word

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
    "SO011": "eps-lost-in-half-precision",
}
LONGEST = 48  # characters of an expression in a message


class Selection(NamedTuple):
    """A `where`, or a write by mask: the term, its condition, both cases, and where it stands."""

    whole: Term
    cond: Term
    taken: Term
    other: Term
    place: ast.expr


@dataclass(eq=False)
class Found:
    """A place where a rule holds: the fault, its reason, and its cure."""

    rule: str
    node: ast.expr  # where the caret stands
    message: str  # the reason
    whole: ast.expr  # the expression that has the fault
    culprit: Term | None = None  # the operation that a safe operation can replace
    numbers: dict[str, float] = field(default_factory=dict)  # the point at which it fails, by atom
    cure: str = ""  # in words, if there is no edit
    selection: Selection | None = None  # what drops the entries
    is_given: bool = False  # the mask of the selection comes from elsewhere
    filled: Term | None = None  # the value that a selection fills in
    columns: tuple[int, int] = (1, 1)  # of the caret, from 1, in characters
    edit: tuple[int, str, str] | None = None  # first line, old lines, new lines
    edits: Edits | None = None  # of the file
    names: tuple[str, ...] = ()  # that the edit imports
    reason: str = ""  # why there is no edit
    proof: str = ""  # the result of --confirm
    trial: str = ""  # and what it gave with the edits

    @property
    def lines(self) -> tuple[int, int]:
        """The first and the last line of the caret."""
        return self.node.lineno, self.node.end_lineno or self.node.lineno


class File(Reader):
    """A file as the rules see it: its terms, and the context of each expression."""

    def has_gradient(self, node: ast.AST) -> bool:
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

    @cached_property
    def every_term(self) -> list[Term]:
        """The terms of all operations that the file writes out, outer ones first."""
        kinds = ast.Call | ast.BinOp | ast.Subscript
        nodes = [x for x in self.order if isinstance(x, kinds)]
        read = [x for x in nodes if not isinstance(getattr(x, "ctx", None), ast.Store)]
        return [term for x in read if (term := self.term(x)).node is x and term.args]

    def terms(self, *operations: str) -> Iterator[Term]:
        """Yield the terms of these operations that a framework with gradients computes."""
        return (x for x in self.every_term if x.operation in operations and self.framework(x))

    def framework(self, *terms: Term) -> str:
        """Return the framework of the operations in terms; "" if these are not differentiated."""
        named = [part.framework for term in terms for part in term.every if part.framework]
        home = self.home if self.frameworks and not named else ""
        return next((x for x in (*named, home) if x in self.differentiated), "")

    def is_live(self, node: ast.AST, *terms: Term) -> bool:
        """Whether an expression is differentiated, and no `if` tests its operands."""
        nodes = [node, *(term.node for term in terms)]
        if any(term.is_plain for term in terms) or not all(map(self.has_gradient, nodes)):
            return False
        words = self.words_of(*terms)
        return not any(self.is_asked(one, words) for one in nodes)

    @cached_property
    def _hits(self) -> dict[tuple[object, ...], tuple[int, dict[str, float]] | None]:
        return {}

    def singular_point_of(self, *terms: Term) -> Hit | None:
        """Return the fault of a selection; copies of one are computed once."""
        every = [part for term in terms for part in term.every]
        key = (*(x.key for x in terms), *((x.framework, x.is_plain) for x in every))
        if key not in self._hits:
            found = singular_point_of(*terms)
            # In a branch, where its slope is; the condition may be written with the same operation.
            branches = range(len(terms[0].every), len(every))
            same = (i for i in branches if found and every[i].key == found.culprit.key)
            self._hits[key] = None if found is None else (next(same, 0), found.numbers)
        known = self._hits[key]
        return None if known is None else Hit(every[known[0]], known[1])

    def brief(self, node: ast.AST) -> str:
        """Return the source of an expression, on one line and shortened."""
        text = " ".join(ast.unparse(node).split())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."

    def at(self, culprit: Term, numbers: dict[str, float]) -> str:
        """Return the point at which an operation fails, in words: ``x = 0``."""
        atoms = {name: x for part in causes_of(culprit) for name, x in part.atoms.items()}
        known = [(n, x) for n, x in (atoms or culprit.atoms).items() if n in numbers]
        shown = [f"{self.brief(x.node)} = {numbers[n]:g}" for n, x in known if not x.is_plain]
        return " and ".join(shown[:2]) or "its singular point"


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


def zeros(term: Term) -> dict[str, float]:
    return dict.fromkeys(term.atoms, 0.0)

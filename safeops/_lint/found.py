"""What the rules take and give: a file as they see it, and a place where a rule holds."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from safeops._lint.guards import Guards
from safeops._lint.names import DIFFERENTIATED, Names
from safeops._lint.probes import Hit, causes_of, hit
from safeops._lint.scopes import Scopes
from safeops._lint.terms import Reader, Term

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
    selection: "Selection | None" = None  # what drops the entries
    is_given: bool = False  # the mask of the selection comes from elsewhere
    filled: Term | None = None  # the value that a selection fills in


class Selection(NamedTuple):
    """A `where`, or a write by mask: the term, its condition, both cases, and where it stands."""

    whole: Term
    cond: Term
    taken: Term
    other: Term
    place: ast.expr


class File:
    """A file as the rules see it."""

    def __init__(self, tree: ast.Module, differentiated: frozenset[str] = DIFFERENTIATED) -> None:
        """Read the names and assignments of a file."""
        self.tree, self.differentiated = tree, differentiated
        self._hits: dict[tuple[object, ...], tuple[int, dict[str, float]] | None] = {}
        self.names = Names(self.scopes.order)
        self.dtypes: dict[ast.AST, set[str]] | None = None  # read by the rule that needs them

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
            # In a branch, where its slope is; the condition may be written with the same operation.
            branches = range(len(terms[0].every), len(every))
            same = (i for i in branches if found and every[i].key == found.culprit.key)
            place = next(same, 0)
            self._hits[key] = None if found is None else (place, found.numbers)
        known = self._hits[key]
        return None if known is None else Hit(every[known[0]], known[1])

    def text(self, node: ast.AST) -> str:
        """Return the source of an expression, on one line and shortened."""
        text = " ".join(ast.unparse(node).split())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


LONGEST = 48  # characters of an expression in a message


def at(file: File, culprit: Term, numbers: dict[str, float]) -> str:
    """Return the point at which an operation fails, in words: ``x = 0``."""
    shown = []
    atoms = {name: x for part in causes_of(culprit) for name, x in part.atoms.items()}
    for name, atom in (atoms or culprit.atoms).items():
        if name in numbers and not atom.is_plain:
            where = file.text(atom.node)
            shown.append(f"{where} = {numbers[name]:g}")
    return " and ".join(shown[:2])


def zeros(term: Term) -> dict[str, float]:
    """Return 0 for every atom."""
    return dict.fromkeys(term.atoms, 0.0)

"""What the rules take and give: a file as they see it, and a place where a rule holds."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from safeops._lint.guards import Guards
from safeops._lint.probes import Hit, causes_of, singular_point_of
from safeops._lint.terms import Term
from safeops._source.edits import Edits

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


class File(Guards):
    """A file as the rules see it."""

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


def zeros(term: Term) -> dict[str, float]:
    """Return 0 for every atom."""
    return dict.fromkeys(term.atoms, 0.0)

"""Proofs: the expressions of findings are executed at their singular points, in another process."""

import ast
import copy
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from safeops._lint.formats import Row
from safeops._lint.found import File, Found
from safeops._lint.prover import Job, serve
from safeops._lint.terms import Term
from safeops._lint.values import is_mask
from safeops._source.edits import Edits

LIMIT = 60.0  # seconds for one finding, with the import of its framework
MODULES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch", "xp": "jax"}
ANYWHERE = 0.6  # a number that is singular for nothing
NOT_PURE = "not executed: it is no pure function of arrays that lint can write down"
REBUILT = ast.Attribute | ast.BinOp | ast.Call | ast.Compare | ast.Subscript | ast.UnaryOp


class NotPureError(Exception):
    """An expression is no function of arrays and known operations alone."""


def prove(rows: Sequence[Row], limit: float = LIMIT) -> None:
    """Set `proof` of each finding to what its expression gave, and `trial` to that of its edit."""
    jobs: dict[str, list[tuple[Found, Job]]] = defaultdict(list)
    for row in rows:
        found, file = row.finding, row.file
        framework = file.framework(file.term(found.whole)) if file else ""
        module = MODULES.get(framework, "")
        try:
            job = job_of(file, found)
        except NotPureError:
            found.proof = NOT_PURE
            continue
        if module and find_spec(module) is not None:
            jobs[module].append((found, job))
        else:
            found.proof = f"not executed: {framework} cannot be imported here"
    for module, some in jobs.items():
        prover = Prover(module, limit)
        for found, job in some:
            found.proof, trial = prover.ask(job)
            found.trial = trial if found.edit is not None else ""
        prover.stop()


class Prover:
    """A process that executes expressions of one framework; a new one where one takes too long."""

    def __init__(self, module: str, limit: float) -> None:
        """Start nothing yet."""
        self.module, self.limit = module, limit
        self.pipe: Connection | None = None

    def start(self) -> Connection:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.module), daemon=True)
        self.process.start()
        theirs.close()
        return self.pipe

    def stop(self) -> None:
        if self.pipe is not None:
            self.process.kill()
            self.pipe.close()
        self.pipe = None

    def ask(self, job: Job) -> tuple[str, str]:
        """Return what was seen of an expression, and of that with its edits, in words."""
        pipe = self.pipe or self.start()
        try:
            pipe.send(job)
            if pipe.poll(self.limit):
                said: tuple[str, str] = pipe.recv()
                return said
            why = f"it took more than {self.limit:g} seconds"
        except (EOFError, OSError):
            why = "the process ended"
        self.stop()
        return f"not executed: {why}", ""


def job_of(file: File | None, finding: Found) -> Job:
    """Return the source of an expression, with its edits too, and what it takes."""
    whole, edited = finding.whole, ""
    if file is None or finding.rule == "SO009":
        raise NotPureError
    writer = Writer(file, finding.numbers)
    body = writer.written(whole)
    calls = (x for x in ast.walk(body) if isinstance(x, ast.Call))
    if not writer.arrays or any(file.called(x) is None for x in calls):
        raise NotPureError
    if finding.edits is not None:
        writer.edits = finding.edits
        with suppress(NotPureError):
            edited = ast.unparse(writer.written(whole))
    imports = file.meant | {name: f"safeops.{name}" for name in finding.names}
    nodes = ast.walk(ast.parse(f"{ast.unparse(body)}\n{edited}"))
    used = {x.id for x in nodes if isinstance(x, ast.Name)}
    imports = {name: full for name, full in imports.items() if name in used}
    arrays, masks = writer.arrays, writer.masks
    return Job(ast.unparse(body), edited, imports, arrays, masks, writer.shown)


@dataclass
class Writer:
    """Writes an expression as a function of arrays, with earlier assignments substituted."""

    file: File
    numbers: dict[str, float]
    arrays: dict[str, float] = field(default_factory=dict)
    masks: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    edits: Edits | None = None  # which are made, if there are any
    _names: dict[str, str] = field(default_factory=dict)

    def written(self, node: Any) -> Any:
        """Return a part of an expression, in which all names are arrays or modules."""
        if isinstance(node, list):
            return [self.written(x) for x in node]
        if isinstance(node, ast.keyword):
            return ast.keyword(node.arg, self.written(node.value))
        if not isinstance(node, ast.expr) or not any(
            isinstance(x, ast.Name) for x in ast.walk(node)
        ):
            return node  # a constant, an operator, an axis
        if self.edits is None or id(node) not in self.edits.changes:
            return self.unedited(node)
        # In parentheses: a name may stand for a sum.
        change = self.edits.changes[id(node)]
        return ast.parse(
            change(lambda part: f"({ast.unparse(self.written(part))})"), mode="eval"
        ).body

    def unedited(self, node: ast.expr) -> ast.expr:
        """Return the source of an expression that no edit replaces."""
        if isinstance(node, ast.Name | ast.Attribute) and self.file.full(node):
            return node  # a module, or an attribute of it
        term = self.file.term(node)
        if isinstance(node, ast.Name) and term.operation != "atom" and term.node is not node:
            return self.written(term.node)
        if term.value is not None and not isinstance(node, ast.Call | ast.UnaryOp):
            return ast.Constant(term.value)
        if term.operation == "atom" and term.node is node:
            return self.array(term)
        if not isinstance(node, REBUILT):
            raise NotPureError
        new = copy.copy(node)
        for name, part in ast.iter_fields(node):
            setattr(new, name, self.function(part) if name == "func" else self.written(part))
        return new

    def function(self, f: ast.expr) -> ast.expr:
        """Return the source of a called function: a method of an array, or one of a module."""
        if isinstance(f, ast.Attribute) and not self.file.full(f):
            return ast.Attribute(self.written(f.value), f.attr, ast.Load())
        return f

    def array(self, term: Term) -> ast.expr:
        """Return the name of an array that stands for an unknown expression."""
        if isinstance(term.node, ast.Starred | ast.Lambda | ast.Tuple | ast.List | ast.Dict):
            raise NotPureError
        name = self._names.setdefault(term.key, f"a{len(self._names)}")
        # Its own number, or that of a sum or length of it.
        around = [x for key, x in self.numbers.items() if term.key in key]
        mask = is_mask(term)
        known = self.numbers.get(term.key, 0.0 if mask else (*around, ANYWHERE)[0])
        self.arrays[name], self.shown[name] = known, self.file.brief(term.node)
        self.masks += [name] * mask
        return ast.Name(name, ast.Load())

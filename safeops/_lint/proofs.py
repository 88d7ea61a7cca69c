"""Proofs: the expressions of findings are executed at their singular points, in another process."""

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from safeops._lint.formats import Row
from safeops._lint.found import File
from safeops._lint.shapes import is_mask
from safeops._lint.terms import Term
from safeops._source.edits import Edits, rendered, root

if TYPE_CHECKING:
    from safeops._lint.linting import Finding

LIMIT = 60.0  # seconds for one finding, with the import of its framework
MODULES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch", "xp": "jax"}
HOUSE = str(Path(__file__).parents[2])
CODE = f"import sys; sys.path.insert(0, {HOUSE!r}); from safeops._lint.prover import main; main()"
ANYWHERE = 0.6  # a number that is singular for nothing
NOT_PURE = "not executed: it is no pure function of arrays that lint can write down"


class NotPureError(Exception):
    """An expression is no function of arrays and known operations alone."""


def prove(rows: Sequence[Row], limit: float = LIMIT) -> None:
    """Set `proof` of each finding to what its expression gave."""
    jobs: dict[str, list[tuple[Finding, dict[str, Any]]]] = {}
    for row in rows:
        found = row.finding
        framework = row.file.framework(row.file.term(found.found.whole)) if row.file else ""
        module = MODULES.get(framework, "")
        try:
            job = job_of(row.file, found)
        except NotPureError:
            found.proof = NOT_PURE
            continue
        if not module or find_spec(module) is None:
            found.proof = f"not executed: {framework} cannot be imported here"
            continue
        jobs.setdefault(module, []).append((found, job))
    for module, some in jobs.items():
        with Prover(module, limit) as prover:
            for found, job in some:
                found.proof, _, trial = prover.ask(job).partition("; ")
                found.trial = trial if found.edit is not None else ""


class Prover:
    """A process that executes expressions of one framework; a new one where one takes too long."""

    def __init__(self, module: str, limit: float) -> None:
        """Start nothing yet."""
        self.module, self.limit = module, limit
        self.process: subprocess.Popen[str] | None = None
        self.answers: Queue[str] = Queue()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.stop()

    def start(self) -> subprocess.Popen[str]:
        """Start a process, and a thread that waits for its answers."""
        command = [sys.executable, "-c", CODE, self.module]
        pipe = subprocess.PIPE
        process = subprocess.Popen(  # noqa: S603  (this Python)
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.answers = Queue()
        Thread(target=read_lines, args=(process, self.answers), daemon=True).start()
        return process

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.process = None

    def ask(self, job: dict[str, Any]) -> str:
        """Return the outcome of an expression, in words."""
        if self.process is None:
            self.process = self.start()
        with suppress(BrokenPipeError):
            assert self.process.stdin is not None  # noqa: S101  (a pipe was asked for)
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        try:
            return self.answers.get(timeout=self.limit) or "not executed: the process ended"
        except Empty:
            self.stop()
            return f"not executed: it took more than {self.limit:g} seconds"


def read_lines(process: "subprocess.Popen[str]", answers: "Queue[str]") -> None:
    """Put each line that a process prints into a queue, and an empty line at the end."""
    with suppress(ValueError):  # the pipe is closed
        for line in process.stdout or ():
            answers.put(line.rstrip("\n"))
    answers.put("")


# What is executed


def job_of(file: File | None, finding: "Finding") -> dict[str, Any]:
    """Return the source of an expression, and its modules, arrays and constants by name."""
    if file is None or finding.rule == "SO009":
        raise NotPureError
    writer = Writer(file, finding.found.numbers)
    body = writer.written(finding.found.whole)
    writer.check(body)
    return {
        "expression": ast.unparse(ast.fix_missing_locations(body)),
        "edited": edited(writer, finding),
        "imports": {x: full for x, full in file.meant.items() if x in writer.modules}
        | {name: f"safeops.{name}" for name in finding.names},
        "arrays": writer.arrays,
        "masks": writer.masks,
        "shown": writer.shown,
    }


def edited(writer: "Writer", finding: "Finding") -> str:
    """Return the source of an expression with the edits of its parts; "" if that is not known."""
    if finding.edits is None or finding.edit is None:
        return ""
    writer.edits = finding.edits
    with suppress(NotPureError):
        return ast.unparse(ast.fix_missing_locations(writer.written(finding.found.whole)))
    return ""


@dataclass
class Writer:
    """Writes an expression as a function of arrays, with earlier assignments substituted."""

    file: File
    numbers: dict[str, float]
    arrays: dict[str, float] = field(default_factory=dict)
    masks: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    edits: Edits | None = None  # which are made, if there are any
    _names: dict[str, str] = field(default_factory=dict)

    def written(self, node: ast.expr) -> ast.expr:
        """Return the source of an expression in which all names are arrays or modules."""
        if self.edits is None or id(node) not in self.edits.changes:
            return self.unedited(node)
        new = ast.parse(rendered(self.edits.page, node, self.edits.changes), mode="eval").body
        known = {ast.unparse(x): x for x in ast.walk(node) if isinstance(x, ast.expr)}
        return Replacer(self, known).visit(new)

    def unedited(self, node: ast.expr) -> ast.expr:
        """Return the source of an expression that no edit replaces."""
        if isinstance(node, ast.Constant):
            return node
        if isinstance(node, ast.Name | ast.Attribute) and self.file.full(node):
            return self.module(node)
        term = self.file.term(node)
        if isinstance(node, ast.Name) and term.operation != "atom" and term.node is not node:
            return self.written(term.node)
        if term.operation == "constant" and not isinstance(node, ast.Call | ast.UnaryOp):
            return ast.Constant(term.value)
        if term.operation == "atom" and term.node is node:
            return self.array(term)
        return self.rebuilt(node)

    def module(self, node: ast.expr) -> ast.expr:
        """Return the name of a module or of an attribute of it."""
        self.modules.add(root(node))
        return node

    def array(self, term: Term) -> ast.expr:
        """Return the name of an array that stands for an unknown expression."""
        if isinstance(term.node, ast.Starred | ast.Lambda | ast.Tuple | ast.List | ast.Dict):
            raise NotPureError
        name = self._names.setdefault(term.key, f"a{len(self._names)}")
        self.arrays[name] = self.number(term)
        self.shown[name] = self.file.brief(term.node)
        if is_mask(term):
            self.masks.append(name)
        return ast.Name(name, ast.Load())

    def number(self, term: Term) -> float:
        """Return the number of an atom: its own, or that of a sum or length of it."""
        if term.key in self.numbers:
            return self.numbers[term.key]
        if is_mask(term):
            return 0.0
        around = [v for key, v in self.numbers.items() if term.key in key and key != term.key]
        return around[0] if around else ANYWHERE

    def rebuilt(self, node: ast.expr) -> ast.expr:
        """Return the source of an operation on the sources of its parts."""
        new = copy.copy(node)
        if isinstance(new, ast.Call):
            if isinstance(new.func, ast.Attribute) and not self.file.full(new.func):
                new.func = copy.copy(new.func)
                new.func.value = self.written(new.func.value)
            else:
                self.module(new.func)
            new.args = [self.option(x) for x in new.args]
            new.keywords = [ast.keyword(k.arg, self.option(k.value)) for k in new.keywords]
        elif isinstance(new, ast.BinOp):
            new.left, new.right = self.written(new.left), self.written(new.right)
        elif isinstance(new, ast.UnaryOp):
            new.operand = self.written(new.operand)
        elif isinstance(new, ast.Compare):
            new.left = self.written(new.left)
            new.comparators = [self.written(x) for x in new.comparators]
        elif isinstance(new, ast.Subscript):
            new.value = self.written(new.value)
            new.slice = self.index(new.slice)
        elif isinstance(new, ast.Attribute):
            new.value = self.written(new.value)
        else:
            raise NotPureError
        return new

    def option(self, node: ast.expr) -> ast.expr:
        """Return the source of an argument: an array, or a constant such as an axis."""
        if isinstance(node, ast.Tuple | ast.List):
            if all(isinstance(x, ast.Constant | ast.UnaryOp) for x in node.elts):
                return node
            raise NotPureError
        return self.written(node)

    def index(self, node: ast.expr) -> ast.expr:
        """Return the source of an index: constants stay, a mask is written like an expression."""
        names = [x for x in ast.walk(node) if isinstance(x, ast.Name)]
        return node if not names else self.written(node)

    def check(self, body: ast.expr) -> None:
        """Raise an error if an expression calls anything unknown."""
        for node in ast.walk(body):
            if isinstance(node, ast.Call) and self.file.called(node) is None:
                raise NotPureError
        if not self.arrays:
            raise NotPureError


class Replacer(ast.NodeTransformer):
    """Writes what an edit has of the old expression; a lambda keeps its parameters."""

    def __init__(self, writer: Writer, known: dict[str, ast.expr]) -> None:
        """Take the old expressions by their source."""
        self.writer, self.known = writer, known
        self.parameters: set[str] = set()

    def visit(self, node: ast.AST) -> Any:
        """Return an expression written by the writer if it is an old one, or with old parts."""
        if isinstance(node, ast.Lambda):
            self.parameters = {x.arg for x in node.args.args}
            node.body = self.visit(node.body)
            self.parameters = set()
            return node
        old = self.known.get(ast.unparse(node)) if isinstance(node, ast.expr) else None
        names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
        if old is None or not names or not names.isdisjoint(self.parameters):
            return self.generic_visit(node)
        return self.writer.unedited(old)

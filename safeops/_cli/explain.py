"""The command `explain`: run a script until a gradient is not finite, and explain it."""

import json
import logging
import os
import runpy
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from safeops._cli.terminal import progress_line
from safeops._core.errors import INSTALL
from safeops._lint.sarif import sarif_log, sarif_place
from safeops.autodiff import Report
from safeops.autodiff._options import NonFiniteGradientError

HAS_RICH = False
with suppress(ImportError):  # an extra: without it there are no colours
    from rich.console import Console

    HAS_RICH = True

NOT_FINITE = 3  # the exit code
EPILOG = f"""
The script runs as usual until then. Exit code: {NOT_FINITE} if a gradient was not finite, 2 for a
wrong command line, or for a framework that is too old to be watched, else the exit code of the
script (1 if it raises). With --format json or sarif the report is all of standard output, and what
the script prints goes to standard error. The report goes where standard output went before the
script ran, whatever the script made of it. Watched are backward passes of PyTorch, jax.grad,
jax.value_and_grad and tf.GradientTape, also in compiled code, and steps that a guard of
safeops.integrations watches; of PyTorch those of the main thread. Not watched are other processes
that the script starts. A process that it forks prints its first report to standard error, and goes
on. To explain another function, call safeops.autodiff.explain.
"""
# The context of each framework that watches a program.
WATCHES = {"torch": "watch_backward", "jax": "watch_grad", "tensorflow": "watch_tape"}
WRITER = "jax._src.debugging"  # it logs each exception of a callback
NEEDS_ONE = f"explain watches gradients of {', '.join(WATCHES)}: {INSTALL.format('torch')}"
OF_NOTEBOOK = "make one of it by `jupyter nbconvert --to script {}`"
SO_FAR = "safeops explain: {} backward passes so far, all finite"
ALL_FINITE = "all gradients were finite: {} looked at"
UNSEEN = (
    "no backward pass of PyTorch was seen, and no gradient of jax.grad or tf.GradientTape; "
    "safeops.autodiff.explain takes a function"
)


class NotFiniteError(BaseException):  # an ``except Exception`` of the script does not catch it
    """A gradient of the script is not finite."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.set_defaults(run=explain_script)
    parser.add_argument("-q", "--quiet", action="store_true", help="print the report alone")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("-m", dest="module", nargs=REMAINDER, metavar="MODULE", help="a module")
    program.add_argument("file", nargs="?", metavar="FILE", help="a script")
    parser.add_argument("arguments", nargs=REMAINDER, help="arguments for the script")


def explain_script(options: Namespace) -> int:
    """Run a script; return 3 if one of its gradients is not finite, 1 if it raises."""
    if not any(map(find_spec, WATCHES)):
        print(NEEDS_ONE, file=sys.stderr)
        return 2
    if wrong := what_is_wrong(options):
        print(wrong, file=sys.stderr)
        return 2
    argv = options.module or [options.file, *options.arguments]
    reports: list[Report] = []
    ending: BaseException | None = None
    # Standard output is for the report alone, if a machine reads it.
    kept = nullcontext() if options.format == "text" else output_to_stderr()
    watch = partial(stop, reports, os.getpid())
    with (
        keeping("stdout"),
        keeping("stderr"),
        suppress(NotFiniteError),
        watching(watch) as passes,
        kept,
        progress_line(lambda: sum(map(len, passes)), SO_FAR, quiet=options.quiet),
    ):
        ending = ending_of(argv, is_module=bool(options.module))
    if isinstance(ending, NonFiniteGradientError):
        reports.append(ending.report)
    if reports:  # also if a bare ``except`` of the script has caught the exception
        show(reports[:1], options.format)
        return NOT_FINITE
    count = sum(map(len, passes))
    return without_finding(options.format, ending, count, quiet=options.quiet)


def without_finding(form: str, ending: BaseException | None, count: int, *, quiet: bool) -> int:
    """Say how many gradients were looked at; return 2 if none could be, 1 if the script raises."""
    unwatched = not count and has_unwatched()
    if form != "text" and not unwatched:
        show([], form)
    if isinstance(ending, Exception):
        sys.excepthook(type(ending), ending, ending.__traceback__)
    if unwatched:  # which has been said
        return 2
    if not quiet:
        passes = f"{count} backward pass{'' if count == 1 else 'es'}"
        print(ALL_FINITE.format(passes) if count else UNSEEN, file=sys.stderr)
    if ending is not None and not isinstance(ending, Exception):
        raise ending
    return 0 if ending is None else 1


@contextmanager
def watching(watch: Callable[[Report], None]) -> Iterator[list[list[bool]]]:
    """Watch the gradients of each framework that the script imports."""
    logger = logging.getLogger(WRITER)
    passes: list[list[bool]] = []
    with ExitStack() as stack:
        logger.addFilter(is_of_others)
        stack.callback(logger.removeFilter, is_of_others)
        actions = {name: partial(begin, name, watch, stack, passes) for name in WATCHES}
        stack.enter_context(at_import(actions))
        yield passes


def begin(
    name: str, watch: Callable[[Report], None], stack: ExitStack, passes: list[list[bool]]
) -> None:
    """Watch the gradients of a framework; one that is too old runs unwatched."""
    try:
        module = import_module(f"safeops.autodiff.{name}")
    except ImportError as error:
        print(error, file=sys.stderr)
        return
    passes.append(stack.enter_context(getattr(module, WATCHES[name])(watch)))


def has_unwatched() -> bool:
    """Whether the script has imported a framework that is too old to be watched."""
    used = [name for name in WATCHES if name in sys.modules]
    return any(f"safeops.autodiff.{name}" not in sys.modules for name in used)


def is_of_others(record: logging.LogRecord) -> bool:
    """Whether a message is not about an exception by which compiled code is ended."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or not error.__module__.startswith("safeops.")


def what_is_wrong(options: Namespace) -> str:
    """Return an error message for the command line; "" if it is right."""
    if options.module is not None:
        name = options.module[0] if options.module else ""
        with program_of([name], is_module=True):
            found = bool(name) and find_spec(name.split(".")[0]) is not None
        return "" if found else f"expected a module after -m, got {name or 'nothing'}: not there"
    if options.file is None:
        return "expected a script, or -m and a module, got nothing"
    path = Path(options.file)
    if path.is_dir():
        return f"expected a script, got {path}: it is a folder"
    if path.suffix == ".ipynb":
        return f"expected a script, got {path}: {OF_NOTEBOOK.format(path)}"
    return "" if path.is_file() else f"expected a script, got {path}: there is no such file"


def ending_of(argv: Sequence[str], *, is_module: bool) -> BaseException | None:
    """Run a program; return the exception that ended it, with frames of the program alone."""
    try:
        with program_of(argv, is_module=is_module):
            run(argv[0], is_module=is_module)
    except (NotFiniteError, SystemExit) as ending:
        return ending
    except Exception as ending:  # noqa: BLE001  (it is shown)
        leave_out_ours(ending)
        return ending
    return None


def leave_out_ours(error: BaseException | None) -> None:
    """Remove the frames that run and watch a program, also from the causes of an exception."""
    while error is not None:
        first = error.__traceback__
        while first is not None and is_ours(first):
            first = first.tb_next
        error.__traceback__ = part = first
        while part is not None:
            while part.tb_next is not None and is_ours(part.tb_next):
                part.tb_next = part.tb_next.tb_next
            part = part.tb_next
        error = error.__cause__ or error.__context__


def is_ours(part: TracebackType) -> bool:
    """Whether a frame is in this package, or in the modules that run a script by its name."""
    file = part.tb_frame.f_code.co_filename
    return file in RUNNERS or Path(file).is_relative_to(OURS)


OURS = Path(__file__).parents[1]
RUNNERS = (runpy.__file__, "<frozen runpy>")


def stop(reports: list[Report], process: int, report: Report) -> None:
    """Record the report, and end the script."""
    reports.append(report)
    if os.getpid() == process:
        raise NotFiniteError
    if reports == [report]:  # a fork, for which the script may wait
        print(report, file=sys.stderr)


@contextmanager
def keeping(name: str) -> Iterator[None]:
    """Context after which a stream of `sys` writes where it wrote, though a script replaced it."""
    earlier = getattr(sys, name)
    try:
        copy = os.dup(earlier.fileno())
    except (AttributeError, OSError, ValueError):  # no file
        copy = None
    try:
        yield
    finally:
        with suppress(AttributeError, OSError, ValueError):
            earlier.flush()  # a script may have closed it
        # What took its place may close it later, with a buffer that both share.
        if copy is not None and (getattr(sys, name) is not earlier or earlier.closed):
            earlier = os.fdopen(copy, "w", encoding="utf-8", errors="backslashreplace")
        elif copy is not None:
            os.dup2(copy, earlier.fileno())
            os.close(copy)
        setattr(sys, name, earlier)


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Context in which standard output is standard error, also for processes that are started."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def run(name: str, *, is_module: bool) -> None:
    """Run a program as Python does."""
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(Path(name).absolute()), run_name="__main__")


@contextmanager
def program_of(argv: Sequence[str], *, is_module: bool) -> Iterator[None]:
    """Give a program its own arguments, and let it import modules beside it, and go elsewhere."""
    earlier, here = (sys.argv, sys.path), Path.cwd()
    folder = str(Path.cwd() if is_module else Path(argv[0]).resolve().parent)
    sys.argv, sys.path = list(argv), [folder, *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = earlier
        os.chdir(here)  # paths in a report are relative to it


def show(reports: Sequence[Report], form: str) -> None:
    """Print reports; as text in colour on a terminal, without breaking lines."""
    if HAS_RICH and form == "text" and sys.stdout.isatty():
        Console(highlight=False, soft_wrap=True).print(*reports)
    else:
        print(FORMATS[form](reports))


# What is done when a program imports a module, so that nothing is imported for it before.


class Following(Loader):
    """A loader that does something when its module is there."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader  # which a module may ask for its files
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then()


class Finder(MetaPathFinder):
    """A finder that finds what the others find, and does something when it is there."""

    def __init__(self, names: Sequence[str], then: Callable[[str], None]) -> None:
        self.names, self.then = names, then

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is."""
        if fullname not in self.names:
            return None
        found = (f.find_spec(fullname, path, target) for f in sys.meta_path if f is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = Following(spec.loader, partial(self.then, fullname))
        return spec


@contextmanager
def at_import(actions: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Context in which something is done when a module is imported, or is there already."""
    finder = Finder(tuple(actions), lambda name: actions[name]())
    for name in actions:
        if name in sys.modules:
            actions[name]()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


# Reports of `explain` in the formats of the command line: text, JSON, SARIF.


# A kind as a rule of SARIF: its title and its level.
RULES = {
    "FORWARD": ("value-not-finite", "error"),
    "GENUINE": ("derivative-not-finite", "error"),
    "BLOCKED": ("derivative-not-finite-where-nothing-is-used", "warning"),
    "INTERIM": ("value-on-the-way-not-finite", "note"),
    "UNKNOWN": ("operation-without-a-rule", "note"),
}
OF_FINDING = ("operation", "entries", "size", "what", "selection", "times", "modules", "rows")
OF_REPORT = ("framework", "parameters", "step", "rank")
RELATED = {"selected_at": "dropped here", "entered_at": "the NaN came in here"}


def as_sarif(reports: Sequence[Report]) -> str:
    """Return reports as a log in SARIF 2.1.0."""
    found = [(finding, x) for x in map(Report.to_dict, reports) for finding in x["findings"]]
    used = sorted({finding["kind"] for finding, _ in found})
    results = [
        result(finding, used) | {"properties": properties(finding, x)} for finding, x in found
    ]
    return sarif_log([(kind, RULES[kind][0]) for kind in used], results)


def result(finding: Mapping[str, Any], used: Sequence[str]) -> dict[str, Any]:
    related = [
        sarif_place(finding[key]["path"], finding[key]) | {"message": {"text": text}}
        for key, text in RELATED.items()
        if finding[key] is not None
    ]
    where = finding["where"]
    given = {
        "ruleId": finding["kind"],
        "ruleIndex": used.index(finding["kind"]),
        "level": RULES[finding["kind"]][1],
        "message": {"text": finding["message"]},
        "locations": [] if where is None else [sarif_place(where["path"], where)],
    }
    return given | ({"relatedLocations": related} if related else {})


def properties(finding: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what SARIF has no key for: which entries and which training a finding is of."""
    own = {key: finding[key] for key in OF_FINDING}
    return own | {key: report[key] for key in OF_REPORT}


FORMATS: Mapping[str, Callable[[Sequence[Report]], str]] = {
    "text": lambda reports: "\n\n".join(map(str, reports)),
    "json": lambda reports: json.dumps([x.to_dict() for x in reports], indent=2),
    "sarif": as_sarif,
}

"""The command `explain`: run a script of PyTorch until a gradient is not finite, and say why."""

import runpy
import sys
from argparse import REMAINDER, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safeops.autodiff import Report

HAS_RICH = False
with suppress(ImportError):  # an extra: without it there is no colour
    from rich.console import Console

    HAS_RICH = True

SAID = "run a script of PyTorch, and say which line made the first gradient that is not finite"
EPILOG = """
The script runs as ever until then. Exit code: 1 if a gradient was not finite, else that of the
script. To explain a function of JAX or TensorFlow, call safeops.autodiff.explain.
"""
NEEDS_TORCH = 'the backward pass of PyTorch is watched: pip install "safeops[torch]"'
UNSEEN = "no backward pass of PyTorch was seen; safeops.autodiff.explain takes a function"


class NotFiniteError(BaseException):  # so that no ``except Exception`` of the script stops it
    """A gradient of the script is not finite."""


def add_explain(commands: Any) -> None:
    """Add the command that watches a script."""
    parser = commands.add_parser("explain", help=SAID, description=SAID, epilog=EPILOG)
    parser.set_defaults(run=explain_script)
    program = parser.add_mutually_exclusive_group(required=True)
    program.add_argument("-m", dest="module", nargs=REMAINDER, metavar="MODULE", help="a module")
    program.add_argument("file", nargs="?", metavar="FILE", help="a script")
    parser.add_argument("arguments", nargs=REMAINDER, help="what the script is given")


def explain_script(options: Namespace) -> int:
    """Run a script; return 1 if one of its gradients is not finite."""
    if find_spec("torch") is None:
        print(NEEDS_TORCH, file=sys.stderr)
        return 2
    if not options.module and not Path(options.file or "").is_file():
        print(f"expected a script, or -m and a module, got {options.file}", file=sys.stderr)
        return 2
    from safeops.autodiff.torch import watch_backward  # noqa: PLC0415  (PyTorch takes its time)

    argv = options.module or [options.file, *options.arguments]
    reports: list[Report] = []
    watch = partial(stop, reports)
    try:
        with watch_backward(watch) as passes, program_of(argv, is_module=bool(options.module)):
            run(argv[0], is_module=bool(options.module))
    except (NotFiniteError, SystemExit):
        if not reports:
            raise
    if reports:  # also where a bare ``except`` of the script has met the exception
        show(reports[0])
        return 1
    if not passes:
        print(UNSEEN, file=sys.stderr)
    return 0


def stop(reports: list[Report], report: Report) -> None:
    """Keep the report, and end the script."""
    reports.append(report)
    raise NotFiniteError


def run(name: str, *, is_module: bool) -> None:
    """Run a program as Python does."""
    if is_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")


@contextmanager
def program_of(argv: Sequence[str], *, is_module: bool) -> Iterator[None]:
    """Let a program see its own arguments, and import what lies beside it."""
    earlier = sys.argv, sys.path
    folder = str(Path.cwd() if is_module else Path(argv[0]).resolve().parent)
    sys.argv, sys.path = list(argv), [folder, *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = earlier


def show(report: Report) -> None:
    """Print a report, in colour if that goes to a terminal."""
    if HAS_RICH:
        Console(highlight=False, soft_wrap=True).print(report)
    else:
        print(report)

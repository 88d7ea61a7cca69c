"""The command `lint`: its arguments, its output, and its exit code."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

from safeops._cli.terminal import coloured, followed, is_coloured
from safeops._lint.formats import FORMATS, Row
from safeops._lint.linting import Report, lint
from safeops._lint.proofs import prove
from safeops._lint.settings import Settings, SettingsError, settings_of
from safeops._lint.sources import SUFFIXES, Source, UnreadableError, files_in, read

EPILOG = """
Files are read, and never imported or run, except for the expressions that --confirm executes; these
contain known operations of the framework alone. Exit code: 0 if nothing was found, or all of it
repaired; 1 if something was found; 2 for a wrong command line or configuration. Configuration:
select, ignore, exclude, numpy and everywhere in [tool.safeops.lint] of pyproject.toml; "# safeops:
ignore[SO001]" on a line.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EPILOG
    parser.set_defaults(run=run)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or a folder")
    parser.add_argument("--select", type=words, metavar="RULES", help="these alone: SO001,SO004")
    parser.add_argument("--ignore", type=words, metavar="RULES", help="all but these")
    parser.add_argument("--fix", action="store_true", help="edit the files")
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="execute what was found at its singular point, in a process of its own",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print findings alone")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--numpy", action="store_true", help="report NumPy too, which has no gradients itself"
    )
    parser.add_argument(
        "--everywhere", action="store_true", help="report modules called metrics, optim, ... too"
    )


def words(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",")]


def run(options: Namespace) -> int:
    """Read the files and print findings; return the exit code."""
    try:
        settings = settings_for(options)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # sources may have characters that the terminal lacks
            stream.reconfigure(errors="backslashreplace")
    files = list(files_in(options.paths, settings.exclude))
    each = followed(files, "lint: {} of {} files read", quiet=options.quiet)
    pairs = list(reports(each, settings))
    if options.fix:
        pairs = [repaired(source, report, settings) for source, report in pairs]
    rows = [
        Row(source, found, report.file) for source, report in pairs for found in report.findings
    ]
    if options.confirm:
        prove(rows)
    if rows or options.format in {"json", "sarif"}:
        text = FORMATS[options.format](rows)
        print(coloured(text) if options.format == "text" and is_coloured(sys.stdout) else text)
    if not options.quiet:
        print(summary(rows, len(pairs)), file=sys.stderr)
    return int(bool(rows))


def settings_for(options: Namespace) -> Settings:
    """Return the settings; raise if a path does not exist."""
    for path in options.paths:
        if not path.exists():
            msg = f"expected a file or a folder, got {path}: there is no such file"
            raise SettingsError(msg)
        if path.is_file() and path.suffix not in SUFFIXES:
            msg = f"expected a file of Python or a notebook, got {path}"
            raise SettingsError(msg)
    first = options.paths[0]
    start = first if first.is_dir() else first.parent
    given = {"numpy": options.numpy, "everywhere": options.everywhere}
    return settings_of(start, options.select, options.ignore, **given)


def reports(files: Iterable[Path], settings: Settings) -> Iterator[tuple[Source, Report]]:
    """Yield each file with its report; files that do not parse are named and skipped."""
    for file in files:
        try:
            source = read(file)
            select = settings.select_in(file)
            yield source, lint(source.text, select, numpy=settings.numpy)
        except UnreadableError as error:
            print(f"{file}: skipped, {error}", file=sys.stderr)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            said = getattr(error, "msg", None) or str(error) or "nested too deep"
            print(f"{file}{f':{line}' if line else ''}: skipped, {said}", file=sys.stderr)


def repaired(source: Source, report: Report, settings: Settings) -> tuple[Source, Report]:
    """Write a file with its edits, and return the report on the result."""
    if not report.fixes:
        return source, report
    if not source.is_writable:
        print(f"{source.path}: not edited, its JSON has a layout of its own", file=sys.stderr)
        return source, report
    try:
        source.write(report.fixed)
    except (OSError, UnicodeEncodeError) as error:
        print(f"{source.path}: not edited, {error}", file=sys.stderr)
        return source, report
    source.text = report.fixed
    return source, lint(source.text, settings.select_in(source.path), numpy=settings.numpy)


def summary(rows: Sequence[Row], files: int) -> str:
    """Return the number of findings, in words."""
    count = len(rows)
    edits = sum(row.finding.edit is not None for row in rows)
    read_ = f"{files} file{'' if files == 1 else 's'} read"
    if not count:
        return f"nothing found, {read_}"
    found = f"{count} finding{'' if count == 1 else 's'}, {read_}"
    return f"{found}; --fix repairs {edits} of them" if edits else found

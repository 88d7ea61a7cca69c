"""The command `lint`: its arguments, its output, and its exit code."""

import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import unified_diff
from io import TextIOWrapper
from pathlib import Path

from safeops._cli.terminal import coloured, followed, is_coloured
from safeops._lint.formats import FORMATS, Row
from safeops._lint.found import TITLES
from safeops._lint.linting import Report, Settings, SettingsError, settings_of, wrong
from safeops._lint.proofs import prove
from safeops._lint.sources import STDIN, SUFFIXES, Source, UnreadableError, files_in, lines_of, read

EPILOG = """
Files are read, and never imported or run, except for the expressions that --confirm executes; these
contain known operations of the framework alone. Exit code: 0 if nothing was found, or all of it
repaired; 1 if something was found; 2 for a wrong command line or configuration; 3 if nothing was
found in what could be read, and a file was skipped. Configuration: select, ignore, exclude, numpy
and everywhere in [tool.safeops.lint] of pyproject.toml; "# safeops: ignore[SO001]" on a line.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.set_defaults(run=run)
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a file, a folder, or - for stdin"
    )
    parser.add_argument("--select", type=words, metavar="RULES", help="these alone: SO001,SO004")
    parser.add_argument("--ignore", type=words, metavar="RULES", help="all but these")
    parser.add_argument("--fix", action="store_true", help="edit the files, and say what was done")
    parser.add_argument("--diff", action="store_true", help="print what --fix would do, and do not")
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="execute what was found at its singular point, in a process of its own",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print findings alone")
    parser.add_argument("--statistics", action="store_true", help="print how often each rule found")
    parser.add_argument("--exit-zero", action="store_true", help="end with 0 for findings too")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--numpy", action="store_true", help="report NumPy too, which has no gradients itself"
    )
    parser.add_argument(
        "--everywhere", action="store_true", help="report modules called metrics, optim, ... too"
    )


def words(text: str) -> list[str]:
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
    done: list[Row] = []
    if options.fix and not options.diff:
        results = [repaired(source, report, settings) for source, report in pairs]
        pairs = [(source, report) for source, report, _ in results]
        done = [row for *_, rows in results for row in rows]
    rows = rows_of(pairs)
    if options.confirm:
        prove(rows)
    show(options, settings, pairs, rows, done)
    if rows:
        return 0 if options.exit_zero else 1
    return 3 if len(pairs) < len(files) else 0


def rows_of(pairs: Iterable[tuple[Source, Report]]) -> list[Row]:
    return [Row(source, one, report.file) for source, report in pairs for one in report.findings]


def show(
    options: Namespace,
    settings: Settings,
    pairs: Sequence[tuple[Source, Report]],
    rows: Sequence[Row],
    done: Sequence[Row],
) -> None:
    """Print what was done, what was found, and a summary."""
    is_text = options.format == "text"
    is_filter = STDIN in options.paths and options.fix and not options.diff
    out = sys.stderr if is_filter else sys.stdout  # where the edited source goes
    for row in done:
        print(f"{row.place}: {row.finding.rule} repaired", file=out if is_text else sys.stderr)
    if options.diff:
        news = (edited(source, report, settings)[0] for source, report in pairs)
        each = (diff_of(old, new) for (old, _), new in zip(pairs, news, strict=True))
        text = "".join(each).rstrip("\n")
    elif options.statistics:
        text = statistics(rows)
    else:
        is_said = rows or options.format in {"json", "sarif"}
        text = FORMATS[options.format](rows) if is_said else ""
    if text:
        print(coloured(text) if is_text and is_coloured(out) else text, file=out)
    if not options.quiet:
        print(summary(rows, len(pairs), len(done)), file=sys.stderr)


def diff_of(source: Source, new: Source) -> str:
    """Return the edits of a file as a unified diff."""
    name = str(source.path) if source.is_writable else ""
    lines = unified_diff(lines_of(source.text), lines_of(new.text), name, name) if name else ()
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def statistics(rows: Sequence[Row]) -> str:
    """Return how often each rule found something, and how often it has an edit."""
    counts = Counter(row.finding.rule for row in rows)
    edits = Counter(row.finding.rule for row in rows if row.finding.edit is not None)
    lines = (f"{n:6}  {x} {TITLES[x]}, {edits[x]} with an edit" for x, n in counts.most_common())
    return "\n".join(lines)


def settings_for(options: Namespace) -> Settings:
    """Return the settings; raise if a path does not exist."""
    for path in (x for x in options.paths if x != STDIN):
        if not path.exists():
            wrong(f"expected a file or a folder, got {path}: there is no such file")
        if not path.is_dir() and path.suffix not in SUFFIXES:
            wrong(f"expected a file of Python or a notebook, got {path}")
    first = options.paths[0]
    given = {"numpy": options.numpy, "everywhere": options.everywhere}
    folder = first if first.is_dir() else first.parent
    return settings_of(folder, options.select, options.ignore, **given)


def reports(files: Iterable[Path], settings: Settings) -> Iterator[tuple[Source, Report]]:
    """Yield each file with its report; files that do not parse are named and skipped."""
    for file in files:
        try:
            source = read(file)
            yield source, settings.report(source)
        except (UnreadableError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            said = getattr(error, "msg", None) or str(error) or "nested too deep"
            print(f"{file}{f':{line}' if line else ''}: skipped, {said}", file=sys.stderr)


def edited(source: Source, report: Report, settings: Settings) -> tuple[Source, Report, list[Row]]:
    """Return a file with its edits, the report on the result, and what was repaired."""
    done: list[Row] = []
    for _ in range(ROUNDS if report.fixes else 0):  # behind one operation there may be another one
        done += [row for row in rows_of([(source, report)]) if row.finding.edit is not None]
        source = replace(source, text=report.fixed)
        report = settings.report(source)
        if not report.fixes:
            break
    return source, report, done


ROUNDS = 9


def repaired(
    source: Source, report: Report, settings: Settings
) -> tuple[Source, Report, list[Row]]:
    """Write a file with its edits; return the report on the result, and what was repaired."""
    if not report.fixes and source.path != STDIN:
        return source, report, []
    said: object = "its JSON has a layout of its own"
    if source.is_writable:
        new, left, done = edited(source, report, settings)
        try:
            source.write(new.text)
        except (OSError, UnicodeEncodeError) as error:
            said = error
        else:
            return new, left, done
    print(f"{source.path}: not edited, {said}", file=sys.stderr)
    return source, report, []


def summary(rows: Sequence[Row], files: int, done: int) -> str:
    """Return the number of findings, in words."""
    edits = sum(row.finding.edit is not None for row in rows)
    left = "left" if done else ""
    found = [in_words(len(rows), "finding"), left] if rows else ["nothing", left or "found"]
    said = f"{f'{done} repaired, ' if done else ''}{' '.join(found).strip()}"
    said = f"{said}, {in_words(files, 'file')} read"
    more = f"; --fix repairs {edits} of them, --diff shows how\n{RECIPES}"
    return f"{said}{more if edits else ''}"


RECIPES = "no dependency wanted? `safeops recipe NAME` prints each safe operation to copy"


def in_words(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

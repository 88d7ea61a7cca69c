"""Where reports go: a logger, and a file."""

from logging import ERROR, INFO, Logger, getLogger
from os import PathLike
from pathlib import Path

from safeops.autodiff._explain.report import Report


def publish(
    report: Report, *, logger: Logger | None = None, file: str | PathLike[str] | None = None
) -> None:
    """Send a report to a logger, and append it to a file."""
    title = "a gradient is not finite"
    if report.step is not None:
        title += f" at step {report.step}"
    if report.rank is not None:
        title += f" on rank {report.rank}"
    level = INFO if report.ok else ERROR  # another rank has what is wrong
    (logger or getLogger("safeops")).log(level, "%s\n%s", title, report)
    if file is not None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(report.to_json(indent=None) + "\n")

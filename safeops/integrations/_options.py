"""What the doors of guards share: their options, and where reports go."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import ERROR, INFO, Logger, getLogger
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from safeops.autodiff._explain.report import Report
from safeops.autodiff._options import OnNan

ON_NAN = get_args(OnNan)
# What becomes of the step; an error says so itself.
DONE = {"skip": ", which is skipped", "mask": ", which is masked if that cures it"}


@dataclass
class Outlet:
    """Send reports to a logger, and append them to a file; the same findings are told once."""

    on_nan: str
    logger: Logger | None = None
    file: str | PathLike[str] | None = None
    # By the findings: the first step with them, and how many steps have them.
    known: dict[Any, tuple[int | None, int]] = field(default_factory=dict)

    def __call__(self, report: Report) -> None:
        """Send a report."""
        title = "a gradient is not finite"
        if report.step is not None:
            title += f" at step {report.step}"
        if report.rank is not None:
            title += f" on rank {report.rank}"
        title += DONE.get(self.on_nan, "")
        key = tuple((f.kind, f.operation, f.where) for f in report.findings), report.parameters
        first, times = self.known.get(key, (report.step, 0))
        self.known[key] = first, times + 1
        text = f"as at step {first}, {times + 1} times so far" if times else report
        # Another rank has what is wrong.
        level = INFO if all(f.reason == "rank" for f in report.findings) else ERROR
        (self.logger or getLogger("safeops")).log(level, "%s\n%s", title, text)
        if self.file is not None:
            with Path(self.file).open("a", encoding="utf-8") as lines:
                lines.write(report.to_json(indent=None) + "\n")


def check(on_nan: str, choices: Sequence[str] = ON_NAN) -> None:
    """Raise ValueError for an unknown option."""
    if on_nan not in choices:
        msg = f"expected on_nan out of ({', '.join(choices)}), got {on_nan!r}"
        raise ValueError(msg)


def is_a(x: Any, name: str) -> bool:
    """Whether something is of a class with this name, which is not imported for that."""
    return name in (f"{c.__module__}.{c.__qualname__}" for c in type(x).__mro__)


def engine_for(model: Any, scaler: Any, group: Any, tell: Outlet) -> Any:
    """Return what guards the steps of a model of PyTorch."""
    from safeops.integrations import _torch  # noqa: PLC0415  (it imports PyTorch)

    return _torch.Guard(model, tell.on_nan, scaler, group, tell)

"""Findings as plain data, for JSON: the keys are those of `python -m safeops lint`."""

import linecache
import math
from typing import TYPE_CHECKING, Any

from safeops._source.locations import Location, column_in, path_of

if TYPE_CHECKING:
    from safeops.autodiff._explain.repairs import Repair
    from safeops.autodiff._explain.report import Finding


def place_record(where: Location | None) -> dict[str, Any] | None:
    """Return a line as an object; columns count characters from 1, and the last one is behind."""
    if where is None:
        return None
    record: dict[str, Any] = {"path": path_of(where.file), "line": where.line}
    if where.span is not None:
        _, last, start, end = where.span
        record["column"] = column_in(linecache.getline(where.file, where.line), start)
        end_column = column_in(linecache.getline(where.file, last), end)
        record |= {"end_line": last, "end_column": end_column}
    return record | {"source": where.source}


def fix_record(repair: "Repair") -> dict[str, Any] | None:
    """Return an edit as an object."""
    edit = repair.edit
    if edit is None:
        return None
    change = {"old": edit.old, "new": edit.new, "imports": repair.imports}
    return {"path": path_of(edit.where.file), "line": edit.where.line, **change}


def finding_record(finding: "Finding") -> dict[str, Any]:
    """Return a finding as an object; lines that are not known are null."""
    return {
        "kind": finding.kind,
        "operation": finding.operation,
        "message": finding.message,
        "where": place_record(finding.where),
        "entries": finding.entries,
        "size": math.prod(finding.shape),
        "shape": list(finding.shape),
        "what": finding.what,
        "value": finding.value,
        "times": finding.times,
        "nan_operand": finding.nan_operand,
        "reason": finding.reason,
        "selection": finding.selection,
        "selected_at": place_record(finding.selected_at),
        "entered_at": place_record(finding.entered_at),
        "entered_by": finding.entered_by,
        "passed": finding.passed,
        "modules": list(finding.modules),
        "rows": list(finding.rows),
        "fix": fix_record(finding.repair),
        "advice": finding.repair.text,
    }

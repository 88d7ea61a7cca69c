"""Reports of `explain` in the formats of the command line: text, JSON, SARIF."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from safeops._lint.formats import sarif_log, sarif_place
from safeops.autodiff import Report

# A kind as a rule of SARIF: its title and its level.
RULES = {
    "FORWARD": ("value-not-finite", "error"),
    "GENUINE": ("derivative-not-finite", "error"),
    "BLOCKED": ("derivative-not-finite-where-nothing-is-used", "warning"),
    "INTERIM": ("value-on-the-way-not-finite", "note"),
    "UNKNOWN": ("operation-without-a-rule", "note"),
}
# A line of a report as a region of SARIF.
REGION = {
    "line": "startLine",
    "column": "startColumn",
    "end_line": "endLine",
    "end_column": "endColumn",
}
OF_FINDING = ("operation", "entries", "size", "what", "selection", "times", "modules", "rows")
OF_REPORT = ("framework", "parameters", "step", "rank")
RELATED = {"selected_at": "dropped here", "entered_at": "the NaN came in here"}


def as_text(reports: Sequence[Report]) -> str:
    """Return reports as text."""
    return "\n\n".join(map(str, reports))


def as_json(reports: Sequence[Report]) -> str:
    """Return reports as a JSON list."""
    return json.dumps([report.to_dict() for report in reports], indent=2)


def as_sarif(reports: Sequence[Report]) -> str:
    """Return reports as a log in SARIF 2.1.0."""
    found = [(finding, x) for x in map(Report.to_dict, reports) for finding in x["findings"]]
    used = sorted({finding["kind"] for finding, _ in found})
    results = [
        result(finding, used) | {"properties": properties(finding, x)} for finding, x in found
    ]
    return sarif_log([(kind, RULES[kind][0]) for kind in used], results)


def result(finding: Mapping[str, Any], used: Sequence[str]) -> dict[str, Any]:
    """Return a finding as a SARIF result."""
    related = [
        located(finding[key]) | {"message": {"text": text}}
        for key, text in RELATED.items()
        if finding[key] is not None
    ]
    given = {
        "ruleId": finding["kind"],
        "ruleIndex": used.index(finding["kind"]),
        "level": RULES[finding["kind"]][1],
        "message": {"text": finding["message"]},
        "locations": [] if finding["where"] is None else [located(finding["where"])],
    }
    return given | ({"relatedLocations": related} if related else {})


def properties(finding: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what SARIF has no key for: which entries and which training a finding is of."""
    own = {key: finding[key] for key in OF_FINDING}
    return own | {key: report[key] for key in OF_REPORT}


def located(place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line as a SARIF location."""
    return sarif_place(place["path"], {REGION[key]: place[key] for key in REGION if key in place})


FORMATS: Mapping[str, Callable[[Sequence[Report]], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
}

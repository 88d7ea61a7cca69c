"""Findings as SARIF 2.1.0, for `explain` and `lint`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from safeops import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# The names of a region, for those of our own JSON.
REGION = {"line": "startLine", "column": "startColumn"}
REGION |= {"end_line": "endLine", "end_column": "endColumn"}


def sarif_log(rules: Sequence[tuple[str, str]], results: Sequence[Any]) -> str:
    """Return a log in SARIF 2.1.0, of rules with their titles and of results."""
    named = [
        {"id": rule, "name": title, "shortDescription": {"text": title.replace("-", " ")}}
        for rule, title in rules
    ]
    driver = {"name": "safeops", "version": __version__, "rules": named}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": list(results)}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def sarif_place(path: str, place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a place in a file as a SARIF location: an absolute path is a URI with a scheme."""
    region = {name: place[key] for key, name in REGION.items() if key in place}
    is_absolute = Path(path).is_absolute()
    uri = Path(path).as_uri() if is_absolute else quote(path.encode(errors="surrogateescape"))
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}

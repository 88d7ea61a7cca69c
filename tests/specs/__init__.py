"""One specification an operation, in the file of its family: `points.Spec` says what is in it."""

from importlib import import_module
from pathlib import Path

FAMILIES = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
SPECS = tuple(spec for name in FAMILIES for spec in import_module(f"specs.{name}").SPECS)
ROWS = tuple(row for spec in SPECS for row in spec.rows)
SWEPT = tuple(spec for spec in SPECS if spec.formula)  # over all exponents
SYNONYMS = {spec.name: spec.synonyms for spec in SPECS if spec.synonyms}

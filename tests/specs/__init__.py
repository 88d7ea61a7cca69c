"""One specification an operation, in the file of its family: `points.Spec` says what is in it."""

from importlib import import_module
from pathlib import Path

from points import Spec
from slices import SliceSpec

FAMILIES = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
EVERY = tuple(spec for name in FAMILIES for spec in import_module(f"specs.{name}").SPECS)
SPECS = tuple(spec for spec in EVERY if isinstance(spec, Spec))  # of elementwise operations
ON_SLICES = tuple(spec for spec in EVERY if isinstance(spec, SliceSpec))
ROWS = tuple(row for spec in SPECS for row in spec.rows)
SLICE_ROWS = tuple(row for spec in ON_SLICES if not spec.reduction for row in spec.rows)
REDUCTION_ROWS = tuple(row for spec in ON_SLICES if spec.reduction for row in spec.rows)
SWEPT = tuple(spec for spec in SPECS if spec.formula)  # over all exponents
SYNONYMS = {spec.name: spec.synonyms for spec in EVERY if spec.synonyms}

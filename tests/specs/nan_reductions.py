"""The specifications of the operations in `nan_reductions.py`, which are made with their twins."""

from specs import reductions

SPECS = tuple(spec for spec in reductions.EVERY if spec.name.startswith("nan"))

"""A diary of gradients: for each backward pass, the norm of each and whether it is finite."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from safeops._typing import Array

COLUMNS = ("step", "parameter", "norm", "finite")


class Diary:
    """A file to which each backward pass adds a line for each gradient."""

    def __init__(
        self, file: str | PathLike[str], parameters: Iterable[tuple[str, Array]] = ()
    ) -> None:
        self.file = Path(file)
        given = list(parameters)
        self.names = {id(x): name for name, x in given}
        self.alive = given  # the id of a tensor is that of another one when it is gone
        self.steps = 0
        self.is_csv = self.file.suffix == ".csv"
        self.write([COLUMNS] if self.is_csv else [], mode="w")

    def __call__(self, leaves: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Add the lines of a backward pass."""
        named = ((self.name_of(i, x), gradients[i]) for i, x in enumerate(leaves))
        pairs = [(name, g) for name, g in named if g is not None and name is not None]
        sizes = sizes_of([g for _, g in pairs])
        lines = [
            (self.steps, name, norm, math.isfinite(most))
            for (name, _), (norm, most) in zip(pairs, sizes, strict=True)
        ]
        self.write(lines)
        self.steps += 1

    def name_of(self, place: int, x: Any) -> str | None:
        """Return the name of a tensor, None if others have one; if none has, its place."""
        return self.names.get(id(x)) if self.names else str(place)

    def write(self, lines: Sequence[Any], mode: str = "a") -> None:
        """Add lines to the file."""
        with self.file.open(mode, encoding="utf-8", newline="") as out:
            if self.is_csv:
                csv.writer(out, lineterminator="\n").writerows(lines)
                return
            for step, name, norm, finite in lines:
                held = norm if math.isfinite(norm) else str(norm)  # JSON has no NaN
                row = zip(COLUMNS, (step, name, held, finite), strict=True)
                out.write(json.dumps(dict(row)) + "\n")


def sizes_of(gradients: Sequence[Any]) -> list[list[float]]:
    """Return norms and largest sizes of entries, with one copy from each device."""
    found: list[Any] = [None] * len(gradients)
    with torch.no_grad():
        for device in {g.device for g in gradients}:
            here = [i for i, g in enumerate(gradients) if g.device == device]
            sizes = torch.stack([size_of(gradients[i]) for i in here]).tolist()
            for i, size in zip(here, sizes, strict=True):
                found[i] = size
    return found


def size_of(gradient: Any) -> Array:
    """Return the norm and the largest size of a gradient, in float64, which holds squares."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    values = values.detach().abs().double().flatten()
    most = values.amax() if values.numel() else values.sum()
    return torch.stack([torch.linalg.vector_norm(values), most])

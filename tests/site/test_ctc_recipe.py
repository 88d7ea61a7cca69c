"""The recipe of the lesson on CTC, for one framework at a time, without the rest of its page."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs/notebooks/a-label-that-does-not-fit.md"
CELL = re.compile(r"```\{code-cell\} python\n(.*?)```", re.DOTALL)
# What a framework is called on the page, and the modules that its cells use.
OWN = {
    "torch": ("torch", {"torch": "torch"}),
    "jax": ("optax", {"jax": "jax", "jnp": "jax.numpy", "optax": "optax"}),
    "tensorflow": ("tensorflow", {"tf": "tensorflow"}),
}
SHARED = ("frames, classes", "def spelled", "def fits", "def torch_loss")


def cells_of(framework):
    """Return what the cells define that the recipe needs in a framework."""
    title, modules = OWN[framework]
    names = {name: pytest.importorskip(module) for name, module in modules.items()}
    names |= {"np": np, "itertools": itertools}
    for cell in CELL.findall(PAGE.read_text()):
        if cell.startswith((*SHARED, f"def in_{title}")):
            exec(cell, names)
    return names


@pytest.mark.usefixtures("mixed_dtypes")  # optax has some
def test_the_recipe_is_right_where_a_label_does_not_fit(autodiff_framework):
    """Loss and gradient are those of the paths that were counted out; none is 0, also of NaN."""
    names = cells_of(autodiff_framework)
    slope_of = names[f"{autodiff_framework}_slope"]
    recipe = names[f"{autodiff_framework}_loss"]
    names["logits"][2] = np.nan

    value, slope = slope_of(recipe)

    for i, found in enumerate(names["exact"]):
        wanted = (0, 0) if found is None else (found[0] / 3, found[1] / 3)
        np.testing.assert_allclose(value[i], wanted[0], atol=1e-5)
        np.testing.assert_allclose(slope[i], np.broadcast_to(wanted[1], (3, 3)), atol=1e-5)


def test_every_cell_that_the_recipe_needs_is_found():
    """A cell that is renamed on the page is missed here, and not left out in silence."""
    cells = CELL.findall(PAGE.read_text())
    starts = (*SHARED, *(f"def in_{title}" for title, _ in OWN.values()))

    assert all(sum(cell.startswith(start) for cell in cells) == 1 for start in starts)

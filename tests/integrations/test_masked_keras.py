"""The recipes of the documentation for Keras: `fit` with masked gradients, on each backend."""

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

pytestmark = [
    pytest.mark.only("jax", "tensorflow", "torch"),
    pytest.mark.whole,
    pytest.mark.usefixtures("users_defaults"),
    # NumPy 2 says so of the tensors of PyTorch that Keras takes the numbers of (keras 3.15).
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
PAGE = Path(__file__).parents[2] / "docs/explain/masked-autodiff.md"
CELL = re.compile(r"```\{code-cell\} python\n(.*?)```", re.DOTALL)
CLASSES = {"jax": "MaskedOnJax", "tensorflow": "MaskedOnTensorFlow", "torch": "MaskedOnTorch"}
X = np.float32([[1.0, 2.0], [0.0, 0.0], [0.5, 3.0], [0.0, 1.0]])  # the first number is the label
WHOLE = X[[0, 2]]


def names_of_page():
    """Return what the cells define that the recipe for this backend needs."""
    backend = keras.config.backend()
    names = dict(vars(import_module(f"safeops.autodiff.{backend}"))) | {"keras": keras}
    for name in (CLASSES[backend], "loss_of_rows"):
        (cell,) = [
            cell
            for cell in CELL.findall(PAGE.read_text())
            if re.search(rf"(class|def) {name}\(", cell)
        ]
        with suppress(NameError):  # of TensorFlow, behind the definition of the loss
            exec(cell, names)
    return names


def trained(kind, loss, x, *, before=()):
    """Return the weights of a model without hidden layers, after two epochs."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((2,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"])
    for batch in (*before, x):
        model.fit(batch, batch[:, :1], epochs=2, batch_size=4, verbose=0)
    return model.get_weights()


def test_masked_weights_are_right():
    """They are those of the loss of the rows that count, where the plain ones are NaN."""
    names = names_of_page()
    masked, loss = names[CLASSES[keras.config.backend()]], names["loss_of_rows"]

    def half(y, found):  # the batch has twice as many rows
        return loss(y, found) / 2

    found = trained(masked, loss, X)

    wanted = trained(keras.Model, half, WHOLE)
    assert all(np.isnan(w).all() for w in trained(keras.Model, loss, X))
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_a_model_that_was_trained_before():
    """Its steps are masked after finite ones too, which the compiler has traced already."""
    names = names_of_page()
    masked, loss = names[CLASSES[keras.config.backend()]], names["loss_of_rows"]

    found = trained(masked, loss, X, before=[np.repeat(WHOLE, 2, axis=0)])

    assert all(np.isfinite(w).all() for w in found)

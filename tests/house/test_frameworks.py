"""The adapters of the tests: what goes in comes out."""

import re

import numpy as np
import pytest

from frameworks import asarray, to_numpy

pytestmark = pytest.mark.whole  # facts of each framework

VALUES = [[0.0, -1.5], [np.inf, np.nan]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_values_survive_the_way_there_and_back(framework, dtype):
    """An array has the dtype asked for, and its values come back."""
    if dtype == "bfloat16" and framework in {"numpy", "array-api-strict"}:
        pytest.skip("not a dtype of NumPy")
    if dtype == "float16" and framework == "array-api-strict":
        pytest.skip("not a dtype of the standard")

    x = asarray(framework, VALUES, dtype)

    assert re.search(rf"\b{dtype}\b", str(x.dtype))
    np.testing.assert_array_equal(to_numpy(x), VALUES)


@pytest.mark.only("torch")
def test_a_lazy_tensor_becomes_a_plain_array():
    """Gradients required and conjugates not yet taken are no obstacle."""
    import torch

    x = torch.tensor([1.0 + 2.0j], requires_grad=True)

    np.testing.assert_array_equal(to_numpy(x.conj()), [1.0 - 2.0j])

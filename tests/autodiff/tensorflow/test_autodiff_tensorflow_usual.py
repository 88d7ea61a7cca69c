"""Masked autodiff through functions that try a plain formula first: absent entries stay absent."""

import numpy as np
import pytest

import safeops as so

pytestmark = pytest.mark.only("tensorflow")
NUMBERS = np.asarray([[0.0, 0.0, 0.0], [1.0, 2.0, 0.0]])
RISE = np.asarray([[0.0], [1.0]])
WHOLE = np.asarray([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
ROWS = {
    # The entries at -inf, behind a logarithm without a derivative.
    "safe_logsumexp": (lambda tf, x: so.safe_logsumexp(tf.math.log(x), axis=-1)[1:], NUMBERS > 0),
    # A slice that is 0, behind a power without a derivative.
    "safe_cosine_similarity": (
        lambda _, x: so.safe_cosine_similarity((x + RISE) ** 0.5, WHOLE),
        np.asarray([[False] * 3, [True] * 3]),
    ),
    "safe_cosine_similarity, of both": (
        lambda _, x: so.safe_cosine_similarity(*((x + RISE) ** p for p in (0.5, 0.25))),
        np.asarray([[False] * 3, [True] * 3]),
    ),
}


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("name", ROWS)
def test_what_the_steps_fill_is_absent(name, mode):
    """Its gradient is 0 and masked, although other entries are usual."""
    import tensorflow as tf

    from safeops.autodiff.tensorflow import grad

    f, right = ROWS[name]
    slope = grad(lambda x: tf.reduce_sum(f(tf, x)), return_mask=True)
    found, mask = (slope if mode == "eager" else tf.function(slope))(tf.constant(NUMBERS))

    assert np.isfinite(found).all()
    np.testing.assert_array_equal(mask, right)

"""Keras: an activation of ours in a model that is saved and loaded."""

import numpy as np
import pytest

import safeops

pytestmark = [
    pytest.mark.only("tensorflow"),
    # NumPy 2 says so of TensorFlow's variables when Keras writes them (keras 3.15).
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def saved(path, activation):
    """Return a model with an activation, which is saved too."""
    import keras

    layers = [keras.Input((3,)), keras.layers.Dense(4, activation=activation)]
    model = keras.Sequential(layers)
    model.save(path)
    return model


def test_a_saved_activation_is_loaded_by_its_name(tmp_path):
    """Keras finds our function in `custom_objects`, and nowhere else."""
    import keras

    path, x = tmp_path / "model.keras", np.ones((2, 3), np.float32)
    model = saved(path, safeops.safe_softmax)

    names = {"safe_softmax": safeops.safe_softmax}
    loaded = keras.models.load_model(path, custom_objects=names)

    np.testing.assert_array_equal(loaded(x), model(x))
    with pytest.raises(TypeError, match="safe_softmax"):
        keras.models.load_model(path)


def test_a_registered_activation_is_loaded(tmp_path):
    """Registered once, our function is found in every model that is loaded."""
    import keras

    path, x = tmp_path / "model.keras", np.ones((2, 3), np.float32)
    with keras.saving.CustomObjectScope({}):
        keras.saving.register_keras_serializable("safeops")(safeops.safe_logit)
        model = saved(path, safeops.safe_logit)

        loaded = keras.models.load_model(path)

    np.testing.assert_array_equal(loaded(x), model(x))

"""Models of Keras on the backend that KERAS_BACKEND names: a process for each."""

import os

import keras
import numpy as np
from real_models import engines
from real_models.harness import Case, Program

BACKEND = os.environ["KERAS_BACKEND"]
ENGINE = {"torch": engines.Torch, "jax": engines.Jax, "tensorflow": engines.TensorFlow}[BACKEND]
if BACKEND == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
keras.config.set_floatx("float64")
layers = keras.layers
SEQUENCES = np.random.default_rng(0).standard_normal((3, 5, 8))
IMAGES = np.random.default_rng(0).standard_normal((3, 8, 8, 2))
# Scaled attention is in float32 whatever the floats are: in Keras on PyTorch, in JAX its softmax.
SINGLE = 1e-3


def program_of(model, x, tolerance):
    """Return a program of a model on the backend."""
    if BACKEND == "jax":
        variables = [v.value for v in model.trainable_variables]
        rest = [v.value for v in model.non_trainable_variables]
        return Program(
            lambda p, x: model.stateless_call(p, rest, x)[0],
            x,
            parameters=variables,
            tolerance=tolerance,
        )
    variables = [getattr(v, "value", v) for v in model.trainable_variables]
    return Program(lambda _, x: model(x), x, parameters=variables, tolerance=tolerance)


def case(name, call, x, tolerance=1e-9):
    """Return the case of a model made of layers."""

    def build():
        keras.utils.set_random_seed(0)
        inputs = keras.Input(x.shape[1:])
        return program_of(keras.Model(inputs, call(inputs)), x, tolerance)

    return Case("keras", f"{name}, {BACKEND}", build)


def encoder(x):
    """Return what a layer of a transformer makes of sequences."""
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    return layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(12, "gelu")(x)))


def decoder(x):
    """Return what causal attention with grouped heads makes of sequences."""
    return layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)


def dot_product(x):
    """Return attention without parameters, on projections."""
    return layers.Attention()([layers.Dense(8)(x), layers.Dense(8)(x)])


def additive(x):
    """Return additive attention on projections."""
    return layers.AdditiveAttention()([layers.Dense(8)(x), layers.Dense(8)(x)])


def convolutions(x):
    """Return what a small convolutional network makes of images."""
    x = layers.MaxPooling2D()(
        layers.BatchNormalization()(layers.Conv2D(4, 3, activation="relu")(x))
    )
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.SeparableConv2D(6, 2)(x)))


def recurrent(layer):
    """Return what a recurrent layer makes of sequences; its weights are made when it is called."""

    def call(x):
        return layer(6)(x)

    return call


def enlarged(x):
    """Return convolutions with images of twice the size between them."""
    x = layers.UpSampling2D(2, interpolation="bilinear")(layers.Conv2D(2, 2)(x))
    return layers.Conv2D(2, 2)(x)


CASES = [
    case("MultiHeadAttention", encoder, SEQUENCES, SINGLE),
    case("GroupQueryAttention, causal", decoder, SEQUENCES, SINGLE),
    case("Attention", dot_product, SEQUENCES),
    case("AdditiveAttention", additive, SEQUENCES),
    case("convolutions", convolutions, IMAGES),
    case("LSTM", recurrent(layers.LSTM), SEQUENCES),
    case("GRU", recurrent(layers.GRU), SEQUENCES),
    case("UpSampling2D, bilinear", enlarged, IMAGES),
]

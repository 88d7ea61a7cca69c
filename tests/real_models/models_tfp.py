"""Densities of TensorFlow Probability over a batch of distributions."""

import warnings

import numpy as np
import tensorflow as tf

with warnings.catch_warnings():
    # tensorflow_probability 0.25 compares versions as distutils did
    warnings.filterwarnings("ignore", "distutils Version classes", DeprecationWarning)
    import tensorflow_probability as tfp

from real_models.engines import TensorFlow
from real_models.harness import Case, Program

ENGINE = TensorFlow
tfd, tfb = tfp.distributions, tfp.bijectors
ROWS = np.random.default_rng(0).uniform(0.5, 1.5, (3, 3))
LOWER = np.array([[1.0, 0.0, 0.0], [0.4, 1.2, 0.0], [-0.3, 0.2, 0.8]])
SHARED = tf.constant(LOWER)
POINT = tf.constant([0.3, -0.2, 0.5], tf.float64)


def case(name, density):
    """Return the case of log densities, one for each row."""

    def build():
        return Program(lambda p, x: density(p[0], x), ROWS, parameters=[SHARED])

    return Case("tensorflow-probability", name, build)


def scaled(shared, x):
    """Return lower triangles, one for each row."""
    return shared * x[:, :, None]


CASES = [
    case(
        "MultivariateNormalTriL",
        lambda p, x: tfd.MultivariateNormalTriL(x, scaled(p, x)).log_prob(POINT),
    ),
    case(
        "MultivariateNormalTriL, shared scale",
        lambda p, x: tfd.MultivariateNormalTriL(x, p).log_prob(POINT),
    ),
    case(
        "MultivariateNormalFullCovariance",
        lambda p, x: tfd.MultivariateNormalFullCovariance(
            x, scaled(p, x) @ tf.linalg.matrix_transpose(scaled(p, x))
        ).log_prob(POINT),
    ),
    case(
        "MultivariateNormalDiag", lambda p, x: tfd.MultivariateNormalDiag(x @ p, x).log_prob(POINT)
    ),
    case(
        "MultivariateStudentTLinearOperator",
        lambda p, x: tfd.MultivariateStudentTLinearOperator(
            4.0, x, tf.linalg.LinearOperatorLowerTriangular(scaled(p, x))
        ).log_prob(POINT),
    ),
    case(
        "Wishart",
        lambda p, x: tfd.WishartTriL(tf.constant(5.0, tf.float64), scaled(p, x)).log_prob(
            SHARED @ tf.transpose(SHARED)
        ),
    ),
    case(
        "MixtureSameFamily",
        lambda p, x: tfd.MixtureSameFamily(
            tfd.Categorical(logits=x @ p), tfd.Normal(x, tf.constant(1.0, tf.float64))
        ).log_prob(tf.constant(0.3, tf.float64)),
    ),
    case(
        "Dirichlet",
        lambda p, x: tfd.Dirichlet(tf.exp(x @ p)).log_prob(
            tf.constant([0.2, 0.3, 0.5], tf.float64)
        ),
    ),
    case(
        "GaussianProcess",
        lambda p, x: tfd.GaussianProcess(
            tfp.math.psd_kernels.ExponentiatedQuadratic(tf.reduce_sum(x @ p, 1) ** 2 + 0.5),
            POINT[:, None] * 3,
        ).log_prob(POINT),
    ),
    case(
        "HiddenMarkovModel",
        lambda p, x: tfd.HiddenMarkovModel(
            tfd.Categorical(logits=x),
            tfd.Categorical(logits=p),
            tfd.Normal(POINT, tf.constant(1.0, tf.float64)),
            3,
        ).log_prob(POINT),
    ),
    case(
        "RationalQuadraticSpline",
        lambda p, x: tfb.RationalQuadraticSpline(
            tf.nn.softmax(x @ p) * 2, tf.nn.softmax(x) * 2, tf.nn.softplus(x @ p)[:, :2]
        ).forward(tf.constant(0.3, tf.float64)),
    ),
    case("VonMises", lambda p, x: tfd.VonMises(x @ p, x).log_prob(POINT)),
    case(
        "LKJ",
        lambda p, x: tfd.LKJ(3, tf.reduce_sum(x @ p, 1) ** 2 + 1.0).log_prob(
            tf.eye(3, dtype=tf.float64) * 0.9 + 0.1
        ),
    ),
    case(
        "TruncatedNormal",
        lambda p, x: tf.reduce_sum(
            tfd.TruncatedNormal(
                x @ p, x, tf.constant(-2.0, tf.float64), tf.constant(2.0, tf.float64)
            ).log_prob(POINT),
            1,
        ),
    ),
    case(
        "Gumbel, transformed",
        lambda p, x: tf.reduce_sum(
            tfd.TransformedDistribution(tfd.Gumbel(x @ p, x), tfb.Softplus()).log_prob(
                tf.exp(POINT)
            ),
            1,
        ),
    ),
]

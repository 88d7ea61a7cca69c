"""Networks and densities of JAX: flax, equinox, numpyro."""

import equinox
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide
from numpyro.infer.util import log_density
from real_models.engines import Jax
from real_models.harness import Case, Program

ENGINE = Jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "standard")
KEY = jax.random.key(0)
SEQUENCES = np.random.default_rng(0).standard_normal((3, 5, 8))
IMAGES = np.random.default_rng(0).standard_normal((3, 8, 8, 2))
VECTORS = SEQUENCES[:, 0]


class Block(flax.linen.Module):
    """A layer of a transformer."""

    @flax.linen.compact
    def __call__(self, x):
        """Return the states."""
        h = flax.linen.LayerNorm()(x)
        x = x + flax.linen.MultiHeadDotProductAttention(num_heads=2)(h, h)
        return x + flax.linen.Dense(8)(flax.linen.gelu(flax.linen.Dense(12)(x)))


class Convolutions(flax.linen.Module):
    """Two convolutions and what lies between them."""

    @flax.linen.compact
    def __call__(self, x):
        """Return an output for each image."""
        x = flax.linen.relu(flax.linen.GroupNorm(2)(flax.linen.Conv(4, (3, 3))(x)))
        x = flax.linen.max_pool(x, (2, 2), (2, 2))
        return flax.linen.Dense(3)(flax.linen.Conv(4, (3, 3), strides=2)(x).reshape(len(x), -1))


def linen(make, x):
    """Return a program of a module of flax.linen."""

    def build():
        module = make()
        parameters = jax.tree.map(lambda p: p.astype(float), module.init(KEY, x))
        return Program(module.apply, x, parameters=parameters)

    return build


def nnx(make, x, tolerance):
    """Return a program of a module of flax.nnx."""

    def build():
        graph, parameters = flax.nnx.split(make(flax.nnx.Rngs(0)))
        parameters = jax.tree.map(lambda p: p.astype(float), parameters)
        return Program(
            lambda p, x: flax.nnx.merge(graph, p)(x), x, parameters=parameters, tolerance=tolerance
        )

    return build


def of_equinox(make, x):
    """Return a program of a module of equinox, over a batch."""

    def build():
        parameters, rest = equinox.partition(make(KEY), equinox.is_inexact_array)
        model = jax.vmap(lambda p, row: equinox.combine(p, rest)(row), (None, 0))
        return Program(model, x, parameters=parameters)

    return build


def recurrent(key):
    """Return a recurrent network: its last state."""
    cell = equinox.nn.GRUCell(8, 6, key=key)

    class Network(equinox.Module):
        cell: equinox.nn.GRUCell

        def __call__(self, x):
            start = jnp.zeros(6)
            return jax.lax.scan(lambda h, row: (self.cell(row, h), None), start, x)[0]

    return Network(cell)


def attention(key):
    """Return self-attention."""
    layer = equinox.nn.MultiheadAttention(2, 8, key=key)

    class Network(equinox.Module):
        layer: equinox.nn.MultiheadAttention

        def __call__(self, x):
            return self.layer(x, x, x)

    return Network(layer)


def regression(x, y, keep):
    """Model a regression whose rows are masked."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.handlers.mask(mask=keep):
        numpyro.sample("y", dist.StudentT(4.0, x @ w, scale), obs=y)


def density(p, x):
    """Return the log density of rows, of which the model masks the others."""
    keep = jnp.arange(len(x)) < 2
    y = jnp.sin(jnp.arange(1.0, len(x) + 1))
    return log_density(regression, (x, y, keep), {}, p)[0][None]


def elbo(p, x):
    """Return the loss of a step of stochastic variational inference."""
    keep = jnp.arange(len(x)) < 2
    y = jnp.sin(jnp.arange(1.0, len(x) + 1))
    guide = autoguide.AutoNormal(regression)
    svi = SVI(regression, guide, optax.sgd(0.1), Trace_ELBO(2))
    state = svi.init(KEY, jnp.ones_like(x), y, keep)
    values = svi.constrain_fn(svi.optim.get_params(state.optim_state))
    values = {name: value + p for name, value in values.items()}
    return Trace_ELBO(2).loss(KEY, values, regression, guide, x, y, keep)[None]


def masked(f, parameters):
    """Return a program that leaves out rows by itself."""
    return lambda: Program(f, VECTORS, parameters=parameters, kept_outputs=1)


CASES = [
    Case("flax", "linen, transformer", linen(Block, SEQUENCES)),
    Case("flax", "linen, convolutions", linen(Convolutions, IMAGES)),
    Case(
        "flax",
        "linen, LSTM",
        linen(
            lambda: flax.linen.RNN(flax.linen.OptimizedLSTMCell(4, param_dtype=float)), SEQUENCES
        ),
    ),
    Case(
        "flax",
        "nnx, attention",
        nnx(
            lambda rngs: flax.nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs), SEQUENCES, 1e-3
        ),
    ),
    Case("equinox", "MLP", of_equinox(lambda key: equinox.nn.MLP(8, 3, 6, 2, key=key), VECTORS)),
    Case("equinox", "MultiheadAttention", of_equinox(attention, SEQUENCES)),
    Case("equinox", "GRU", of_equinox(recurrent, SEQUENCES)),
    Case(
        "numpyro",
        "log density, mask",
        masked(density, {"w": jnp.linspace(-1, 1, 8), "scale": jnp.asarray(0.7)}),
    ),
    Case("numpyro", "SVI, mask", masked(elbo, jnp.asarray(0.1))),
]

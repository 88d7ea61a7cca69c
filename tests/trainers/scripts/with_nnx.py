"""A compiled step of flax nnx."""

import jax.numpy as jnp
import optax
from flax import nnx


@nnx.jit
def step(model, optimizer, rows):
    """Take a step by the mean length of the rows."""

    def loss_of(model):
        squares = jnp.sum(model(rows) ** 2, axis=1)
        return jnp.mean(jnp.sqrt(squares))  # here

    _, slopes = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, slopes)


model = nnx.Linear(3, 2, use_bias=False, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
rows = jnp.ones((4, 3))
for batch in (rows, rows.at[1].set(0.0)):
    step(model, optimizer, batch)

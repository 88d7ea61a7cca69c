"""A loop of one's own on JAX, with an optimizer of optax."""

import jax.numpy as jnp
import optax

from safeops.integrations.jax import value_and_grad


def loss_of(params, rows):
    """Return the mean length of the rows that are not empty."""
    squares = jnp.sum((rows @ params["head"]) ** 2, axis=1)
    lengths = jnp.sqrt(squares)  # here
    return jnp.mean(jnp.where(squares > 0, lengths, 0.0))


gradient = value_and_grad(loss_of, file="reports.jsonl")
params = {"head": jnp.ones((3, 2))}
optimizer = optax.adam(0.1)
state = optimizer.init(params)
rows = jnp.ones((4, 3))
for batch in (rows, rows.at[1].set(0.0)):
    _, slopes = gradient(params, batch)
    updates, state = optimizer.update(slopes, state)
    params = optax.apply_updates(params, updates)

import jax
import jax.numpy as jnp

from safeops import safe_log, safe_where

x = jnp.asarray([0.0, 4.0])


def slope(f):
    return jax.grad(lambda x: f(x).sum())(x).tolist()


# The bug
naive = lambda x: jnp.where(x > 0, jnp.log(x), 0.0)
assert str(slope(naive)) == "[nan, 0.25]"

# The cure
safe = lambda x: safe_where(x > 0, x, jnp.log, fill_value=0, placeholder=1)
assert slope(safe) == [0, 0.25]

# The same, ready-made
ready = lambda x: safe_log(x, fill_value=0)
assert slope(ready) == [0, 0.25]

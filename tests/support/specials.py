"""Numbers at which a kernel may differ from the double where that it replaces."""

import numpy as np


def special_numbers(dtype, shape, seed):
    """Return random numbers, many of them special, and some rows of zeros and of one kind."""
    info = np.finfo(dtype)
    least = float(info.smallest_normal)
    special = [0.0, -0.0, 0.0, 1.0, 1.0, -1.0, 2.0, least, -least, least / 2, -least / 2]
    special += [1e-30, 1e30, -1e30, 88.72283, 88.72284, 709.79, -np.inf, np.inf, np.nan, -np.nan]
    random = np.random.default_rng(seed)
    x = random.normal(size=shape)
    chosen = random.random(shape) < random.choice([0, 0.1, 0.6])
    x = np.where(chosen, random.choice(special[: random.integers(3, len(special))], shape), x)
    if shape and shape[0] > 3:
        x[1], x[2] = 0.0, random.choice([np.nan, -np.inf, 0.5])
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(dtype)

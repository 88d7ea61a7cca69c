"""
The specification of the function in `_ops/radial.py`.

It is given a function: `test_radial.py` has kernels and their derivatives.
"""

from points import OwnSpec

SPECS = (OwnSpec("radial", naive=lambda xp, f, x: f(xp.sum(x * x, axis=-1) ** 0.5)),)

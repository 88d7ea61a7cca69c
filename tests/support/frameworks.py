"""The frameworks; arrays of each from NumPy, and back."""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

# The folders of safeops/_backends are the list; array-api-strict stands for all that array_api.py
# serves.
BACKENDS = Path(find_spec("safeops").origin).parent / "_backends"
FRAMEWORKS = tuple(
    sorted(["array-api-strict", *(file.parent.name for file in BACKENDS.glob("*/__init__.py"))])
)
WITHOUT_AUTODIFF = ("array-api-strict", "numpy")
WITH_AUTODIFF = [name for name in FRAMEWORKS if name not in WITHOUT_AUTODIFF]


class Lazy:
    """A module that is imported when it is used: a file is collected without it too."""

    def __init__(self, name):
        """Keep the name."""
        self._name = name

    def __getattr__(self, name):
        """Import the module."""
        return getattr(import_module(self._name), name)


def torch_from(*wanted):
    """Whether PyTorch is installed in this version or a later one; it is not imported."""
    installed = find_spec("torch") and version("torch").split("+")[0]
    return bool(installed) and tuple(map(int, installed.split(".")[: len(wanted)])) >= wanted


def module_of(framework):
    """Return the name of the module to import."""
    return framework.replace("-", "_")


def in_one_program(framework, f):
    """Return a function; in JAX compiled as one, where each operation would be by itself."""
    if framework != "jax":
        return f
    import jax

    return jax.jit(f)


def asarray(framework, values, dtype="float64"):
    """Return an array of a framework; a dtype by its name in the array API standard."""
    return MAKERS[framework](np.array(values), dtype)


def to_numpy(x):
    """Return the value of an array of any framework, bfloat16 as float32."""
    if hasattr(x, "detach"):
        return to_numpy_from_torch(x)
    value = np.asarray(x)
    return value.astype("float32") if value.dtype.name == "bfloat16" else value


def stacked(x):
    """Return an array, or a tuple of arrays as one."""
    return np.stack([to_numpy(a) for a in x]) if isinstance(x, (tuple, list)) else to_numpy(x)


def to_numpy_from_torch(x):
    """Return the value of a tensor, wherever it lives."""
    x = x.detach().cpu().resolve_conj().resolve_neg()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()


def make_numpy(values, dtype):
    """Return an ndarray."""
    return values.astype(dtype)


def make_torch(values, dtype):
    """Return a tensor."""
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))


def make_jax(values, dtype):
    """Return a jax.Array."""
    import jax.numpy as jnp

    return jnp.asarray(values, dtype=dtype)


def make_tensorflow(values, dtype):
    """Return an eager tensor."""
    import tensorflow as tf

    return tf.cast(tf.constant(values), dtype)


def make_array_api_strict(values, dtype):
    """Return an array of the strict namespace."""
    import array_api_strict as xp

    return xp.asarray(values, dtype=getattr(xp, dtype))


MAKERS = {
    "numpy": make_numpy,
    "torch": make_torch,
    "jax": make_jax,
    "tensorflow": make_tensorflow,
    "array-api-strict": make_array_api_strict,
}

"""Safe numerical operations for NumPy, PyTorch, JAX and TensorFlow: the gradient is right too."""

from typing import TYPE_CHECKING, Any

from safeops import _doors

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` fetches what is asked for
    from safeops import autodiff as autodiff
    from safeops import integrations as integrations
    from safeops import linalg as linalg
    from safeops import nan_reductions as nan_reductions
    from safeops import rotations as rotations
    from safeops import segments as segments
    from safeops import testing as testing
    from safeops._public import *  # noqa: F403  (one list of names)
    from safeops._public import __all__ as __all__

__version__ = "0.1.0"
_MODULES = (
    "autodiff", "integrations", "linalg", "nan_reductions", "rotations", "segments", "testing",
)  # fmt: skip


if not TYPE_CHECKING:  # else every name would be one of this module

    def __getattr__(name: str) -> Any:
        """Fetch a public module or operation when it is first asked for."""
        if name in _MODULES:
            return _doors.module(__name__, name)
        # Nobody asks for a dunder but `__all__`, which is that of the operations.
        if name == "__all__" or not name.startswith("_"):
            from safeops import _public  # noqa: PLC0415  (it takes as long as NumPy)

            # All at once, as torch.fx finds functions in the names of a module.
            globals().update({key: getattr(_public, key) for key in ("__all__", *_public.__all__)})
            if name in globals():
                return globals()[name]
        raise _doors.missing(__name__, name, *{f"safe_{name}"} & {*globals()})


def __dir__() -> list[str]:
    """List what is public, for completion."""
    from safeops import _public  # noqa: PLC0415  (as above)

    return [*_public.__all__, *_MODULES, "__version__"]

"""A run of one framework does not see the others, installed or not."""

import sys
from importlib.machinery import PathFinder

from frameworks import FRAMEWORKS

# NumPy is what every test is written with, and a library of the standard imports no framework.
HIDDEN = frozenset(FRAMEWORKS) - {"numpy", "array-api-strict"}


def hide_all_but(selected):
    """
    Make modules of the other frameworks ones that are not found.

    Keras, TensorFlow and PyTorch in one process can crash, depending on which is imported first.
    """
    hidden = HIDDEN - set(selected)

    class Finder(PathFinder):
        """Find what is installed, but for what is hidden."""

        @classmethod
        def find_spec(cls, fullname, path=None, target=None):
            """Return None for a hidden module, as for one that is not there."""
            return None if fullname in hidden else super().find_spec(fullname, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder

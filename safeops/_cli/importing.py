"""What is done when a program imports a module, so that nothing is imported for it before."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Following(Loader):
    """A loader that does something when its module is there."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module, before its code has run."""
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the code of the module."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader  # which a module may ask for its files
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then()


class Finder(MetaPathFinder):
    """A finder that finds what the others find, and does something when it is there."""

    def __init__(self, names: Sequence[str], then: Callable[[str], None]) -> None:
        self.names, self.then = names, then

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is."""
        if fullname not in self.names:
            return None
        found = (f.find_spec(fullname, path, target) for f in sys.meta_path if f is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = Following(spec.loader, partial(self.then, fullname))
        return spec


@contextmanager
def at_import(actions: Mapping[str, Callable[[], None]]) -> Iterator[None]:
    """Context in which something is done when a module is imported, or is there already."""
    finder = Finder(tuple(actions), lambda name: actions[name]())
    for name in actions:
        if name in sys.modules:
            actions[name]()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)

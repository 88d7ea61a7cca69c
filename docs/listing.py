"""The list for language models: versions, imports, signatures, references and sources."""

import inspect
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from sphinx.application import Sphinx

import safeops
from safeops import _recipes
from safeops._cli.recipe import FAMILIES, FUNCTIONS, family_of

ROOT = Path(__file__).parents[1]
HEAD = """# safeops {version}: every public name

> Numerical operations whose gradient is right too, for NumPy, PyTorch, JAX and TensorFlow.

Arrays are positional, options are keywords; `where=True` keeps an entry.
A function takes and returns the arrays of your framework, and keeps dtype and device.
Tested with {pinned}; the oldest versions are {oldest}.
Sources are named from the root of the repository.
`llms.txt` lists the pages, and `agents.html` has the rules in ten lines."""
# By module: its page in the reference, where its functions are not those of families.
MODULES = {
    "safeops": "",
    "safeops.linalg": "linalg",
    "safeops.rotations": "rotations",
    "safeops.segments": "segments",
    "safeops.testing": "testing",
    "safeops.autodiff": "autodiff",
    "safeops.autodiff.torch": "autodiff",
    "safeops.autodiff.torch.func": "autodiff",
    "safeops.autodiff.jax": "autodiff",
    "safeops.autodiff.tensorflow": "autodiff",
    "safeops.integrations": "integrations",
    "safeops.integrations.jax": "integrations",
    "safeops.integrations.tensorflow": "integrations",
    "safeops.integrations.transformers": "integrations",
}


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the list beside the pages."""
    if error is None:
        (Path(app.outdir) / "llms-full.txt").write_text(text())


def text() -> str:
    """Return the list."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    frameworks = ("numpy", "torch", "jax", "tensorflow")
    pinned = ", ".join(groups[f"backend-{name}"][0] for name in frameworks)
    oldest = ", ".join(groups[f"oldest-{name}"][0] for name in frameworks)
    head = HEAD.format(version=safeops.__version__, pinned=pinned, oldest=oldest)
    return "\n\n".join([head, *(section(module) for module in MODULES if is_there(module))]) + "\n"


def is_there(module: str) -> bool:
    """Whether the framework of a module is installed."""
    last = module.removesuffix(".func").rpartition(".")[2]
    return last not in ("torch", "jax", "tensorflow", "transformers") or bool(find_spec(last))


def section(module: str) -> str:
    """Return the names of a module."""
    door = import_module(module)
    things = {name: getattr(door, name) for name in door.__all__}
    callables = {name: thing for name, thing in things.items() if callable(thing)}
    lines = [line(module, name, thing) for name, thing in callables.items()]
    return f"## {module}\n\nfrom {module} import {', '.join(callables)}\n\n" + "\n".join(lines)


def line(module: str, name: str, thing: object) -> str:
    """Return the line of one name: its call, its summary, and where to read on."""
    page = MODULES[module] or FAMILIES[family_of(name)].page
    summary = (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    path = f"{thing.__module__}.{name}" if inspect.isclass(thing) else f"{module}.{name}"
    links = [f"[reference](reference/{page}.html#{path})"]
    if name in _recipes.names() and name in FUNCTIONS:
        links.append(f"[recipe](recipes/{name}.html)")
    return f"- `{name}{signature(thing)}`: {summary} {', '.join(links)}; {source(thing)}"


def signature(thing: object) -> str:
    """Return the call of a function without types; of a class nothing."""
    if inspect.isclass(thing):
        return ""
    found = inspect.signature(thing)
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def source(thing: object) -> str:
    """Return the file of a function or class, from the root of the repository."""
    file = inspect.getsourcefile(inspect.unwrap(thing))
    return str(Path(file).relative_to(Path(safeops.__file__).parents[1]))

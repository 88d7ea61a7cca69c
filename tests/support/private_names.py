"""The private names of the frameworks that safeops uses, as their files tell."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import safeops

HOUSE = Path(safeops.__file__).parent
FILES = {name: HOUSE / f"_backends/{name}/private.py" for name in ("torch", "jax", "tensorflow")}
TITLES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}


class PrivateName(NamedTuple):
    """A private name, the versions in which it was seen, and what it is for."""

    name: str
    version: str
    purpose: str

    def is_in(self, installed):
        """Whether a version has the name, by what is said of it."""
        word, _, bound = self.version.rpartition(" ")
        if word == "from":
            return numbers(installed) >= numbers(bound)
        return word != "before" or numbers(installed) < numbers(bound)


def numbers(version):
    """Return the first two numbers of a version."""
    return tuple(map(int, version.split(".")[:2]))


def described(source):
    """Return the private names that the comments of a source describe."""
    comment = re.compile(
        r"^ *# (\S+) \(((?:from |before )?\d[\d.]*)\): (.+(?:\n *# (?!\S+ \().+)*)$",
        flags=re.MULTILINE,
    )
    for name, version, purpose in comment.findall(source):
        yield PrivateName(name, version, re.sub(r"\s*\n\s*# ", " ", purpose))


def private_names(source, framework="torch"):
    """Return the private names that a source takes of modules and objects, part by part."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == framework:
            yield from (part for part in node.module.split(".") if is_private(part))
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Import):
            names = (part for alias in node.names for part in alias.name.split("."))
            yield from (part for part in names if is_private(part))
        elif isinstance(node, ast.Attribute) and ast.unparse(node) != "sys._getframe":
            owner = ast.unparse(node.value)
            yield from [node.attr] * (is_private(node.attr) and owner not in {"self", "cls"})
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            named = ast.unparse(node.args[1]).strip("f'\"")
            yield from [named.partition("{")[0]] * is_private(named)


def is_private(name):
    """Whether a name is private, and none of Python's own, as those of named tuples are."""
    return name.startswith("_") and not name.endswith("__") and name not in {"_make", "_replace"}


def inner_names(source):
    """Return what a source takes of JAX's programs and traces: parameters, attributes, methods."""
    known = {row.name.rpartition(".")[2] for row in described(FILES["jax"].read_text())}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("params"):
            yield from constants(node.slice)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("params.get"):
            yield from constants(node.args[0])
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("params"):
            yield from constants(node.left)
        elif isinstance(node, (ast.FunctionDef, ast.Attribute)):
            name = node.name if isinstance(node, ast.FunctionDef) else node.attr
            is_door = ast.unparse(getattr(node, "value", node)) == "private"  # the file itself
            yield from [name] * (name in known - PUBLIC and not is_door)


# Names of ours, of JAX's functions or of Python too.
PUBLIC = set(
    "axes axis callback length manual_axes mesh name reverse unroll update".split()  # noqa: SIM905
)


def taken_elsewhere(source, framework):
    """Return what a source takes that stands in the file of a framework, with underscore or not."""
    rows = described(FILES[framework].read_text())
    # Tables of rules are by the names of operations, which are data there.
    names = (row.name for row in rows if not row.name.startswith("torch.ops.aten."))
    known = {name.rpartition(".")[2] for name in names} - OF_OTHERS
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "private":
            yield from [node.attr] * (node.attr in known)
        elif isinstance(node, ast.ImportFrom) and not node.module.startswith("safeops."):
            yield from (alias.name for alias in node.names if alias.name in known)
        else:
            yield from (x for x in constants(node) if x in known)


# Names of ours, and of public functions, beside.
OF_OTHERS = set(
    "apply backward config custom_gradient gradients traceback zeros".split()  # noqa: SIM905
)


def constants(node):
    """Return the value of a node of a program that is a constant."""
    return [node.value] if isinstance(node, ast.Constant) else []


def page():
    """Return the page of the documentation."""
    parts = [HEAD]
    for framework, title in TITLES.items():
        names = sorted(described(FILES[framework].read_text()))
        rows = "\n".join(f"| `{row.name}` | {row.version} | {row.purpose} |" for row in names)
        parts.append(f"## {title}\n\n| name | seen in | what for |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


HEAD = """# Private names

No public name of the framework serves these purposes.
They are used in one file a framework, `safeops/_backends/*/private.py`, which this page shows.
A version alone is the newest in which the name was seen.
When a framework drops one, a test fails."""

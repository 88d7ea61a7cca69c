"""The private names of PyTorch that safeops uses, as their file tells."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import safeops

FILE = Path(safeops.__file__).parent / "_backends/torch/private.py"


class PrivateName(NamedTuple):
    """A private name, the version of PyTorch in which it was seen, and what it is for."""

    name: str
    version: str
    purpose: str


def described(source):
    """Return the private names that the comments of a source describe."""
    comment = re.compile(
        r"^ *# (\S+) \((\d[\d.]*)\): (.+(?:\n *# (?!\S+ \(\d).+)*)$", flags=re.MULTILINE
    )
    for name, version, purpose in comment.findall(source):
        yield PrivateName(name, version, re.sub(r"\s*\n\s*# ", " ", purpose))


def private_names(source):
    """Return the private names that a source takes of modules and objects, part by part."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "torch":
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
    """Whether a name is private, and none of Python's own."""
    return name.startswith("_") and not name.endswith("__")


def page():
    """Return the page of the documentation."""
    names = sorted(described(FILE.read_text()))
    rows = "\n".join(f"| `{row.name}` | {row.version} | {row.purpose} |" for row in names)
    return f"{HEAD}\n\n| name | seen in | what for |\n|---|---|---|\n{rows}\n"


HEAD = """# Private names of PyTorch

No public name of PyTorch serves these purposes.
They are used in one file, `safeops/_backends/torch/private.py`; this page is made from it.
When PyTorch drops one, a test fails."""

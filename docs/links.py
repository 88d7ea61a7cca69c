"""Links from the names of functions, as pages write them in inline code, to the reference."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import safeops
from safeops import linalg, rotations, segments

# `safe_log`, `safe_log(x)`, `rotations.safe_angle(a, b)`
CALL = re.compile(r"(?:safeops\.|so\.)?((?:\w+\.)*\w+)(?:\(.*\))?")
PATHS = {name: f"safeops.{name}" for name in safeops.__all__}
for _module in (linalg, rotations, segments):
    _, _, _short = _module.__name__.rpartition(".")
    for _name in _module.__all__:
        PATHS[_name] = PATHS[f"{_short}.{_name}"] = f"{_module.__name__}.{_name}"


def add(app: Sphinx, tree: nodes.document) -> None:
    """Make a link of each name in inline code, but in titles and links."""
    if app.env.docname.startswith("reference/"):
        return  # whose docstrings have links of their own
    for literal in list(tree.findall(nodes.literal)):
        found = CALL.fullmatch(literal.astext())
        path = PATHS.get(found[1]) if found else None
        if path and not isinstance(literal.parent, (nodes.title, nodes.reference)):
            link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=path)
            literal.replace_self(link)
            link += literal

"""Links that pages do not write: functions in inline code, reports by number, a lesson to keep."""

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import safeops
from safeops import linalg, rotations, segments

# What a link is not made in.
WITHOUT = (nodes.title, nodes.reference, addnodes.pending_xref)
HOST = "https://github.com"  # of the reports
LESSON = re.compile(r"\]\(([\w-]+)\.md\)")  # a link to another one
# pytorch/pytorch#41508, and #41509 after it
REPORT = re.compile(r"([\w.-]+/[\w.-]+)?#(\d+)")
# `safe_log`, `safe_log(x)`, `rotations.safe_angle(a, b)`
CALL = re.compile(r"(?:safeops\.|so\.)?((?:\w+\.)*\w+)(?:\(.*\))?")
PATHS = {name: f"safeops.{name}" for name in safeops.__all__}
for _module in (linalg, rotations, segments):
    _, _, _short = _module.__name__.rpartition(".")
    for _name in _module.__all__:
        PATHS[_name] = PATHS[f"{_short}.{_name}"] = f"{_module.__name__}.{_name}"


def add(app: Sphinx, tree: nodes.document) -> None:
    """Make links on a page, but in its titles and its own links."""
    if app.env.docname.startswith("reference/"):
        return  # whose docstrings have links of their own
    for literal in list(tree.findall(nodes.literal)):
        found = CALL.fullmatch(literal.astext())
        path = PATHS.get(found[1]) if found else None
        if path and not isinstance(literal.parent, WITHOUT):
            link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=path)
            literal.replace_self(link)
            link += literal
    for paragraph in tree.findall(nodes.paragraph):
        repository = ""
        for text in [node for node in paragraph.children if isinstance(node, nodes.Text)]:
            parts, repository = with_reports(text.astext(), repository)
            paragraph.replace(text, parts)


def add_download(app: Sphinx, tree: nodes.document) -> None:
    """Lead from a lesson to the notebook that it was executed as, whose links are notebooks too."""
    written = Path(app.env.mystnb_config.output_folder) / f"{app.env.docname}.ipynb"
    if not app.env.docname.startswith("notebooks/") or not written.exists():
        return
    written.write_text(LESSON.sub(r"](\1.ipynb)", written.read_text()))
    target = "/" + os.path.relpath(written, app.srcdir)
    link = addnodes.download_reference("", "Download this page as a notebook.", reftarget=target)
    next(tree.findall(nodes.title)).parent.insert(1, nodes.paragraph("", "", link))


def with_reports(text: str, repository: str) -> tuple[list[nodes.Node], str]:
    """Return text with links to the reports in it, and the repository of the last one."""
    parts: list[nodes.Node] = []
    end = 0
    for found in REPORT.finditer(text):
        repository = found[1] or repository
        if repository:
            parts.append(nodes.Text(text[end : found.start()]))
            target = f"{HOST}/{repository}/issues/{found[2]}"
            parts.append(nodes.reference(found[0], found[0], refuri=target))
            end = found.end()
    return [*parts, nodes.Text(text[end:])], repository

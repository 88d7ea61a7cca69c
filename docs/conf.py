"""The documentation: ``nox -s docs`` builds it, without a network."""

import os
import sys
from pathlib import Path

from sphinx.application import Sphinx

# Notebooks are run in processes of their own, which inherit this: TensorFlow greets on stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(HERE), str(TESTS), str(TESTS / "support")]  # pages.py, and the specifications

import links  # noqa: E402  (after the path)
import listing  # noqa: E402  (after the path)
import pages  # noqa: E402  (after the path)

import safeops  # noqa: E402  (after the path)

project = "safeops"
author = "The safeops developers"
copyright = author  # noqa: A001  (the name in Sphinx)
release = safeops.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
# What is built, what was executed, and what pages are made of.
exclude_patterns = ["_build", "jupyter_execute", "lint/texts"]
html_theme = "furo"
html_title = f"safeops {release}"
pygments_dark_style = "github-dark"  # the default underlines names of modules, as if links
html_static_path = ["static"]
html_css_files = ["safeops.css"]
html_extra_path = ["llms.txt"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_render_markdown_format = "gfm"  # commonmark has no tables

autodoc_typehints = "none"  # the docstrings have the types, in words
default_role = "py:obj"  # `safe_log` in a docstring is a link
napoleon_google_docstring = False
napoleon_use_param = False  # whose types are links by each word: "shape" led to an attribute
napoleon_use_rtype = False


def setup(app: Sphinx) -> None:
    """Write the pages that are made from recipes, docstrings and case tables."""
    app.connect("builder-inited", lambda app: pages.write(Path(app.srcdir)))
    app.connect("doctree-read", links.add)
    # Before Sphinx collects what is there to download.
    app.connect("doctree-read", links.add_download, priority=400)
    app.connect("build-finished", listing.write)
    # It only names a script; pages may be read in two processes, which it does not say.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True

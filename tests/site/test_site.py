"""The built documentation: `nox -s docs` builds it and runs these tests."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from urllib.parse import unquote, urlsplit

import pytest

import safeops
from safeops._cli.recipe import FUNCTIONS, WITHOUT_RECIPE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADED = {"audio", "embed", "iframe", "img", "link", "script", "source", "video"}
BROKEN = """---
file_format: mystnb
kernelspec:
  name: python3
---

# A page

```{code-cell} python
assert 1 + 1 == TOTAL
```
"""


class Page(HTMLParser):
    """The links of a page, what it loads, and the anchors that it has."""

    def __init__(self, text):
        """Read a page."""
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Take down one element."""
        attributes = dict(attrs)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        address = attributes.get("href") or attributes.get("src")
        if address and tag in LOADED and attributes.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(address)
        if address and tag == "a":
            self.links.append(address)


@pytest.fixture(scope="session")
def site(pytestconfig):
    """Return the pages of the site by their files."""
    folder = Path(pytestconfig.getoption("site")).resolve()
    return {file: Page(file.read_text()) for file in folder.rglob("*.html")}


def outside(pages):
    """Return what pages load from other hosts."""
    return [
        address
        for page in pages.values()
        for address in page.loaded
        if urlsplit(address).netloc or urlsplit(address).scheme not in ("", "data")
    ]


def broken_links(pages):
    """Return the internal links that lead nowhere."""
    for file, page in pages.items():
        for address in page.links:
            parts = urlsplit(address)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if parts.scheme or parts.netloc:
                continue
            lost = parts.fragment and target in pages
            if not target.exists() or (
                lost and unquote(parts.fragment) not in pages[target].anchors
            ):
                yield f"{file.name}: {address}"


def unexecuted(text):
    """Return the blocks of Python in a page that nothing runs."""
    return re.findall(r"^[`:]{3,}(?:python|py|\{code(?:-block)?\} *python)\b.*", text, re.MULTILINE)


def hand_written():
    """Return the pages that are not made; the texts of lint's rules have tests of their own."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "docs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = (x for x in done.stdout.split() if x.endswith(".md") and "lint/texts" not in x)
    return [ROOT / name for name in names]


@pytest.mark.site
def test_nothing_comes_from_another_host(site):
    """No script, style, font or picture is loaded from the network."""
    assert site
    assert outside(site) == []


@pytest.mark.site
def test_internal_links_lead_somewhere(site):
    """Every link within the site has its page, and its place on that page."""
    assert list(broken_links(site)) == []


@pytest.mark.site
def test_names_of_functions_and_numbers_of_reports_are_links(site):
    """The tables of functions lead to the reference, and each public report to its thread."""
    pages = {file.name: page.links for file, page in site.items()}
    functions = {unquote(urlsplit(link).fragment) for link in pages["functions.html"]}
    threads = (DOCS / "threads.md").read_text()

    assert {f"safeops.{name}" for name in safeops.__all__} <= functions
    numbers = set(re.findall(r"(?<=#)\d+", re.sub("```.*?```", "", threads, flags=re.DOTALL)))
    assert {link.rpartition("/issues/")[2] for link in pages["threads.html"]} >= numbers


@pytest.mark.site
def test_every_lesson_is_a_notebook_to_download(site):
    """A lesson's link leads to a notebook of its cells, whose links need no page of this site."""
    lessons = [file for file in (DOCS / "notebooks").glob("*.md") if file.stem != "index"]
    pages = {file.stem: file for file in site if file.parent.name == "notebooks"}
    for lesson in lessons:
        (link,) = (x for x in site[pages[lesson.stem]].links if x.endswith(".ipynb"))
        notebook = json.loads((pages[lesson.stem].parent / link).read_text())
        cells = [cell["cell_type"] for cell in notebook["cells"]]

        assert cells.count("code") == lesson.read_text().count("```{code-cell}") > 0
        assert ".md)" not in json.dumps(notebook["cells"])


@pytest.mark.site
def test_every_function_has_a_reference_and_a_recipe(site):
    """Each public function is an anchor of the reference, and a page of the recipes."""
    anchors = set().union(*(page.anchors for page in site.values()))
    pages = {file.stem for file in site if file.parent.name == "recipes"}

    modules = {
        "rotations": safeops.rotations,
        "linalg": safeops.linalg,
        "segments": safeops.segments,
    }
    names = [f"{module}.{name}" for module, of in modules.items() for name in of.__all__]
    assert {f"safeops.{name}" for name in (*safeops.__all__, *names)} <= anchors
    assert FUNCTIONS.keys() - WITHOUT_RECIPE <= pages


@pytest.mark.site
@pytest.mark.parametrize(("total", "status"), [("2", 0), ("3", 2)])
def test_a_page_that_breaks_fails_the_build(total, status, tmp_path):
    """A cell that raises stops the build, and one that does not raise does not."""
    source = tmp_path / "docs"
    source.mkdir()
    (source / "index.md").write_text(BROKEN.replace("TOTAL", total))
    command = [sys.executable, "-P", "-m", "sphinx", "-q", "-c", str(DOCS)]

    done = subprocess.run(
        [*command, str(source), str(tmp_path / "site"), str(source / "index.md")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == status, done.stderr


def test_no_block_is_shown_that_nothing_runs():
    """The pages written by hand have cells, which the build runs, and no other Python."""
    texts = {file.name: file.read_text() for file in hand_written()}
    cells = sum(text.count("```{code-cell}") for text in texts.values())

    assert cells > 50
    assert {name: unexecuted(text) for name, text in texts.items() if unexecuted(text)} == {}


def test_the_finders_find():
    """Each finder finds its fault in a planted page."""
    file = ROOT / "page.html"
    page = Page('<script src="https://a.b/c.js"></script><a href="x.html">x</a><a href="#y">y</a>')

    assert outside({file: page}) == ["https://a.b/c.js"]
    assert len(list(broken_links({file: page}))) == 2
    assert unexecuted("```python\nx\n```\n\n```{code-block} python\n") != []
    assert unexecuted("```{code-cell} python\nx\n```") == []


@pytest.mark.site
@pytest.mark.parametrize(("name", "least"), [("llms.txt", 10), ("llms-full.txt", 200)])
def test_the_lists_for_language_models_lead_to_pages(name, least, site, pytestconfig):
    """Each link of the two lists is a file of the site, and a place that there is on it."""
    folder = Path(pytestconfig.getoption("site")).resolve()
    targets = re.findall(r"\]\((.*?)\)", (folder / name).read_text())
    lost = [
        target
        for target in targets
        for file, _, anchor in [target.partition("#")]
        if not (folder / file).is_file() or (anchor and anchor not in site[folder / file].anchors)
    ]

    assert len(targets) > least
    assert lost == []


@pytest.mark.site
def test_the_list_of_names_is_that_of_the_package(pytestconfig):
    """`llms-full.txt` has the version and every function, with the file in which it stands."""
    text = (Path(pytestconfig.getoption("site")) / "llms-full.txt").read_text()
    names = re.findall(r"^- `(\w+)", text, flags=re.MULTILINE)
    files = set(re.findall(r"; (safeops/\S+\.py)$", text, flags=re.MULTILINE))

    assert f"safeops {safeops.__version__}:" in text
    assert {*safeops.__all__, *safeops.linalg.__all__, *safeops.segments.__all__} <= {*names}
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_names_on_the_page_for_agents_exist():
    """What the page calls `safeops.something` is there."""
    names = set(re.findall(r"`(safeops(?:\.\w+)+)", (DOCS / "agents.md").read_text()))
    away = {name for name in ("jax", "torch", "tensorflow") if find_spec(name) is None}
    found = {resolve_name(name) for name in names if not away & {*name.split(".")}}

    assert len(names) >= 6
    assert None not in found


@pytest.mark.site
@pytest.mark.parametrize(
    ("word", "page"),
    [("arctan2", "reference/angles"), ("install", "install"), ("speed", "explain/speed")],
)
def test_what_somebody_searches_for_is_found(word, page, pytestconfig):
    """The index that the search box reads has the page, by its title or by an entry."""
    text = (Path(pytestconfig.getoption("site")) / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))
    entries = [
        *(number for number, *_ in index["indexentries"].get(word, [])),
        *(number for number, *_ in index["alltitles"].get(word.title(), [])),
    ]

    assert page in {index["docnames"][number] for number in entries}

"""The pages of `lint`: one for each rule, and what was found in code that nobody here wrote."""

import json
from pathlib import Path

import lint_texts

from safeops import _recipes
from safeops._lint.found import TITLES

CORPUS = Path(__file__).parent / "lint_corpus.json"
VERDICTS = ("yes", "idle", "no")
SPELLED = ("torch", "jax", "tensorflow")
INDEX = Path(__file__).parent / "lint/index.in"


def pages() -> dict[str, str]:
    """Return the pages by their files."""
    made = {f"lint/{rule}.md": rule_page(lint_texts.read(rule)) for rule in TITLES}
    return made | {"lint/index.md": index()}


def rule_page(text: lint_texts.Text) -> str:
    """Return the page of a rule."""
    parts = [f"# {text.rule}: {text.title}", text.summary]
    for title in lint_texts.SECTIONS:
        section = text.sections[title]
        parts += [f"## {title}", section.text]
        if title == "The cure":
            parts.append(f"```diff\n{text.diff}\n```")
        if section.code:
            parts.append(tabs(section.code))
    parts.append("The tests execute the pattern and the cure in each of these frameworks.")
    return "\n\n".join(parts) + "\n"


def tabs(code: str) -> str:
    """Return code in the spelling of each framework, one behind the other."""
    items = []
    for name in SPELLED:
        title = _recipes.TITLES[name]
        block = f"```python\n{_recipes.spell(code, name)}\n```"
        items.append(f":::{{tab-item}} {title}\n:sync: {name}\n\n{block}\n:::")
    body = "\n\n".join(items)
    return f"::::{{tab-set}}\n:sync-group: framework\n\n{body}\n::::"


def index() -> str:
    """Return the page of the command."""
    rules = "\n".join(
        f"- [{r}]({r}.md) `{TITLES[r]}`: {lint_texts.read(r).summary}" for r in TITLES
    )
    corpus = json.loads(CORPUS.read_text())
    known, unseen = corpus["repaired_on"], corpus["unseen"]
    return INDEX.read_text().format(
        rules=rules,
        toctree="\n".join(TITLES),
        known=table(known),
        unseen=table([row for row in unseen if row["findings"]]),
        silent=", ".join(row["package"] for row in unseen if not row["findings"]),
        looks=looks(corpus["first_looks"], unseen, known),
        judged=judged(corpus["judged"]),
        executed=corpus["executed"],
        confirmed=corpus["confirmed"],
        itself=corpus["itself"],
    )


def counted(packages: list[dict]) -> dict[str, int]:
    """Return the verdicts of packages together."""
    sums = {name: sum(row["verdicts"][name] for row in packages) for name in VERDICTS}
    return {"packages": len(packages), "findings": sum(sums.values()), **sums}


def looks(first: list[dict], unseen: list[dict], known: list[dict]) -> str:
    """Return how the findings were judged, at first sight and with the rules of today."""
    names = [f"first sight of set {letter}" for letter in "ABCDE"]
    names += ["A to E with the rules of today", "the nine packages"]
    lines = [
        "| what | packages | findings | yes | idle | no | share of yes | of yes or idle |",
        f"|{' --- |' * 8}",
    ]
    for name, row in zip(names, [*first, counted(unseen), counted(known)], strict=True):
        shares = (row["yes"], row["yes"] + row["idle"])
        cells = [name, row["packages"], row["findings"], *(row[x] for x in VERDICTS)]
        cells += [f"{round(100 * share / row['findings'])} %" for share in shares]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def table(packages: list[dict]) -> str:
    """Return how often each rule found something in each package, and how that was judged."""
    columns = ["package", "files", *TITLES, *VERDICTS]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for row in packages:
        cells = [row["package"], row["files"], *(row["findings"].get(rule, 0) for rule in TITLES)]
        cells += [row["verdicts"][name] for name in VERDICTS]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    totals = [sum(row["findings"].get(rule, 0) for row in packages) for rule in TITLES]
    totals += [counted(packages)[name] for name in VERDICTS]
    cells = ["all", sum(row["files"] for row in packages), *totals]
    return "\n".join([*lines, f"| {' | '.join(map(str, cells))} |"])


def judged(rows: list[dict]) -> str:
    """Return the findings that were judged, each with its reason."""
    lines = ["| finding | rule | verdict | why |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (f"`{row['place']}`", row["rule"], row["verdict"], row["reason"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)

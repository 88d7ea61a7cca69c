"""The pages of `lint`: one for each rule, and what was found in code that nobody here wrote."""

import json
from pathlib import Path

from safeops import _recipes
from safeops._lint import texts
from safeops._lint.rules import TITLES

CORPUS = Path(__file__).parent / "lint_corpus.json"
SPELLED = ("torch", "jax", "tensorflow")
INDEX = Path(__file__).parent / "lint/index.in"


def pages() -> dict[str, str]:
    """Return the pages by their files."""
    made = {f"lint/{rule}.md": rule_page(texts.read(rule)) for rule in TITLES}
    return made | {"lint/index.md": index()}


def rule_page(text: texts.Text) -> str:
    """Return the page of a rule."""
    parts = [f"# {text.rule}: {text.title}", text.summary]
    for title in texts.SECTIONS:
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
    rules = "\n".join(f"- [{r}]({r}.md) `{TITLES[r]}`: {texts.read(r).summary}" for r in TITLES)
    corpus = json.loads(CORPUS.read_text())
    packages, drawn = corpus["packages"], corpus["sample"]
    right = sum(row["right"] for row in drawn)
    return INDEX.read_text().format(
        rules=rules,
        toctree="\n".join(TITLES),
        table=table(packages),
        sample=sample(drawn),
        count=len(packages),
        files=sum(row["files"] for row in packages),
        drawn=len(drawn),
        seed=corpus["seed"],
        true=right,
        share=round(100 * right / len(drawn)),
        total=sum(sum(row["findings"].values()) for row in packages),
        executed=corpus["executed"],
        confirmed=corpus["confirmed"],
        itself=corpus["itself"],
    )


def table(packages: list[dict]) -> str:
    """Return how often each rule found something in each package."""
    rules = list(TITLES)
    lines = [f"| package | files | {' | '.join(rules)} |", f"|{' --- |' * (len(rules) + 2)}"]
    for row in packages:
        cells = [row["package"], row["files"], *(row["findings"].get(rule, 0) for rule in rules)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    totals = [sum(row["findings"].get(rule, 0) for row in packages) for rule in rules]
    cells = ["all", sum(row["files"] for row in packages), *totals]
    return "\n".join([*lines, f"| {' | '.join(map(str, cells))} |"])


def sample(rows: list[dict]) -> str:
    """Return the findings that were judged, each with its reason."""
    lines = ["| finding | rule | right | why |", "| --- | --- | --- | --- |"]
    for row in rows:
        said = "yes" if row["right"] else "no"
        lines.append(f"| `{row['place']}` | {row['rule']} | {said} | {row['reason']} |")
    return "\n".join(lines)

"""The README quotes the code word for word, its snippets run, and its links lead somewhere."""

import re
import textwrap

import numpy as np
import pytest
from tiny import ROOT, decoded

from speculative.drafters import KINDS
from speculative.sampling import autoregressive_sampling

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_rule_and_the_loop_are_those_that_run():
    source = (ROOT / "speculative" / "sampling.py").read_text(encoding="utf-8")
    _, rule = source.split("def token_by_token", 1)
    rule, loop = rule.split("\n\n\ndef speculative_sampling", 1)
    signature, rule = rule.split("\n", 1)
    _, rule = rule.split('    """\n', 1)
    _, loop = loop.split("    while n < T:\n", 1)
    assert PYTHON[0] == f"def token_by_token{signature}\n{rule}\n\n\n" + textwrap.dedent("    while n < T:\n" + loop)
    assert len(PYTHON[0].splitlines()) <= 45


def test_the_snippet_decodes_what_the_target_alone_decodes(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(PYTHON[1], names)
    pair = names["session"].pair
    prompt = names["run"].document["prompt"]
    steps = autoregressive_sampling(prompt["tokens"], pair.target, 40, np.random.default_rng(0))
    text = pair.encoder.decode(decoded(steps))
    assert names["run"].text == text
    assert capsys.readouterr().out.startswith(text)
    assert prompt["text"] in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_the_page_on_python_runs_from_any_folder(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    before = dict(KINDS)
    names = {}
    try:
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(code, names)
    finally:
        for name in KINDS.keys() - before.keys():
            del KINDS[name]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("Session(target tiny-target float32, draft tiny-draft int8, drafter model, K=4")
    assert len({*shown[1:4]}) == 3
    run = names["run"]
    assert "".join(record["text"] for record in names["records"]) == run.text
    assert sum(record["tokens"] for record in names["records"]) == 30
    kinds = {type(value) for record in names["records"] for value in record.values()}
    assert kinds <= {int, float, str, type(None)}


@pytest.mark.parametrize("row", re.findall(r"^\| .*\]\([\w/.]+\) \| \d.*$", README, re.MULTILINE))
def test_files_are_as_long_as_the_table_says(row):
    paths, lengths = re.findall(r"\]\(([\w/.]+)\)", row), re.findall(r"\d+", row.split("|")[2])
    assert len(paths) == len(lengths) > 0
    for path, length in zip(paths, lengths, strict=True):
        assert abs(int(length) - len((ROOT / path).read_text(encoding="utf-8").splitlines())) <= 10, path


def links(text):
    """The targets of all links of a page in Markdown, pictures included."""
    return re.findall(r"\]\(([^)#]+)[^)]*\)", text)


def test_every_link_leads_somewhere():
    for folder in (ROOT, ROOT / "docs"):
        for page in folder.glob("*.md"):
            for target in links(page.read_text(encoding="utf-8")):
                assert target.startswith("http") or (folder / target).exists(), f"{page.name}: {target}"


def test_everything_in_docs_is_linked_and_the_index_has_every_page():
    folder = ROOT.resolve() / "docs"
    pages = {page: links(page.read_text(encoding="utf-8")) for page in (ROOT / "README.md", *folder.glob("*.md"))}
    linked = {(page.parent / target).resolve() for page, targets in pages.items() for target in targets}
    index = folder / "README.md"
    assert {*folder.iterdir()} - {index} <= linked
    assert {*pages[index]} == {page.name for page in folder.glob("*.md")} - {index.name}


def test_docs_can_be_read_in_an_hour():
    """At 200 words a minute; tables count too."""
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").glob("*.md")) <= 12_000


def test_it_is_a_front_page():
    assert len(README.splitlines()) <= 170

"""The code that README and docs show runs, and their links lead somewhere."""

import html
import json
import re
from unittest.mock import patch

import numpy as np
import pytest
from readme_words import fences, sentences, words_of_today
from tiny import ROOT, decoded

import speculative
from benchmarks import race
from speculative import drafters, rules
from speculative.report.pair import FOR_USERS

PROMPT = '"From the first, two facts were very obvious to me,'


def code_of(function: str, text: str) -> str:
    """The lines of a function, without its docstring, its comments and the types of its signature."""
    body = re.search(rf"^def {function}\(.*?(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)[0]
    body = re.sub(r'^    """.*?"""\n', "", body, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^def .*\n", "", body).strip()


LIMITS = {"README.md": 130, "main.py": 60, "gpt2.py": 100}  # lines
MOST_WORDS = 10_000  # of docs/


@pytest.mark.parametrize("path", LIMITS)
def test_a_file_that_is_read_first_stays_short(path):
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= LIMITS[path]


def test_the_pages_stay_short():
    """A page that grows has to lose what another one says too."""
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, words


def test_what_to_read_has_the_lines_of_each_file():
    rows = re.findall(
        r"^\| \[.*?\]\((.*?)\) \| (\d+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) == 7
    for path, n_lines in rows:
        assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) == int(n_lines), path


def test_readme_prints_the_functions_whole_and_they_decode(pair):
    source = (ROOT / "speculative" / "sampling.py").read_text(encoding="utf-8")
    printed = fences("README.md")[0]
    for function in ("speculative_sampling", "token_by_token"):
        assert code_of(function, printed) == code_of(function, source)
    names = {}
    exec(printed, names)
    session = pair.changed(temperature=1)
    rng = np.random.default_rng(session.options.seed)
    models = session.drafter(rng), session.model("target")
    steps = names["speculative_sampling"](session.encode(PROMPT), *models, 40, 4, rng)
    assert decoded(steps) == decoded(session.speculative(PROMPT, 40))


def test_the_session_of_readme_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(fences("README.md")[1], names)
    run = names["run"]
    assert run.text == run.autoregressive
    assert capsys.readouterr().out == f"{run.text}\n\n{run}\n"
    assert (tmp_path / "run.html").stat().st_size > 10_000


def test_the_session_of_using_runs(capsys):
    names = {}
    exec(fences("docs/using.md")[0], names)
    shown = capsys.readouterr().out
    assert "The texts are equal, token for token" in shown
    assert "".join(record["text"] for record in names["records"]) == names["run"].text
    samples = [line for line in shown.splitlines() if "|" in line]
    assert len({*samples}) >= 3  # a text may hold a line end


def test_the_window_of_using_slides_beyond_the_context(pair, capsys):
    names = {"session": pair}
    exec(fences("docs/using.md")[1], names)
    assert len(names["ids"]) > pair.n_ctx
    assert pair.encoder.decode(names["ids"][: pair.n_ctx]) in capsys.readouterr().out


def test_the_check_of_law_passes():
    names = {}
    exec(fences("docs/law.md")[-1], names)
    names["test_accept"]()


def test_gpt2_alone_decodes_the_bundled_pair(pair, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(fences("docs/using.md")[2], {})  # it asserts that both texts are equal
    text = "".join(step.text for step in pair.autoregressive("It was a dark night, and", 20))
    assert capsys.readouterr().out.rstrip("\n") == text.rstrip("\n")


@patch.dict(drafters.DRAFTERS)
@patch.dict(rules.RULES)
def test_the_drafter_and_the_rule_of_contributing_decode(pair):
    for code in fences("CONTRIBUTING.md"):
        exec(code, {})
    session = pair.changed(temperature=1)
    again = session.changed(drafter="again").compare("It was", 20)
    assert again.figures["drafted"] > 20
    half, token = (session.changed(accept=rule).compare("It was", 60) for rule in ("half", "token"))
    assert half.figures["alpha"] <= 0.5 < token.figures["alpha"]
    assert re.search(r'"u = [\d.]+, p = [\d.]+, q = [\d.]+"', half.html())


@pytest.mark.parametrize("page", ["docs/demo.svg", "docs/demo.html"])
def test_the_end_of_a_demo_is_shown_in_the_words_of_today(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith("html"):
        data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
        text = "\n".join([f"{data['headline']}: {data['lines'][0]}", *data["lines"][1:], *data["reasons"]])
    elif page.endswith("svg"):
        lines = {}
        for y, piece in re.findall(r'<text[^>]* y="([^"]*)"[^>]*>(.*?)</text>', text):
            lines[float(y)] = lines.get(float(y), "") + html.unescape(piece)
        text = "\n".join(line for _, line in sorted(lines.items())).replace("\N{NO-BREAK SPACE}", " ")
    ending = re.search(r"^[\d.]+ times as fast.*?(?=\n```|\Z)", text, re.DOTALL | re.MULTILINE)[0]
    ending = ending.replace("padded-target", "tiny-target")  # with which the tests decode
    # Not what it says of the padded target, and of that machine.
    ending, *_ = re.split("\nNote: |\nOther settings are not predicted: ", ending)
    assert len(sentences(ending)) > 4
    assert [sentence for sentence in sentences(ending) if sentence not in words_of_today()] == []


def test_every_link_leads_somewhere():
    for folder in (ROOT, ROOT / "docs"):
        for page in folder.glob("*.md"):
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
                assert target.startswith("http") or (folder / target).exists(), f"{page.name}: {target}"


def test_the_race_of_readme_is_drawn_as_today():
    """Its words and its style are those that python -m benchmarks race writes."""
    kept = (ROOT / "docs" / "race.svg").read_text(encoding="utf-8")
    if "K = " not in kept:
        pytest.skip("drawn before its title told K: python -m benchmarks pages race.svg")
    assert race.STYLE in kept
    for words in race.NAMES.values():
        assert f">{words}</text>" in kept


def test_tab_shows_what_is_meant_for_users(pair):
    assert dir(speculative) == sorted(speculative.__all__)
    assert dir(pair) == [*FOR_USERS]
    assert all(hasattr(pair, name) for name in FOR_USERS)
    for method in re.findall(r"\b(?:session|at_1)\.(\w+)", "".join(fences("README.md") + fences("docs/using.md"))):
        assert method in FOR_USERS


FEATURES = [  # what the project has, the page that tells it in these words, and the command that shows it
    ("the blog's run", "README.md", "The blog's run", "main.py --prompt"),
    ("the race", "README.md", "race.svg", "main.py --demo"),
    ("the race as a picture", "benchmarks/race.py", "both decoders|two decoders", "benchmarks race"),
    ("the bundled pair", "models/README.md", "tiny-draft", "--demo"),
    ("--fast", "docs/staged.md", "## `--fast`", "--fast"),
    ("staged drafting", "docs/staged.md", "multi-level", "--drafter int8/model"),
    ("prompt lookup in front of a model", "docs/using.md", "`a\\+b`", "prompt_lookup+model"),
    ("a drafter that is a function", "docs/using.md", "def echo", "changed(drafter=echo)"),
    ("a rule that is a function", "docs/using.md", "accept\\(proposal, q, rng\\)", "speculative.law(rule)"),
    ("K that chooses itself", "docs/using.md", "measured times", "--K auto"),
    ("trees", "docs/benchmarks.md", "Trees and heads", "--tree 3,1,1"),
    ("heads", "docs/training.md", "## Heads", "--drafter heads"),
    ("block verification", "docs/walkthrough.md", "as a block", "--accept block"),
    ("lenience", "docs/paper.md", "Lenience", "--accept lenient:B"),
    ("typical acceptance", "docs/paper.md", "Typical acceptance", "--accept typical:E"),
    ("matching", "docs/paper.md", "Σ p q", "--accept match"),
    ("a target that is a function", "docs/using.md", "The target may be a function", "load_pair(target=f"),
    ("many prompts at once", "docs/using.md", "several prompts at a time", "--batch 4"),
    ("a page of an earlier run", "docs/output.md", "earlier run", "-m speculative page"),
    ("Figure 1", "docs/paper.md", "## Figure 1", "benchmarks figure1"),
    ("the variance of latency", "docs/paper.md", "P50, P90 and P99", "benchmarks figure1"),
    ("Table 1", "docs/paper.md", "## Table 1", "benchmarks table1"),
    ("the blog's formula with β", "docs/theory.md", "r \\(K \\+ 1\\) / \\(K c \\+ β\\)", "benchmarks theory"),
    ("Leviathan's operations", "docs/theory.md", "operations", "benchmarks theory"),
    ("the bound on β", "docs/theory.md", "β < \\(1 − α", "benchmarks theory"),
    ("a mixture of experts", "docs/theory.md", "mixture of experts", "benchmarks experts"),
    ("β by batch", "docs/theory.md", "A batch", "benchmarks theory"),
    ("the blog's own code", "docs/benchmarks.md", "the blog's code|The blog's own code", "benchmarks blog"),
    ("the first token", "docs/benchmarks.md", "first token", "benchmarks start"),
    ("prices", "docs/benchmarks.md", "## Prices", "benchmarks prices"),
    ("the table of README", "docs/benchmarks.md", "README's table", "benchmarks results"),
    ("the kernels", "docs/kernels.md", "Registers", "benchmarks kernels"),
    ("formats", "docs/using.md", "rounds the target", "--dtype"),
    ("packs", "docs/using.md", "later runs begin sooner", "--pack"),
    ("models of the hub", "docs/using.md", "OWNER/NAME", "--draft_model_size distilgpt2"),
    ("special tokens", "docs/using.md", "endoftext", "--special"),
    ("stop texts", "docs/using.md", "ends the text", "--stop"),
    ("a session", "docs/using.md", "each line is a prompt", "--interactive"),
    ("the workbench", "docs/using.md", "workbench", "--serve"),
    ("GPUs", "docs/accelerators.md", "GPU", "--engine jax"),
    ("batches and meshes", "docs/accelerators.md", "--data_parallel", "--mesh 2"),
    ("distillation", "docs/training.md", "## Distil", "training distil"),
    ("online learning", "docs/training.md", "## Online", "training online"),
    ("the law", "docs/exercises.md", "Lossless", "-m speculative law"),
    ("--verify", "docs/walkthrough.md", "compares samples", "--verify"),
    ("the score of a text", "docs/score.md", "perplexity", "--score"),
    ("the JSON of a run", "docs/output.md", "iterations", "--json"),
]


@pytest.mark.parametrize(("feature", "page", "words", "command"), FEATURES)
def test_each_feature_stands_on_a_page_with_its_command(feature, page, words, command):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert re.search(words, text), f"{page} says nothing of {feature}"
    assert command in text, f"{page} has no command for {feature}"

"""A drafter and a flag that are added: every part of the command knows them, though nothing but the registry does."""

import itertools
import re

import numpy as np
import pytest
from test_flags import parse, refused
from tiny import ROOT, refusal, texts

from speculative import drafters
from speculative.accept import RULES
from speculative.cli.flags import all_flags, rooms, usage
from speculative.drafters.base import Kind, Proposal
from speculative.drafters.model import model_tree
from speculative.engines.formats import FORMATS
from speculative.one_hot import OneHot
from speculative.support import arguments
from speculative.support.arguments import Flag

FOLLOWS = "toy_follows"


def chain(parts):
    """Proposes one token again and again: the one that its flag names, or else the last."""

    def draft(x, k):
        token = parts.prepared["toy"] if parts.prepared["toy"] is not None else int(x[-1])
        return Proposal([token] * k, OneHot(np.full(k, token), parts.n_vocab), ["toy"] * k)

    return draft


def tree(parts):
    """The last token and those after it, for each place."""

    def near(x, tree, nodes):  # -> [len(nodes), n_vocab]
        tokens = np.array([tree.tokens[node] for node in nodes])  # [len(nodes)]
        return np.float32(1) / (1 + (np.arange(parts.n_vocab) - tokens[:, None]) % parts.n_vocab)

    return model_tree(near, parts.rng, True, "toy")


TOY = Kind(
    name="toy",
    help="the same token again; pays for a test",
    chain=chain,
    prepare=lambda setting: setting.options[FOLLOWS],
    flags=(
        Flag(
            FOLLOWS,
            arguments.integer(0, 200),
            "the token that is proposed",
            excludes=("seed",),
            only_engine="numpy",
            why="the toy says so",
        ),
    ),
    color="bright_red",
)
ON_NUMPY = TOY._replace(name="toy", tree=tree, only_engine="numpy", why="it is a toy")


@pytest.fixture
def register(monkeypatch):
    """A kind -> it is registered until the end of the test."""
    return lambda kind: monkeypatch.setitem(drafters.KINDS, "toy", kind)


@pytest.fixture(params=[TOY, ON_NUMPY], ids=["chains only", "trees too"])
def toy(request, register):
    """The kind that was registered."""
    register(request.param)
    return request.param


def test_its_tokens_are_its_own(run_json, toy):
    """The random target says the same token again now and then."""
    _, document = run_json(drafter="toy", n_tokens_to_generate=60)
    iterations = document["speculative"]["samples"][0]["iterations"]
    assert {name for i in iterations for name in i["by"]} == {"toy"}
    accepted = sum(i["accepted"] for i in iterations)
    assert document["figures"]["by_proposer"] == {"toy": [accepted, sum(len(i["alpha"]) for i in iterations)]}
    assert (document["schema"], document["options"]["drafter"]) == (3, "toy")
    _, document = run_json(drafter="model/toy", n_tokens_to_generate=60)
    iterations = document["speculative"]["samples"][0]["iterations"]
    [level] = iterations[0]["levels"]
    assert (level["name"], {*level["iterations"][0]["by"]}) == ("model", {"toy"})
    assert {name for i in iterations for name in i["by"]} <= {"model", "toy"}


def test_it_drafts_a_tree_where_it_can_and_is_refused_where_it_cannot(run_json, register):
    register(ON_NUMPY)
    for tree_flag in ("2,2,1", "auto"):
        _, document = run_json(drafter="toy", tree=tree_flag)
        [plain], [speculative] = (document[name]["samples"] for name in ("autoregressive", "speculative"))
        assert plain["tokens"] == speculative["tokens"]
        iterations = speculative["iterations"]
        assert {name for i in iterations for name in i["by"]} <= {"toy"}
        assert "tree" in iterations[0]
        assert iterations[0]["drafted"] in (10, 1)
    assert run_json(drafter="toy+prompt_lookup", tree="2,1")
    register(TOY)
    for drafter in ("toy", "toy+model"):
        line = refusal(run_json, drafter=drafter, tree="2,1")
        assert line.startswith("--tree does not go with --drafter toy, which drafts chains only: model, ")
        assert line.endswith("draft trees")
        assert "toy" not in line.rpartition(": ")[2]


def test_its_tokens_have_its_colour(run, toy, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    outs = (run(drafter="toy", color=True, temperature=1, seed=seed, top_k=3) for seed in range(40))
    out = next(out for out in outs if "accepted: toy" in out)
    assert "\033[91maccepted: toy\033[0m" in out
    assert out.count("\033[91m") >= 2


def test_help_has_it(toy):
    lines = usage().splitlines()
    assert f"{'':26}{'toy':13} the same token again; pays for a test" in lines
    [flag] = [line for line in lines if line.startswith(f"  --{FOLLOWS} ")]
    assert flag.endswith("the token that is proposed")
    assert max(map(len, lines)) <= 120


def test_jax_refuses_it_in_its_own_words(run, register):
    register(ON_NUMPY)
    for drafter in ("toy", "model/toy", "toy+ngram"):
        line = refused(drafter=drafter, engine="jax")
        assert line == "--drafter toy is for --engine numpy: it is a toy"
    pytest.importorskip("jax")
    jax = {"drafter": "toy", "engine": "jax", "threads": None}
    assert refusal(run, **jax) == line
    register(TOY)
    assert parse(drafter="toy", engine="jax").engine == "jax"
    assert refusal(run, **jax, **{FOLLOWS: 3}) == f"--{FOLLOWS} is for --engine numpy: the toy says so"


# ---- Its flag --------------------------------------------------------------------------------------------------------


def test_its_flag_is_parsed_and_reaches_it(run_json, toy):
    assert parse(drafter="toy", **{FOLLOWS: "17"}).toy_follows == 17
    _, document = run_json(drafter="toy", **{FOLLOWS: 17}, details=True)
    drafts = [i["details"]["drafts"] for i in document["speculative"]["samples"][0]["iterations"]]
    assert ({*itertools.chain(*drafts)}, document["options"][FOLLOWS]) == ({17}, 17)


def test_its_flag_is_refused_by_its_own_rules(toy):
    assert refused(drafter="toy", **{FOLLOWS: "201"}) == f"--{FOLLOWS} must be a whole number from 0 to 200, not '201'"
    line = f"--seed and --{FOLLOWS} cannot be combined: give one of them"
    assert refused(drafter="toy", seed="1", **{FOLLOWS: "2"}) == line
    assert refused(**{FOLLOWS: "2"}) == f"--{FOLLOWS} is of no use here: --drafter model has no toy in it"
    assert parse(drafter="model/toy", **{FOLLOWS: "2"})
    assert re.search(f"did you mean --{FOLLOWS}", refused(toy_folows="2"))
    assert "another drafter drafts for toy, which has no model" in refused(drafter="toy/model")


def test_a_flag_of_two_names_is_noticed(toy):
    """No two rooms may declare the same one: the latter would hide the former."""
    names = [flag.name for _, flags in rooms() for flag in flags]
    assert len(names) == len({*names}) == len(all_flags())


def test_what_contributing_shows_works(run):
    """A drafter, a rule, a flag and a format, as CONTRIBUTING.md adds them."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    registries = (drafters.KINDS, RULES, FORMATS)
    before = [dict(registry) for registry in registries]
    names = {}
    try:
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(code, names)
        plain, speculative = texts(run(drafter="again", accept="at_most_one", dtype="grid", quiet=True))
        assert plain == speculative
    finally:
        for registry, names_before in zip(registries, before, strict=True):
            for name in registry.keys() - names_before.keys():
                del registry[name]
    assert names["FLAG"].parse("4") == 4


def test_the_lines_of_a_filter_in_contributing_are_the_code():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = page.split("all the lines of `--min_p`:")[1].split("```")[1]
    source = []
    for line in shown.strip().splitlines():
        if not line.startswith(" "):
            source = (ROOT / line).read_text(encoding="utf-8").splitlines()
        else:
            assert any(own.strip().startswith(line.split("  # of")[0].strip()) for own in source), line
    assert "jnp." in shown

"""A drafter and a flag that are added: every part of the command knows them, though nothing but the registry does."""

import itertools
import json
import re
import sys
from functools import partial

import numpy as np
import pytest
from test_flags import FLAGS, parse, refusal, refused
from test_main import run, run_json, texts  # noqa: F401

import main
from plumbing import arguments
from plumbing.arguments import Flag
from speculative import drafters
from speculative.cli.flags import all_flags, check_engine, usage
from speculative.drafters.base import Kind, Proposal
from speculative.measure import verify
from speculative.one_hot import OneHot
from speculative.trees import Tree, one_hot

FOLLOWS = "toy_follows"


def chain(parts):
    """Proposes one token again and again: the one that its flag names, or else the last."""

    def draft(x, k):
        token = parts.prepared["toy"] if parts.prepared["toy"] is not None else int(x[-1])
        return Proposal([token] * k, OneHot(np.full(k, token), parts.n_vocab), ["toy"] * k)

    return draft


def tree(parts):
    """The last token and those after it, for each place."""

    def draft(x, shape):
        tree = Tree([int(x[-1])], by="toy")
        todo = [(0, shape)]
        while todo:
            node, below = todo.pop(0)
            for i, shape_below in enumerate(below):
                token = (tree.tokens[node] + i) % parts.n_vocab
                todo.append((tree.add(node, token, one_hot(token, parts.n_vocab)), shape_below))
        return tree

    return draft


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


@pytest.fixture(params=["chains only", "trees too"])
def toy(request, monkeypatch):
    """The kind that was registered."""
    kind = TOY if request.param == "chains only" else ON_NUMPY
    monkeypatch.setitem(drafters.KINDS, "toy", kind)
    return kind


@pytest.fixture
def with_trees(monkeypatch):
    monkeypatch.setitem(drafters.KINDS, "toy", ON_NUMPY)


def test_it_is_not_there_before():
    assert "unknown drafter 'toy'" in refused(drafter="toy")
    assert FOLLOWS not in FLAGS and "unknown flag" in refused(**{FOLLOWS: 3})
    assert "toy" not in usage(main.main)


@pytest.mark.parametrize("drafter", ["toy", "toy+model", "prompt_lookup+toy", "model/toy", "ngram/toy"])
def test_it_decodes(run, toy, drafter):  # noqa: F811
    for flags in ({"K": 3}, {"K": "auto"}):
        plain, speculative = texts(run(drafter=drafter, quiet=True, **flags))
        assert plain == speculative == texts(run(quiet=True))[0]


def test_it_loads_no_model_that_it_does_not_need(run, toy):  # noqa: F811
    assert texts(run(drafter="toy", quiet=True, draft_model_size="not-there"))


def test_its_tokens_are_its_own(run_json, toy):  # noqa: F811
    """The random target says the same token again now and then."""
    _, document = run_json(drafter="toy", n_tokens_to_generate=60)
    iterations = document["speculative"]["samples"][0]["iterations"]
    assert {name for i in iterations for name in i["by"]} == {"toy"}
    accepted = sum(i["accepted"] for i in iterations)
    assert document["figures"]["by_proposer"] == {"toy": [accepted, sum(len(i["alpha"]) for i in iterations)]}
    assert document["schema"] == 3 and document["options"]["drafter"] == "toy"
    _, document = run_json(drafter="model/toy", n_tokens_to_generate=60)
    iterations = document["speculative"]["samples"][0]["iterations"]
    [level] = iterations[0]["levels"]
    assert level["name"] == "model" and {*level["iterations"][0]["by"]} == {"toy"}
    assert {name for i in iterations for name in i["by"]} <= {"model", "toy"}


def test_a_tree_where_it_drafts_one(run_json, with_trees):  # noqa: F811
    for tree_flag in ("2,2,1", "auto"):
        _, document = run_json(drafter="toy", tree=tree_flag)
        for decoder in ("autoregressive", "speculative"):
            assert document[decoder]["samples"][0]["tokens"] == document["speculative"]["samples"][0]["tokens"]
        iterations = document["speculative"]["samples"][0]["iterations"]
        assert {name for i in iterations for name in i["by"]} <= {"toy"}
        assert "tree" in iterations[0] and iterations[0]["drafted"] in (10, 1)
    assert run_json(drafter="toy+prompt_lookup", tree="2,1")


def test_no_tree_where_it_drafts_none(run, monkeypatch):  # noqa: F811
    monkeypatch.setitem(drafters.KINDS, "toy", TOY)
    for drafter in ("toy", "toy+model"):
        line = refusal(run, drafter=drafter, tree="2,1")
        assert line.startswith("--tree does not go with --drafter toy, which drafts chains only: model, ")
        assert line.endswith("draft trees") and "toy" not in line.rpartition(": ")[2]


def test_nothing_drafts_for_it(toy):
    assert "another drafter drafts for toy, which has no model" in refused(drafter="toy/model")


def test_its_tokens_have_its_colour(run, toy, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for seed in range(20):
        out = run(drafter="toy", color=True, temperature=1, seed=seed, top_k=3, n_tokens_to_generate=60)
        if "accepted: toy" in out:
            assert "\033[91maccepted: toy\033[0m" in out and out.count("\033[91m") >= 2
            return
    pytest.fail("none was accepted")


def test_verify(run, toy, monkeypatch):  # noqa: F811
    monkeypatch.setattr(verify, "verify", partial(verify.verify, draws=25))
    flags = [{"K": 2}] + [{"tree": "2,1"}] * (toy.tree is not None)
    for one in flags:
        out = run(drafter="toy", verify=True, **one)
        assert "Verdict: no loss found" in out and ("nodes" in out) == ("tree" in one)


def test_verify_sees_that_it_lies(run, monkeypatch, capsys):  # noqa: F811
    """A drafter whose p is not what its tokens were drawn from."""

    def lies(parts):
        def draft(x, k):
            tokens = parts.rng.integers(4, size=k)
            return Proposal(tokens.tolist(), np.full((k, parts.n_vocab), 1 / parts.n_vocab, np.float32), ["toy"] * k)

        return draft

    monkeypatch.setitem(drafters.KINDS, "toy", TOY._replace(chain=lies))
    monkeypatch.setattr(verify, "verify", partial(verify.verify, draws=200))
    with pytest.raises(SystemExit):
        run(drafter="toy", verify=True, temperature=99, K=2)
    assert "FAILED  speculative against the target" in capsys.readouterr().out


def test_help_has_it(toy, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main.py", "--help"])
    main.run(main.main, main.__doc__)
    lines = capsys.readouterr().out.splitlines()
    assert f"{'':26}{'toy':13} the same token again; pays for a test" in lines
    [flag] = [line for line in lines if line.startswith(f"  --{FOLLOWS} ")]
    assert flag.endswith("the token that is proposed") and max(map(len, lines)) <= 120


def test_on_jax(tiny_pair, monkeypatch):
    usual = {"target_model_size": "target", "draft_model_size": "draft", "models_dir": str(tiny_pair)}
    monkeypatch.setitem(drafters.KINDS, "toy", ON_NUMPY)
    for drafter in ("toy", "model/toy", "toy+ngram"):
        line = refusal(check_engine, parse(drafter=drafter, engine="jax"))
        assert line == "--drafter toy is for --engine numpy: it is a toy"
    pytest.importorskip("jax")
    assert refusal(main.main, **usual, drafter="toy", engine="jax") == line
    monkeypatch.setitem(drafters.KINDS, "toy", TOY)
    assert check_engine(parse(drafter="toy", engine="jax")).engine == "jax"
    line = refusal(main.main, **usual, drafter="toy", engine="jax", **{FOLLOWS: 3})
    assert line == f"--{FOLLOWS} is for --engine numpy: the toy says so"


# ---- Its flag --------------------------------------------------------------------------------------------------------


def test_its_flag_is_parsed_and_reaches_it(run_json, toy):  # noqa: F811
    assert parse(drafter="toy", **{FOLLOWS: "17"}).toy_follows == 17
    _, document = run_json(drafter="toy", **{FOLLOWS: 17}, details=True)
    drafts = [i["details"]["drafts"] for i in document["speculative"]["samples"][0]["iterations"]]
    assert {*itertools.chain(*drafts)} == {17} and document["options"][FOLLOWS] == 17
    json.dumps(document)


def test_its_flag_is_refused_by_its_own_rules(toy):
    assert refused(drafter="toy", **{FOLLOWS: "201"}) == f"--{FOLLOWS} must be a whole number from 0 to 200, not '201'"
    assert refused(drafter="toy", seed="1", **{FOLLOWS: "2"}) == (
        f"--seed and --{FOLLOWS} cannot be combined: give one of them"
    )
    assert refused(**{FOLLOWS: "2"}) == f"--{FOLLOWS} is of no use here: --drafter model has no toy in it"
    assert parse(drafter="model/toy", **{FOLLOWS: "2"})
    assert re.search(f"did you mean --{FOLLOWS}", refused(toy_folows="2"))


def test_a_flag_of_two_names_is_noticed(toy):
    """No two rooms may declare the same one: the latter would hide the former."""
    names = [flag.name for _, flags in main_rooms() for flag in flags]
    assert len(names) == len({*names}) == len(all_flags())


def main_rooms():
    from speculative.cli.flags import rooms

    return rooms()

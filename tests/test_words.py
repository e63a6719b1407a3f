"""What a run says of itself: no advice that the run contradicts, no word where nothing can be told."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import main
from benchmarks import common
from plumbing import exits, patience
from plumbing.errors import UserError
from speculative.cli.flags import parse_options, with_values
from speculative.cli.load import load_pair
from speculative.costs import best_k
from speculative.drafters.base import Proposal
from speculative.drafters.model import model_drafter, model_tree
from speculative.measure import better, report, sampled, verify
from speculative.measure.figures import figures
from speculative.measure.recorder import Iteration, Recorder
from speculative.measure.uniform import BINS, LEVEL, detectable, flat
from speculative.sampling import Step
from speculative.trees import regular

ROOT = Path(main.__file__).parent

# Advice


def recorder(steps, seconds, rng, noise, K=0, t_draft=0.0):
    """A run of these (drafted, accepted), whose calls take `seconds` of their rows, each by chance a bit more or less.

    As at the end of a real run, the first call has a prefill.
    """
    run = Recorder()
    run.samples = [[]]
    for number, (drafted, accepted) in enumerate(steps):
        scoring = seconds(drafted + 1) * np.exp(noise * rng.standard_normal())
        drafting = t_draft * drafted * np.exp(noise * rng.standard_normal())
        met = min(drafted, accepted + 1)
        run.samples[0].append(
            Iteration(
                step=Step([7] * (accepted + 1), drafted, accepted),
                drafting=drafting,
                scoring=scoring,
                seconds=drafting + scoring,
                prefill=number == 0,
                draft_prefill=number == 0,
                alpha=[1.0] * min(met, accepted) + [0.0] * (met - accepted),
                matching=[0.0] * met,
                by=["model"] * drafted,
            )
        )
    run.seconds = sum(i.seconds for i in run.iterations)
    return run


def run(alpha, K, n_iterations, c=0.1, slope=0.05, noise=0.05, seed=0, faster_draft=1.0):
    """figures() of a run whose drafts are accepted with chance alpha. slope: what each more row costs, in rows."""
    rng = np.random.default_rng(seed)
    hits = [int(np.argmin(np.append(rng.random(K) < alpha, False))) for _ in range(n_iterations)]
    speculative = recorder([(K, n) for n in hits], lambda rows: 1 + slope * (rows - 1), rng, noise, K, c)
    n_tokens = speculative.n_tokens
    return figures(recorder([(0, 0)] * n_tokens, lambda rows: 1.0, rng, noise), speculative)


def true_gain(alpha, K, other, c=0.1, slope=0.05):
    def speedup(K):
        return sum(alpha**i for i in range(K + 1)) / (K * c + 1 + slope * K)

    return speedup(other) / speedup(K)


def test_a_run_that_is_too_short_to_tell_advises_no_k():
    """54 tokens: the best K of such runs is anything from 3 to 8, and no run knows."""
    found = [run(0.85, 4, 14, noise=0.1, seed=seed) for seed in range(20)]
    assert len({f["best_K"] for f in found}) > 2
    assert {f["better_K"] is None for f in found} == {True}
    assert all("No other K is sure to be faster" in report.summary(f)[-1] for f in found)


def test_a_long_run_at_too_small_a_k_knows_that_a_larger_one_is_faster():
    f = run(0.95, 2, 300)
    found = f["better_K"]
    assert (found["from"], found["to"], found["sure"]) == (3, 4, 0.95)
    assert found["at_least"] < true_gain(0.95, 2, 4) - 1 < found["gain"] + 0.05
    advice = report.summary(f)[-1]
    assert re.fullmatch(r"K = 3 to 4 would be faster: by about \d+%, at least \d+% \(95% sure\)\.", advice)


def test_a_long_run_at_too_large_a_k_knows_that_a_smaller_one_is_faster():
    f = run(0.4, 8, 300)
    assert f["better_K"]["from"] == 1 and f["better_K"]["to"] < 8
    assert f["best_K"] < 4


def test_what_is_said_with_so_much_certainty_is_true_that_often():
    """Where another K gains exactly nothing, few runs say that it gains."""
    wrong = 0
    for seed in range(40):
        found = run(0.8, 5, 40, seed=seed)["better_K"]
        wrong += found is not None and true_gain(0.8, 5, found["from"]) < 1
    assert wrong <= 4


def test_no_prediction_for_another_k_is_below_that_for_this_one():
    for seed in range(10):
        f = run(0.9, 4, 30, noise=0.3, seed=seed)
        assert f["predicted_best"] >= f["predicted_blog"] or f["busy"]


@pytest.mark.parametrize("K", ["auto", (4, "auto"), 5])
def test_under_auto_and_for_a_drafter_that_gives_fewer_no_k_is_advised(K):
    f = run(0.95, 2, 300)
    assert "K" not in report.summary(f, K)[-1]
    assert "K = 3 to 4" in report.summary(f, 2)[-1]


def test_where_windows_seem_cheaper_than_rows_nothing_is_predicted():
    f = run(0.8, 4, 30, slope=-0.17)
    assert f["busy"]
    assert [f[name] for name in ("c", "beta", "mean_beta", "predicted_blog", "predicted_best", "best_K")] == [None] * 6
    *rest, advice = report.summary(f)
    assert "too busy to tell" in advice and not any("Predicted" in line for line in rest)
    assert not any("x" in value for _, value, _ in report.details(f))


def test_where_a_window_costs_what_a_row_does_chance_is_no_failure():
    assert not any(run(0.8, 4, 30, slope=0.0, noise=0.02, seed=seed)["busy"] for seed in range(5))


def test_the_largest_gain_is_over_this_run():
    f = run(0.5, 2, 300, c=0.5, slope=0.0)
    f["better_K"] = None
    obstacle, gain = report.largest_gain(f)
    assert obstacle == "drafting were free" and gain == pytest.approx(1.0, abs=0.1)
    assert report.advice(f).endswith("the largest gain would come if drafting were free: 100%.") or gain != 1


def test_a_run_that_did_not_pay_says_so():
    assert report.summary(run(0.02, 1, 200, c=0.6))[-1].startswith("Speculative decoding did not pay: 1.0")


def test_speedups_are_those_of_the_formula():
    def beta(rows):
        return 1 + 0.1 * (rows - 1)

    a = [0.9, 0.8, 0.7, 0.6]
    found = better.speedups(np.array(a), 1.0, 0.05, [beta(k + 1) for k in range(5)])
    K, speedup = best_k(a, 0.05, beta)
    assert int(np.argmax(found)) == K and found.max() == pytest.approx(speedup)
    assert better.speedups(np.array(a), 0.0, 0.05, [1, 2, 3, 4, 5]) == pytest.approx(np.ones(5))


# --verify


def places(propose, n=400):
    """The p-value of n proposals, each of its own distributions."""
    counts = np.zeros(BINS, int)
    rng = np.random.default_rng(1)
    for _ in range(n):
        sampled.count_drafts(counts, propose(rng), rng)
    return flat(counts)


def random_rows(rng, n):
    rows = rng.random((n, 20)) ** 3
    return rows / rows.sum(axis=1, keepdims=True)


def chain(rng):
    return model_drafter(lambda x, n_last=1: random_rows(rng, n_last), rng)([1, 2], 4)


def tree(rng):
    return model_tree(lambda x, tree, nodes: random_rows(rng, len(nodes)), rng)([1, 2], regular((3, 2)))


def one_p_for_all_siblings(rng):
    found = tree(rng)
    for node, parent in enumerate(found.parents[1:], start=1):
        found.p[node] = found.p[found.children[parent][0]]
    return found


def others_p(rng):
    proposal = chain(rng)
    return Proposal(proposal.tokens, random_rows(rng, len(proposal.tokens)))


def test_drafts_are_held_against_the_p_that_they_come_with():
    assert places(chain) > LEVEL and places(tree) > LEVEL
    assert places(one_p_for_all_siblings) < LEVEL
    assert places(others_p) < LEVEL


def shown(*checks):
    lines = []
    verify.show(checks, lines.append)
    return lines[-1]


def test_the_verdict_says_what_it_excludes():
    exact = verify.Check("greedy", True, "")
    drawn = verify.Check("speculative against the target", True, "", 0.046)
    of_both = verify.Check("speculative against autoregressive", True, "", 0.09)
    assert shown(exact, drawn, of_both) == "Verdict: no loss found; a shift above 4.6% would have shown."
    assert shown(exact, drawn._replace(passed=False)) == "Verdict: NOT lossless, for the reasons above."


def test_draws_go_on_until_a_shift_of_ten_percent_would_show_or_five_times_as_long():
    few = np.ones((2, 2, BINS), int)
    many = 1000 * few
    assert detectable(BINS) > sampled.SHIFT > detectable(1000 * BINS)
    assert sampled.goes_on(59, 60, many) and not sampled.goes_on(60, 60, many)
    assert sampled.goes_on(299, 60, few) and not sampled.goes_on(300, 60, few)


# What takes long


def test_without_a_terminal_there_is_a_line_at_the_start_and_one_at_the_end(capsys):
    with patience.lines("reading", at_once=0):
        while "reading ...\n" not in capsys.readouterr().err:
            pass
    assert re.fullmatch(r"reading: done in \d+ s\n", capsys.readouterr().err)


def test_what_is_done_at_once_needs_no_line(capsys):
    with patience.lines("reading", at_once=1e6):
        pass
    assert capsys.readouterr().err == ""


# What is ignored in silence, or quoted whole


@pytest.mark.parametrize(
    "flags",
    [
        {"drafter": "prompt_lookup", "draft_dtype": "int8"},
        {"drafter": "prompt_lookup", "draft_temperature": "0.5"},
        {"ngram_text": "README.md"},
    ],
)
def test_what_would_be_ignored_is_refused(flags):
    with pytest.raises(UserError, match=f"--{[*flags][-1]} is of no use here"):
        parse_options(main.main, **flags)
    assert parse_options(main.main, drafter="ngram", draft_temperature="0.5", ngram_text="README.md")
    assert parse_options(main.main, drafter="prompt_lookup+model", draft_temperature="0.5", draft_dtype="int8")


def test_the_name_of_a_draft_model_is_refused_where_it_is_typed_in_vain():
    with pytest.raises(UserError, match="--draft_model_size is of no use here: --drafter ngram needs no draft model"):
        with_values(["--draft_model_size", "124M", "--drafter", "ngram"])
    assert len(with_values(["--draft_model_size", "124M", "--drafter", "ngram+model"])) == 2
    assert with_values(["--draft_model_size=355M"]) == ["--draft_model_size=355M"]


def command(*words):
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peers", "experts", "parts"])
def test_what_is_no_command_of_its_own_says_which_is(name):
    status, said = command("-m", f"benchmarks.{name}", "--K", "4")
    assert status == 2 and re.fullmatch(r"error: this is measured by python -m benchmarks\.\w+ -*\w+\n", said)


def test_a_file_without_a_name_is_refused():
    parser = common.Parser("")
    parser.add_json()
    with pytest.raises(UserError, match="argument --json: must be the name of a file or folder, not ''"):
        parser.parse_args(["--json", ""])


@pytest.mark.parametrize("path", ["a" * 5000, "a b/" * 1250])
def test_no_path_of_thousands_of_characters_is_quoted_whole(path, capsys):
    with pytest.raises(SystemExit):
        exits.fail(f"error: cannot write to {path}: it is full", 2)
    said = capsys.readouterr().err
    assert len(said) < 900 and said.startswith("error: cannot write to a") and said.endswith("it is full\n")


def test_an_empty_text_from_python_is_told_how_to_begin():
    pair = load_pair("tiny-draft", "tiny-target", K=4, temperature=0)
    for decode in (pair.autoregressive, pair.speculative):
        with pytest.raises(ValueError, match=r"an empty text begins with <.endoftext.>"):
            list(decode(pair.encoder.encode(""), 5, np.random.default_rng(0)))

"""Mistakes that are planted in the figures and in the words of a run: each is seen by a check of a run that was
computed by hand."""

import json
import os
from dataclasses import replace

import pytest
from tiny import plant, replace_function, sample_of, text_of

from speculative.report import advice, document, doubt, ending, figures, page, tables, words
from speculative.report.record import (
    DecoderRecord,
    Machine,
    Model,
    PackSaves,
    Prompt,
    RuleUsed,
    RunRecord,
)
from speculative.run.options import Options
from speculative.run.steps import TextStep

# Eight tokens of each decoder. A row of the target takes 1 s, 2 rows 1.2 s, 3 rows 1.4 s, a draft 0.1 s. Reading the
# prompt takes the target 2 s in the autoregressive decode; in the other one it takes 1.9 s, and the draft model 0.3 s.
PLAIN = [TextStep([0], scoring=3.0, seconds=3.0, prefill=True, pieces=["a"], origins=["autoregressive"])]
PLAIN += [TextStep([0], scoring=1.0, seconds=1.0, pieces=["a"], origins=["autoregressive"]) for _ in range(7)]


def step(drafted, accepted, drafting, scoring, seconds, alpha, drafter, **about):
    """A step of the speculative decode."""
    own = "bonus" if accepted == drafted else "resampled"
    return TextStep(
        tokens=[0] * (accepted + 1),
        drafted=drafted,
        accepted=accepted,
        drafting=drafting,
        scoring=scoring,
        seconds=seconds,
        alpha=alpha,
        source=[drafter] * drafted,
        calls=[("draft", 0.0, drafting), ("target", drafting, scoring)],
        pieces=["b"] * accepted + ["c"],
        origins=["accepted"] * accepted + [own],
        **about,
    )


MINE = [
    step(2, 1, 0.5, 3.2, 3.8, [0.9, 0.5], "model", prefill=True, draft_prefill=True),
    step(2, 2, 0.2, 1.4, 1.6, [0.8, 0.7], "prompt_lookup"),
    step(2, 0, 0.2, 1.4, 1.6, [0.4], "model"),
    step(1, 1, 0.1, 1.2, 1.3, [0.6], "model"),
]


def run_by_hand(**changes):
    """The record of that run."""
    plain = DecoderRecord("autoregressive", 10.0, samples=[sample_of(PLAIN)], waited=0.5)
    mine = DecoderRecord("speculative", 8.3, samples=[sample_of(MINE)], waited=0.25)
    machine = Machine("Linux", "a CPU", 2, "3.12", "2.4", "c", "C (AVX2), 2 threads", exact=True)
    record = RunRecord(
        options=Options(drafter="prompt_lookup+model", K=2, temperature=1.0),
        machine=machine,
        models=[Model("target", "124M", "float32", 500_000_000), Model("draft", "small", "int8", 7)],
        roles=["draft"],
        rule=RuleUsed("token", "Σ min(p, q)", lossless=True),
        timed=False,
        fast="prompt_lookup+model",
        prompts=[Prompt("the", [1])],
        autoregressive=plain,
        speculative=mine,
        figures=figures.figures(plain, mine),
        difference=None,
        blog_text=None,
        vocabulary={},
        packable=PackSaves(3.0, 10),
    )
    return replace(record, **changes)


# ---- The checks ------------------------------------------------------------------------------------------------------


def check_counts():
    counts = run_by_hand().figures
    assert (counts.tokens, counts.drafted, counts.accepted, counts.iterations, counts.usual_K) == (8, 7, 4, 4, 2)
    assert (counts.r, counts.mean_K, counts.tokens_per_iteration) == (8 / 11, 7 / 4, 2)
    assert (counts.accepted_share, counts.alpha) == (4 / 7, pytest.approx(0.65))
    assert (counts.tested_by_position, counts.accepted_by_position) == ([4, 2], [3, 1])
    assert counts.by_source == {"model": [2, 4], "prompt_lookup": [2, 2]}
    assert counts.tokens_per_iteration_histogram == {"1": 1, "2": 2, "3": 1}


def check_times():
    times = run_by_hand().figures
    assert vars(times.seconds) == pytest.approx(
        {"autoregressive": 10.0, "speculative": 8.3, "drafting": 1.0, "scoring": 7.2, "rest": 0.1, "prefill": 2.2}
    )
    assert (times.t_draft, times.waited) == (pytest.approx(0.1), 0.75)


def check_account():
    account = run_by_hand().figures
    assert account.speedup == pytest.approx(10 / 8.3)
    assert account.speedup_without_prefill == pytest.approx(8 / 6.1)
    assert (account.t_target, account.c, account.mean_beta) == pytest.approx((1.0, 0.1, 1.35))
    assert account.beta == pytest.approx({"2": 1.2, "3": 1.4})
    assert account.blog_speedup == pytest.approx(2 / 1.175)
    assert account.account_blog == pytest.approx(2 / 1.525)
    assert account.account_leviathan == pytest.approx((3 * (1 + 0.65 + 0.65**2) + 1.65) / 4 / 1.525)


def check_doubt():
    record = run_by_hand()
    f = record.figures
    assert f.doubt is None
    impossible = replace(f, speedup=2.2)
    assert doubt.reason_to_doubt(impossible, 3.0).startswith("2.00 tokens for each call")
    beyond = replace(f, speedup_without_prefill=2.2)
    assert doubt.reason_to_doubt(beyond, 3.0).startswith("2.20 without the prompt")
    cheap = replace(f, mean_beta=0.9)
    assert doubt.reason_to_doubt(cheap, 3.0).startswith("calls of the target with several")
    waited = replace(f, waited=9.0)
    assert doubt.disturbance(waited).startswith("the threads together waited 9 s for cores")
    assert doubt.disturbance(replace(f, waited=1.0)) is None


def check_lines():
    record = run_by_hand()
    lines = ending.lines(record, ending.CAME, ending.WHY)
    kinds = ["speed", "texts", "acceptance", "time", "account", "engine", "pack"]
    assert [line.kind for line in lines] == kinds
    said = {line.kind: line.text for line in lines}
    assert said["speed"] == "1.20 times as fast: 0.964 tokens a second instead of 0.8."
    assert said["texts"] == "The texts are equal, token for token."
    accepted = "4 of 7 drafts accepted (57 %)."
    assert said["acceptance"] == f"{accepted} A target call gives 2.00 of at most 3 tokens: acceptance rate r = 0.73."
    assert said["time"] == (
        "Time: 12 % drafting, 87 % in the target, 1 % elsewhere. A draft takes c = 0.10 of a target token's time."
    )
    assert "r(K + 1) / (Kc + 1) gives 1.70 (mean K = 1.75)." in said["account"]
    assert "costs β = 1.35 times" in said["account"]
    assert said["account"].endswith("gives 1.31; measured, without the prompt: 1.31.")
    assert said["engine"] == "Engine: C (AVX2), 2 threads. Target 124M in float32, draft small in int8."
    assert said["pack"] == f"The next run begins 3 s sooner with --pack: 0 MB in {os.path.join('models', 'packed')}"
    disturbed = replace(record.figures, waited=9.0)  # reading took longer, too
    assert text_of(run_by_hand(figures=disturbed), "pack") is None
    lossy = run_by_hand(rule=RuleUsed("lenient:0.5", "", lossless=False))
    assert text_of(lossy, "law") == "--accept lenient:0.5 does not keep the target's distribution."
    alone = run_by_hand(autoregressive=None, figures=figures.figures(None, record.speculative))
    assert text_of(alone, "speed") == "0.964 tokens a second."
    assert "α = 0.65. A draft takes 100.0 ms." in text_of(alone, "alpha")


def check_advice():
    predicted = {"model": {"2": 1.2, "8": 1.5, "auto": 1.4}, "prompt_lookup+model": {"2": 1.2, "8": 1.3, "auto": 1.45}}
    f = replace(run_by_hand().figures, predicted=predicted, window_beta={"2": 1.4, "8": 2.0})
    record = run_by_hand(figures=f)
    assert advice.advice(record) == "Prediction: --fast would be 1.45 times as fast on this text."
    other = run_by_hand(figures=f, fast="int8/model")
    assert advice.advice(other) == "Prediction: --K auto would be 1.45 times as fast on this text."
    grid = tables.grid(f)
    assert grid.rows == [["2", 1.4, 1.2, 1.2], ["8", 2.0, 1.5, 1.3], ["auto", None, 1.4, 1.45]]
    assert (grid.best, grid.run) == (("model", "8", 1.5), (2, f.speedup))


def check_tables():
    rows = {row.name: row for row in tables.figure_rows(run_by_hand())}
    assert rows["α"].formula == "mean of Σ min(p, q), of the tested drafts"
    assert rows["c"] == ("c", "0.100", "t_draft / t_target = 100.0 ms / 1.00 s")
    assert rows["β"].formula.endswith("2 rows: 1.20  3 rows: 1.40")
    values = {name: row.value for name, row in rows.items()}
    assert (values["measured"], values["the blog's formula"], values["the formula with β"]) == (
        "1.31x",
        "1.70x",
        "1.31x",
    )
    by_position, by_drafter, calls = tables.charts(run_by_hand().figures)
    assert by_position.rows == [("1", "3 of 4", "75 %"), ("2", "1 of 2", "50 %")]
    assert by_drafter.rows == [("draft model", "2 of 4", "50 %"), ("prompt lookup", "2 of 2", "100 %")]
    assert calls.rows == [("1", "1 of 4", "25 %"), ("2", "2 of 4", "50 %"), ("3", "1 of 4", "25 %")]


def check_race():
    data = page.page_data(run_by_hand())
    lane = data["lanes"]["speculative"]
    assert data["seconds"] == 10
    assert [token["time"] for token in lane["tokens"]] == pytest.approx([3.8, 3.8, 5.4, 5.4, 5.4, 7, 8.3, 8.3])
    assert [token["stack"] for token in lane["tokens"]] == [0, 1, 0, 1, 2, 0, 0, 1]
    begins = [call["begin"] for call in lane["calls"] if call["kind"] == "target"]
    assert begins == pytest.approx([0.5, 4.0, 5.6, 7.1])
    assert [call["line"] for call in lane["calls"]] == [0, 1] * 4
    assert data["opening"] == 1
    assert [row[:2] for row in data["legend"]] == [
        ["accepted", "model"],
        ["accepted", "prompt_lookup"],
        ["resampled", None],
        ["bonus", None],
    ]
    assert data["marks"] == {"prompt_lookup": "l"}


def check_json():
    record = run_by_hand()
    written = document.to_json(record)
    flat = written["figures"]
    assert (flat["r"], flat["speedup"], flat["c"]) == (8 / 11, pytest.approx(10 / 8.3), pytest.approx(0.1))
    assert (flat["withheld"], flat["predicted"]) == (None, None)
    assert document.from_json(json.loads(json.dumps(written))) == record
    alone = run_by_hand(autoregressive=None, figures=figures.figures(None, record.speculative))
    assert document.to_json(alone)["figures"]["beta"] is None
    assert document.from_json(json.loads(json.dumps(document.to_json(alone)))) == alone


def check_words():
    shown = [words.duration(seconds) for seconds in (12.3, 1.0, 0.9994, 0.0123, 0.00123)]
    assert shown == ["12.30 s", "1.00 s", "999.4 ms", "12.3 ms", "1.23 ms"]
    assert [words.blog_time(seconds) for seconds in (60.64, 1.0, 0.0183)] == ["60.64s", "1.00s", "18.3 ms"]
    assert [words.rate_text(rate) for rate in (1234.5, 92.64, 0.5)] == ["1,234", "92.6", "0.5"]
    assert [words.digits(p) for p in (0, 1, 0.5, 0.00012)] == ["0", "1", "0.500", "0.000120"]


# ---- The mistakes ----------------------------------------------------------------------------------------------------

MISTAKES = [  # the check that sees it, the function, a part of its source, another in its place
    (check_counts, "report.figures:sums", "n_tokens / (drafted + n)", "n_tokens / (drafted + 1)"),
    (check_counts, "report.figures:sums", "accepted / drafted if", "accepted / n_tokens if"),
    (check_counts, "report.figures:by_source", "step.source[: len(step.alpha)]", "step.source"),
    (check_counts, "report.figures:by_source", "[accepted[name], n]", "[n, accepted[name]]"),
    (check_times, "report.figures:times_of", "drafting=drafting", "drafting=scoring"),
    (check_times, "report.figures:times_of", "speculative.waited + (", "0 * ("),
    (check_account, "report.figures:compare", " - seconds.prefill", ""),
    (check_account, "report.figures:figures", "plain.by_rows.get(1)", "costs.by_rows[2]"),
    (check_account, "report.figures:account_of", "window(m + 1)", "window(m)"),
    (check_account, "report.figures:account_of", "K, c, beta)", "K, c)"),
    (check_account, "report.figures:account_of", "leviathan_tokens(counts.alpha, m)", "leviathan_tokens(counts.r, m)"),
    (check_account, "report.figures:costs_of", "if not step.prefill", "if True"),
    (check_doubt, "report.doubt:reason_to_doubt", "(1 + noise) * most", "(1 + noise) * most * (spread or 1)"),
    (check_doubt, "report.doubt:reason_to_doubt", "if without > limit", "if without > 9 * limit"),
    (check_doubt, "report.doubt:reason_to_doubt", "f.mean_beta < 1 - NOISE", "f.mean_beta * spread < 1"),
    (check_lines, "report.ending:acceptance_line", "1 + max(", "max("),
    (check_lines, "report.ending:time_line", "seconds.drafting, seconds.scoring", "seconds.scoring, seconds.drafting"),
    (check_lines, "report.ending:law_line", "None if rule.lossless", "None if not rule.lossless"),
    (check_lines, "report.ending:pace", "f.rate / f.speedup", "f.rate * f.speedup"),
    (check_lines, "report.ending:account_line", "f.account_blog:", "f.blog_speedup:"),
    (check_advice, "report.advice:setting_to_try", "speedup > enough", "speedup > 9 * enough"),
    (check_advice, "report.advice:typed", '== (record.fast, "auto")', '== ("", "auto")'),
    (check_advice, "report.tables:grid", "of_drafter[K] for of_drafter", 'of_drafter["2"] for of_drafter'),
    (check_tables, "report.tables:account_rows", "times(f.blog_speedup)", "times(f.account_blog)"),
    (check_tables, "report.tables:charts", "accepted_by_position, ", "accepted_by_position[::-1], "),
    (check_tables, "report.tables:charts", "counts.iterations", "counts.tokens"),
    (check_race, "report.race:placed_steps", "end + step.seconds", "end + step.scoring"),
    (check_race, "report.race:stacked_tokens", "bottom = step.end", "pass"),
    (check_race, "report.race:lanes", 'if name == "autoregressive"', 'if name == "speculative"'),
    (check_race, "report.page:legend", "kind == origin", "True"),
    (check_json, "report.document:with_tokens", 'islice(tokens, step["tokens"])', 'islice(tokens, step["drafted"])'),
    (check_json, "report.document:build_dataclass", "f.name in values or", "f.name not in values or"),
    (check_json, "report.document:written", 'len(values["tokens"])', 'values["drafted"]'),
]  # fmt: skip


def per_draft(steps):
    """The seconds of a draft, in all proposals."""
    return sum(step.drafting for step in steps) / sum(step.drafted for step in steps)


REPLACED = [  # the check that sees it, the function, another in its place
    (check_counts, "report.figures:mean_of", max),
    (check_counts, "report.figures:reaching", lambda position, lengths: sum(n > position for n in lengths)),
    (check_times, "report.figures:prefill_seconds", lambda timed, by_rows, t_draft: 2.0),
    (check_times, "report.figures:seconds_of_a_draft", per_draft),
    (check_doubt, "report.doubt:disturbance", lambda times: "" if times.waited else None),
    (check_race, "report.close_up:worth", lambda step: step.drafted - step.accepted),
    (check_words, "report.words:duration", lambda s: f"{s:.2f} s" if s >= 1 else f"{1000 * s:.2f} ms"),
    (check_words, "report.words:blog_time", lambda seconds: f"{seconds:.2f}s"),
    (check_words, "report.words:digits", lambda p: f"{p:#.3g}"),
]  # fmt: skip
CHECKS = [*dict.fromkeys(check for check, *_ in MISTAKES + REPLACED)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__qualname__)
def test_without_a_mistake_all_checks_pass(check):
    check()


@pytest.mark.parametrize(("check", "place", "old", "new"), MISTAKES)
def test_a_planted_mistake_is_seen(check, place, old, new, monkeypatch):
    plant(monkeypatch, place, old, new)
    with pytest.raises((Exception, pytest.fail.Exception)):
        check()


@pytest.mark.parametrize(("check", "place", "mistake"), REPLACED)
def test_a_function_of_mistakes_is_seen(check, place, mistake, monkeypatch):
    replace_function(monkeypatch, place, mistake)
    with pytest.raises((Exception, pytest.fail.Exception)):
        check()

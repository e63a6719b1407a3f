"""Mistakes that are planted in the figures and in the words of a run: each is seen by a check of a run that was
computed by hand."""

import json
import os
from collections import Counter
from dataclasses import MISSING, fields, replace
from statistics import mean

import pytest
from mistakes import SEEN, Mistakes, make
from tiny import sample_of, text_of, with_values

from speculative.lookahead.costs import costs_by_rows, line_through
from speculative.report import advice, close_up, document, doubt, ending, figures, page, race, tables, words
from speculative.report.advice import best_setting, typed
from speculative.report.document import build_dataclass, with_tokens, written
from speculative.report.doubt import reason_to_doubt
from speculative.report.ending import acceptance_line, account_line, law_line, pace, time_line
from speculative.report.figures import account_of, by_source, compare, costs_of, seconds_of_a_draft, sums, times_of
from speculative.report.page import legend
from speculative.report.race import calls_of, placed_steps, stacked_tokens
from speculative.report.record import (
    DecoderRecord,
    Machine,
    Model,
    PackSaves,
    Predictions,
    Prompt,
    RuleUsed,
    RunRecord,
    Sample,
)
from speculative.report.tables import account_rows, charts, grid
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
    f = run_by_hand().figures
    assert f.comparison.speedup == pytest.approx(10 / 8.3)
    assert f.comparison.speedup_without_prefill == pytest.approx(8 / 6.1)
    account = f.account
    assert (account.t_target, account.c, account.mean_beta) == pytest.approx((1.0, 0.1, 1.35))
    assert account.beta == pytest.approx({"2": 1.2, "3": 1.4})
    assert account.blog_speedup == pytest.approx(2 / 1.175)
    assert account.account_blog == pytest.approx(2 / 1.525)
    assert account.account_leviathan == pytest.approx((3 * (1 + 0.65 + 0.65**2) + 1.65) / 4 / 1.525)


def reason(f):
    return doubt.reason_to_doubt(f, f.comparison, 3.0) or ""


def check_doubt():
    record = run_by_hand()
    f = record.figures
    assert f.doubt is None
    impossible = with_values(f, speedup=2.2)
    assert reason(impossible).startswith("a call of the target gave 2.00 tokens")
    beyond = with_values(f, speedup_without_prefill=2.2)
    assert reason(beyond).startswith("without the prompt it would be 2.20")
    cheap = with_values(f, mean_beta=0.9)
    assert reason(cheap).startswith("calls of the target with several")
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
    assert said["pack"] == f"The next run begins 3 s sooner with --pack: 0 MB in {os.path.join('models', 'packed')}."
    disturbed = replace(record.figures, waited=9.0)  # reading took longer, too
    assert text_of(run_by_hand(figures=disturbed), "pack") is None
    lossy = run_by_hand(rule=RuleUsed("lenient:0.5", "", lossless=False))
    assert text_of(lossy, "law") == "--accept lenient:0.5 does not keep the target's distribution."
    alone = run_by_hand(autoregressive=None, figures=figures.figures(None, record.speculative))
    assert text_of(alone, "speed") == "0.964 tokens a second."
    assert "α = 0.65. A draft takes 100.0 ms." in text_of(alone, "alpha")


def check_advice():
    predicted = {"model": {"2": 1.2, "8": 1.5, "auto": 1.4}, "prompt_lookup+model": {"2": 1.2, "8": 1.3, "auto": 1.45}}
    f = replace(run_by_hand().figures, predictions=Predictions(predicted, {"2": 1.4, "8": 2.0}))
    record = run_by_hand(figures=f)
    assert advice.advice(record) == "Prediction: --fast would be 1.45 times as fast on this text."
    other = run_by_hand(figures=f, fast="int8/model")
    assert advice.advice(other) == "Prediction: --K auto would be 1.45 times as fast on this text."
    grid = tables.grid(f)
    assert grid.rows == [["2", 1.4, 1.2, 1.2], ["8", 2.0, 1.5, 1.3], ["auto", None, 1.4, 1.45]]
    assert (grid.best, grid.run) == (("model", "8", 1.5), (2, f.comparison.speedup))


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

mistakes = Mistakes()


def with_figures(record, **changes):
    return replace(record, figures=with_values(record.figures, **changes))


@mistakes.plant(check_counts, figures, "sums")
def divides_by_the_drafts_and_1(calls):
    found = sums(calls)
    return found | {"r": found["tokens"] / (found["drafted"] + 1)}


@mistakes.plant(check_counts, figures, "sums")
def shares_the_tokens(calls):
    found = sums(calls)
    return found | {"accepted_share": found["accepted"] / found["tokens"]}


@mistakes.plant(check_counts, figures, "by_source")
def counts_untested_drafts(steps):
    drafted = Counter(name for step in steps for name in step.source)
    return {name: [n, drafted[name]] for name, (n, _) in by_source(steps).items()}


@mistakes.plant(check_counts, figures, "by_source")
def swaps_accepted_and_tested(steps):
    return {name: [tested, accepted] for name, (accepted, tested) in by_source(steps).items()}


@mistakes.plant(check_counts, figures, "mean_of")
def takes_the_largest(numbers):
    return max(numbers, default=None)


@mistakes.plant(check_counts, figures, "reaching")
def counts_positions_from_0(position, lengths):
    return sum(n > position for n in lengths)


@mistakes.plant(check_times, figures, "times_of")
def takes_scoring_for_drafting(autoregressive, speculative, costs):
    times = times_of(autoregressive, speculative, costs)
    return replace(times, seconds=replace(times.seconds, drafting=times.seconds.scoring))


@mistakes.plant(check_times, figures, "times_of")
def forgets_a_decoders_waiting(autoregressive, speculative, costs):
    return replace(times_of(autoregressive, speculative, costs), waited=autoregressive.waited)


@mistakes.plant(check_times, figures, "prefill_seconds")
def takes_one_time_for_any_prompt(timed, by_rows, t_draft):
    return 2.0


@mistakes.plant(check_times, figures, "seconds_of_a_draft")
def counts_the_proposals_that_read_the_prompt(steps):
    return seconds_of_a_draft([replace(step, draft_prefill=False) for step in steps])


@mistakes.plant(check_account, figures, "compare")
def compares_with_the_prompt(counts, seconds, autoregressive, prefill):
    return compare(counts, replace(seconds, prefill=0.0), autoregressive, prefill)


@mistakes.plant(check_account, figures, "account_of")
def measures_by_two_rows(counts, costs, steps, t_target, by_blocks):
    return account_of(counts, costs, steps, costs.by_rows.get(2), by_blocks)


@mistakes.plant(check_account, figures, "account_of")
def forgets_the_row_of_the_bonus_token(counts, costs, steps, t_target, by_blocks):
    account = account_of(counts, costs, steps, t_target, by_blocks)
    window = line_through(costs.by_rows)
    return replace(account, mean_beta=mean(window(step.drafted) for step in steps) / t_target)


@mistakes.plant(check_account, figures, "account_of")
def accounts_without_beta(counts, costs, steps, t_target, by_blocks):
    account = account_of(counts, costs, steps, t_target, by_blocks)
    return replace(account, account_blog=account.blog_speedup)


@mistakes.plant(check_account, figures, "account_of")
def takes_r_for_alpha(counts, costs, steps, t_target, by_blocks):
    return account_of(replace(counts, alpha=counts.r), costs, steps, t_target, by_blocks)


@mistakes.plant(check_account, figures, "costs_of")
def counts_the_prompts_window(steps):
    windows = [(step.drafted + 1, step.seconds - step.drafting) for step in steps]
    return costs_of(steps)._replace(by_rows=costs_by_rows(windows))


@mistakes.plant(check_doubt, doubt, "disturbance")
def every_wait_disturbs(times):
    return "" if times.waited else None


@mistakes.plant(check_doubt, doubt, "reason_to_doubt")
def excuses_by_the_spread(f, comparison, spread):
    excused = replace(f, tokens_per_iteration=f.tokens_per_iteration * (spread or 1))
    return reason_to_doubt(excused, comparison, spread)


@mistakes.plant(check_doubt, doubt, "reason_to_doubt")
def trusts_the_speedup_without_the_prompt(f, comparison, spread):
    return reason_to_doubt(f, replace(comparison, speedup_without_prefill=f.account.account_blog), spread)


@mistakes.plant(check_doubt, doubt, "reason_to_doubt")
def excuses_cheap_windows_by_the_spread(f, comparison, spread):
    return reason_to_doubt(with_values(f, mean_beta=f.account.mean_beta * (spread or 1)), comparison, spread)


@mistakes.plant(check_lines, ending, "acceptance_line")
def forgets_the_bonus_token(record):
    most = max(step.drafted for step in record.speculative.steps)
    return (acceptance_line(record) or "").replace(f"at most {most + 1} tokens", f"at most {most} tokens")


@mistakes.plant(check_lines, ending, "time_line")
def swaps_the_parts_of_the_time(record):
    seconds = record.figures.seconds
    return time_line(with_figures(record, seconds=replace(seconds, drafting=seconds.scoring, scoring=seconds.drafting)))


@mistakes.plant(check_lines, ending, "law_line")
def says_that_lossless_rules_lose(record):
    return law_line(replace(record, rule=replace(record.rule, lossless=not record.rule.lossless)))


@mistakes.plant(check_lines, ending, "pace")
def multiplies_by_the_speedup(record):
    return pace(with_figures(record, speedup=1 / record.comparison.speedup))


@mistakes.plant(check_lines, ending, "account_line")
def gives_the_blogs_figure_twice(record):
    return account_line(with_figures(record, account_blog=record.figures.account.blog_speedup))


@mistakes.plant(check_advice, advice, "setting_to_try")
def has_no_preference_for_auto(predicted, enough):
    return best_setting(predicted)


@mistakes.plant(check_advice, advice, "typed")
def does_not_know_fast(record, setting):
    return typed(replace(record, fast=""), setting)


@mistakes.plant(check_advice, tables, "grid")
def has_one_row_of_predictions(f):
    predicted = f.predictions.predicted
    again = {name: dict.fromkeys(speedups, speedups["2"]) for name, speedups in predicted.items()}
    return grid(with_values(f, predicted=again))


@mistakes.plant(check_tables, tables, "account_rows")
def gives_the_figure_with_beta_twice(comparison, account):
    return account_rows(comparison, replace(account, blog_speedup=account.account_blog))


@mistakes.plant(check_tables, tables, "charts")
def turns_positions_round(counts):
    return charts(replace(counts, accepted_by_position=counts.accepted_by_position[::-1]))


@mistakes.plant(check_tables, tables, "charts")
def counts_tokens_for_calls(counts):
    return charts(replace(counts, iterations=counts.tokens))


@mistakes.plant(check_race, race, "placed_steps")
def leaves_out_the_time_of_drafts(decoder):
    placed = []
    end = 0.0
    for step in placed_steps(decoder):
        begin, end = end, end + step.step.scoring
        placed.append(step._replace(begin=begin, end=end))
    return placed


@mistakes.plant(check_race, race, "stacked_tokens")
def stacks_no_tokens(steps, close):
    return [token | {"stack": 0} for token in stacked_tokens(steps, close)]


@mistakes.plant(check_race, race, "calls_of")
def draws_all_calls_in_one_line(placed, lines):
    return [call | {"line": 0} for call in calls_of(placed, lines)]


@mistakes.plant(check_race, page, "legend")
def names_no_drafter(steps):
    return [[origin, None, words] for origin, _, words in legend(steps)]


@mistakes.plant(check_race, close_up, "worth")
def opens_at_the_most_rejected_drafts(step):
    return step.drafted - step.accepted


@mistakes.plant(check_json, document, "with_tokens")
def reads_as_many_tokens_as_drafts(sample):
    return with_tokens(sample | {"iterations": [step | {"tokens": step["drafted"]} for step in sample["iterations"]]})


@mistakes.plant(check_json, document, "build_dataclass")
def reads_only_what_it_must(kind, values):
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    return build_dataclass(kind, values if kind is Sample else {name: values[name] for name in needed})


@mistakes.plant(check_json, document, "written")
def writes_the_number_of_drafts(fields_of_part):
    values = dict(fields_of_part)
    return written(fields_of_part) | ({"tokens": values["drafted"]} if "pieces" in values else {})


@mistakes.plant(check_words, words, "duration")
def has_two_digits(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.2f} ms"


@mistakes.plant(check_words, words, "blog_time")
def has_no_milliseconds(seconds):
    return f"{seconds:.2f}s"


@mistakes.plant(check_words, words, "digits")
def writes_0_as_a_fraction(p):
    return f"{p:#.3g}"


@pytest.mark.parametrize("check", mistakes.checks, ids=lambda check: check.__qualname__)
def test_without_a_mistake_all_checks_pass(check):
    check()


@pytest.mark.parametrize("mistake", mistakes, ids=str)
def test_a_planted_mistake_is_seen(mistake, monkeypatch):
    make(monkeypatch, mistake)
    with pytest.raises(SEEN):
        mistake.seen_by()

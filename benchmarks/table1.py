"""The paper's Table 1 for GPT-2: both decoders, greedy and nucleus sampling, prose and code; time and quality.

    python -m benchmarks.table1
    python -m benchmarks.table1 --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M --n_tokens 48

ArS is autoregressive sampling, SpS speculative. The quality figure is the mean log-likelihood of a new token under the
target itself (temperature 1, no filter), with its standard error over the texts. Nothing is lost if both decoders agree
within that. With greedy decoding the texts are the same, and so are the figures.

Source: Chen et al. 2023, table 1. Its quality figures are ROUGE-2 for XSum and, for HumanEval, one with "100 Shot".
"""

import numpy as np

from benchmarks.common import Pair, Setting, grid_options, measure, write_results
from benchmarks.tables import mean_and_error, summarise, table, tokens
from plumbing.exits import guarded

COLUMNS = """domain T=temperature:g top-p=top_p:g decoder ms/token=ms_per_token:.2f sd:.2f speedup:.2f r:.2f
    log-likelihood_a_token=log_likelihood:.3f ±=standard_error:.3f texts"""


def log_likelihood(pair, x, new):
    """The mean log-likelihood of new tokens after x under the target's own distribution."""
    pair.sample_with(temperature=1.0)
    q = pair.target([*x, *new[:-1]], len(new))  # [len(new), n_vocab]
    return float(np.mean(np.log(q[np.arange(len(new)), new])))


def main(argv=None):
    o = grid_options(__doc__, argv, K=[4], settings=[(0.0, None), (1.0, 0.9)])
    pair = Pair(o)
    measured = measure(o, pair)
    rows = summarise(measured)
    for row in rows:
        kind = tuple(row[name] for name in Setting._fields[3:])
        # As a set: a repeat of a greedy text is no further evidence.
        distinct = {(s.prompt, *tokens(run)) for s, run in measured.items() if s[3:] == kind}
        each = [log_likelihood(pair, pair.ids[prompt], new) for prompt, *new in distinct]
        row |= {"decoder": "SpS" if row["K"] else "ArS", "texts": len(each)}
        row["log_likelihood"], row["standard_error"] = mean_and_error(each)
    rows.sort(key=lambda row: (row["domain"], row["temperature"], row["decoder"]))
    write_results(o.out and f"{o.out}/table1.json", o, rows=rows)
    print(table(rows, COLUMNS))
    greedy = [row for row in rows if row["K"] and row["temperature"] == 0]
    runs, unlike = (sum(row[name] for row in greedy) for name in ("runs", "unlike"))
    print(f"Greedy texts that are the same, token for token: {runs - unlike} of {runs}")


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")

"""Two rules of acceptance side by side: token by token, and block verification.

    python -m benchmarks.rules
    python -m benchmarks.rules --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M
                               --drafters model self/model --n_prompts 2 --n_tokens 40

Tokens an iteration are means over all texts, and follow from the seeds alone. Speedups are medians over the prompts.
"""

from benchmarks import grid
from benchmarks.common import write_results
from benchmarks.tables import summarise, table
from speculative.support.errors import guarded

COLUMNS = """drafter T=temperature:g top-p=top_p:g domain K token=token_tokens:.2f block=block_tokens:.2f gain:+.1%
    token×=token_speedup:.2f block×=block_speedup:.2f"""
SETTINGS = [(0.5, None), (0.7, None), (1.0, None), (1.0, 0.9)]


def main(argv=None):
    o = grid.options(__doc__, argv, K=[2, 4, 8, 16], settings=SETTINGS, accept=["token", "block"], repeats=1)
    rows = [*side_by_side(summarise(grid.measure(o)))]
    print(table(rows, COLUMNS))
    write_results(o.out and f"{o.out}/rules.json", o, rows=rows)


def side_by_side(rows):
    """A row for each setting, with the figures of both rules."""
    kinds = {}
    for row in rows:
        kind = tuple(row[name] for name in ("drafter", "temperature", "top_p", "domain", "K"))
        kinds.setdefault(kind, {})[row["accept"]] = row
    for of_rule in kinds.values():
        if len(of_rule) < 2:  # autoregressive decoding, which tests nothing
            continue
        both = dict(of_rule["token"])
        for rule, row in of_rule.items():
            both[f"{rule}_tokens"] = row["tokens_per_iteration"]
            both[f"{rule}_speedup"] = row["speedup"]
        yield both | {"gain": both["block_tokens"] / both["token_tokens"] - 1}


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")

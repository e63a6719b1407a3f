"""Trees against chains: tokens per iteration, rows and speedup of each, and of those that choose their shape.

    python -m benchmarks.trees
    python -m benchmarks.trees --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M
                               --drafters model prompt_lookup --n_prompts 2 --repeats 1 --out trees

A tree is named by its children at each depth; "tree" chooses its shape, as "auto" chooses K. The trees 2,1 and 2,2 call
the draft as often as the chain K = 2, and 2,2,1,1 as often as K = 4. "Of best" is the speedup over that of the best
line of its table, chain or tree. Speedups are medians over prompts. Heads need a target that has some (python -m
training heads), and their trees are no deeper than there are heads.
"""

from collections import defaultdict

from benchmarks.common import grid_options, measure, write_results
from benchmarks.tables import setting_of, summarise, table, unlike_texts
from plumbing.exits import guarded

TREES = ["2,1", "2,2", "3,1,1", "2,2,1,1", "2,1,1,1,1,1", "4,2,1,1", "tree"]
COLUMNS = """drafter shape=K runs tokens/iteration=tokens_per_iteration:.2f rows:.1f ms/token=ms_per_token:.2f
    speedup:.2f of_best:.2f"""


def main(argv=None):
    defaults = {
        "K": [1, 2, 4, 6, 8, 10, "auto", *TREES],
        "drafters": ["model", "prompt_lookup", "heads"],
        "n_tokens": 96,
    }
    o = grid_options(__doc__, argv, settings=[(0.0, None), (1.0, None)], **defaults)
    rows = summarise(measure(o))
    write_results(o.out and f"{o.out}/trees.json", o, rows=rows)
    tables = defaultdict(list)
    for row in rows:
        row["rows"] = row["tokens_per_iteration"] / row["r"]
        tables[row["domain"], row["temperature"], row["top_p"]].append(row)
    for (domain, temperature, top_p), (alone, *lines) in tables.items():
        best = max(row["speedup"] for row in lines)
        setting = setting_of(domain, temperature, top_p)
        print(f"\n{setting}: autoregressive decoding takes {alone['ms_per_token']:.2f} ms a token")
        print(table([row | {"of_best": row["speedup"] / best} for row in lines], COLUMNS))
    print(unlike_texts(rows))


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")

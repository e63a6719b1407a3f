"""Trees against chains: tokens per iteration, rows and speedup of each, and of those that choose their shape.

    python -m benchmarks.trees
    python -m benchmarks.trees --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M
                               --drafters model prompt_lookup --n_prompts 2 --repeats 1 --out trees

A tree is named by its children at each depth; "tree" chooses its shape, as "auto" chooses K. The trees 2,1 and 2,2 call
the draft as often as the chain K = 2, and 2,2,1,1 as often as K = 4. "Of best" is the speedup over that of the best
line of its table, chain or tree. Speedups are medians over prompts. Heads need a target that has some (python -m
training heads), and their trees are no deeper than there are heads.
"""

from benchmarks import grid
from benchmarks.common import write_results
from benchmarks.tables import autoregressive_of, by_setting, summarise, table, unlike_texts
from speculative.support.errors import guarded

DEFAULTS = {
    "drafters": ["model", "prompt_lookup", "heads"],
    "K": [1, 2, 4, 6, 8, 10, "auto", "2,1", "2,2", "3,1,1", "2,2,1,1", "2,1,1,1,1,1", "4,2,1,1", "tree"],
    "settings": [(0.0, None), (1.0, None)],
    "n_tokens": 96,
}
COLUMNS = """drafter shape=K runs tokens/iteration=tokens_per_iteration:.2f rows:.1f ms/token=ms_per_token:.2f
    speedup:.2f of_best:.2f"""


def main(argv=None):
    o = grid.options(__doc__, argv, **DEFAULTS)
    rows = summarise(grid.measure(o))
    write_results(o.out and f"{o.out}/trees.json", o, rows=rows)
    for alone, *lines in by_setting(rows):
        best = max(row["speedup"] for row in lines)
        for row in lines:
            row |= {"rows": row["tokens_per_iteration"] / row["r"], "of_best": row["speedup"] / best}
        print(autoregressive_of(alone))
        print(table(lines, COLUMNS))
    print(unlike_texts(rows))


if __name__ == "__main__":
    guarded(main, "interrupted; with --out, run again to go on from there")

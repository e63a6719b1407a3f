"""Measures both decoders over prompts, K and temperatures; shows a table, writes JSON and pictures.

python -m benchmarks.sweep
python -m benchmarks.sweep --models_dir MODELS_DIR --draft_model_size 124M --target_model_size 1558M
                           --K 1 2 4 8 auto --settings 0 1:0.9 --drafters model ngram --out full_size
"""

from benchmarks import grid
from benchmarks.common import write_results, writing
from benchmarks.pictures import pictures
from benchmarks.tables import summarise, table
from speculative.measure.machine import machine
from speculative.support import extras
from speculative.support.errors import guarded

COLUMNS = """drafter T=temperature:g top-p=top_p:g domain K ms/token=ms_per_token:.2f sd:.2f speedup:.2f
    usual=usual_speedup:.2f r:.2f α=alpha:.2f c:.2f β=mean_beta:.2f blog=predicted_blog:.2f
    Leviathan=predicted_leviathan:.2f"""


def main(argv=None):
    o = grid.options(__doc__, argv, K=[1, 2, 3, 4, 6, 8], settings=[(0.0, None), (1.0, None)], out="sweep")
    extras.check("a picture", ["matplotlib"])
    rows = summarise(grid.measure(o))
    where = machine()
    write_results(f"{o.out}/sweep.json", o, rows=rows)
    print(table(rows, COLUMNS))
    caption = f"draft {o.draft_model_size} {o.draft_dtype}, target {o.target_model_size} {o.dtype}; "
    caption += f"{rows[0]['runs']} runs of {o.n_tokens} tokens each; {where['processor']}, {where['cpus']} CPUs"
    with writing(o.out):
        print("\n".join(pictures(rows, o.out, caption)))


if __name__ == "__main__":
    guarded(main, "interrupted; run again to go on from here")

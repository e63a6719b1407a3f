"""What others need for the same work on this machine: transformers and llama.cpp, on the same checkpoints.

    pip install -r benchmarks/requirements.txt
    python benchmarks/peers.py --models_dir models [--draft 124M] [--target 1558M] [--json FILE]

For each peer: milliseconds for a pass of 1, 2, 3, 5, 9 and 17 rows after a context of 64 tokens, for the draft and the
target; from these its plain decoding (a row of the target) and its iteration at K = 4 (4 rows of the draft one by one,
and 5 of the target at once). Peers run one after another, each in a process of its own; one that is not installed is
skipped with a line. llama.cpp reads GGUF files, which are written from the checkpoint beside it, once.
"""

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from speculative.cli import flags
from speculative.cli.exits import guarded
from speculative.measure.files import check_writable, write_json
from utils import load_encoder_hparams_and_params

ROWS = (1, 2, 3, 5, 9, 17)
CONTEXT = 64  # tokens in the cache when a pass is timed
PROMPT = np.random.default_rng(0).integers(0, 5000, CONTEXT).tolist()


def time_rows(feed, repeats):
    """feed(n) passes n tokens after the context. -> {rows: median milliseconds}, the row counts interleaved."""
    seconds = {n: [] for n in ROWS}
    for repeat in range(repeats + 1):
        for n in ROWS:
            start = time.perf_counter()
            feed(n)
            if repeat:  # the first round warms up
                seconds[n].append(time.perf_counter() - start)
    return {n: 1000 * statistics.median(s) for n, s in seconds.items()}


# ---- transformers ----------------------------------------------------------------------------------------------------


def load_transformers(folder, dtype, threads):
    """models_dir/size -> GPT2LMHeadModel with the same weights."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    _, hparams, params = load_encoder_hparams_and_params(folder.name, folder.parent)
    sizes = {key: hparams[key] for key in ("n_embd", "n_head", "n_layer")}
    config = transformers.GPT2Config(vocab_size=hparams["n_vocab"], n_positions=hparams["n_ctx"], **sizes)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    theirs = {"g": "weight", "w": "weight", "b": "bias"}

    def tensors(prefix, node):
        if isinstance(node, dict):
            for key in list(node):
                yield from tensors([*prefix, theirs.get(key, key)], node.pop(key))
        else:
            yield ".".join(prefix), torch.from_numpy(node).to(getattr(torch, dtype))

    state = dict(tensors(["transformer", "ln_f"], params["ln_f"]))
    for name in ("wte", "wpe"):
        state[f"transformer.{name}.weight"] = torch.from_numpy(params.pop(name)).to(getattr(torch, dtype))
    for i, block in enumerate(params["blocks"]):
        state |= dict(tensors(["transformer", "h", str(i)], block))
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def measure_transformers(folder, dtype, threads, repeats):
    import torch
    from transformers import DynamicCache

    model = load_transformers(folder, dtype, threads)
    cache = DynamicCache()
    with torch.inference_mode():
        model(torch.tensor([PROMPT]), past_key_values=cache)

        def feed(n):
            model(torch.tensor([PROMPT[:n]]), past_key_values=cache)
            cache.crop(-n)

        return time_rows(feed, repeats)


def generate_transformers(target_folder, draft_folder, dtype, threads, n_tokens, K):
    """Seconds per token of generate(), plain and with an assistant model, on the blog's prompt; and its tokens."""
    import torch

    model, draft = (load_transformers(folder, dtype, threads) for folder in (target_folder, draft_folder))
    draft.generation_config.num_assistant_tokens = K
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    ids = torch.tensor([[36235, 39141, 18765, 1143, 326, 9061, 561, 530, 1110, 1716]])
    common = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 50256}
    common |= {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens}
    results = {}
    with torch.inference_mode():
        model.generate(ids, **common | {"max_new_tokens": 4, "min_new_tokens": 4})
        for name, extra in [("plain", {}), ("assistant_model", {"assistant_model": draft})]:
            start = time.perf_counter()
            out = model.generate(ids, **common, **extra)
            results[name] = {"ms_per_token": 1000 * (time.perf_counter() - start) / n_tokens, "ids": out[0].tolist()}
    return results


# ---- llama.cpp -------------------------------------------------------------------------------------------------------


def write_gguf(folder, dtype, path):
    """The checkpoint in llama.cpp's format. Matrices are [n_out, n_in] there; wte serves as the output matrix too."""
    import gguf

    encoder, hparams, params = load_encoder_hparams_and_params(folder.name, folder.parent)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(hparams["n_layer"])
    writer.add_context_length(hparams["n_ctx"])
    writer.add_embedding_length(hparams["n_embd"])
    writer.add_feed_forward_length(4 * hparams["n_embd"])
    writer.add_head_count(hparams["n_head"])
    writer.add_layer_norm_eps(1e-5)
    with open(folder / "encoder.json", encoding="utf-8") as f:
        tokens = sorted(vocab := json.load(f), key=vocab.get)
    merges = (folder / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([merge for merge in merges if merge])
    writer.add_bos_token_id(encoder.eot)
    writer.add_eos_token_id(encoder.eot)
    quantised = getattr(gguf.GGMLQuantizationType, dtype)
    writer.add_file_type(getattr(gguf.LlamaFileType, "ALL_F32" if dtype == "F32" else f"MOSTLY_{dtype}"))

    def add(name, array, matrix=False):
        array = np.ascontiguousarray(array.T if matrix else array)
        if dtype != "F32" and (matrix or name == "token_embd.weight"):
            writer.add_tensor(name, gguf.quants.quantize(array, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(name, array)

    add("token_embd.weight", params["wte"])
    add("position_embd.weight", params["wpe"])
    add("output_norm.weight", params["ln_f"]["g"])
    add("output_norm.bias", params["ln_f"]["b"])
    for i, block in enumerate(params["blocks"]):
        for theirs, ours in [("attn_norm", block["ln_1"]), ("ffn_norm", block["ln_2"])]:
            add(f"blk.{i}.{theirs}.weight", ours["g"])
            add(f"blk.{i}.{theirs}.bias", ours["b"])
        for theirs, ours in [
            ("attn_qkv", block["attn"]["c_attn"]),
            ("attn_output", block["attn"]["c_proj"]),
            ("ffn_up", block["mlp"]["c_fc"]),
            ("ffn_down", block["mlp"]["c_proj"]),
        ]:
            add(f"blk.{i}.{theirs}.weight", ours["w"], matrix=True)
            add(f"blk.{i}.{theirs}.bias", ours["b"])
            del ours["w"]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf_once(folder, dtype):
    path = folder / f"{folder.name}-{dtype}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        write_gguf(folder, dtype, str(part))
        os.replace(part, path)
    return path


def measure_llama_cpp(folder, dtype, threads, repeats):
    from llama_cpp import Llama

    path = str(folder / f"{folder.name}-{dtype}.gguf")
    model = Llama(path, n_ctx=512, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False)
    model.eval(PROMPT)

    def feed(n):
        model.n_tokens = CONTEXT  # forgets what came after the context
        model.eval(PROMPT[:n])

    return time_rows(feed, repeats)


# ---- All of them -----------------------------------------------------------------------------------------------------


def apart(function, *args):
    """Calls a function in a process of its own, so that its memory is free again after it."""
    gc.collect()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def measure(draft, target, threads, repeats, K=4, n_tokens=40):
    """-> {peer: {"draft": {rows: ms}, "target": {rows: ms}, "plain": ms, "iteration": ms}, ...}"""
    from importlib.util import find_spec

    jobs = {}
    if find_spec("torch") and find_spec("transformers"):
        for dtype in ("float32", "bfloat16"):
            jobs[f"transformers {dtype}"] = partial(measure_transformers, dtype=dtype)
    else:
        print("transformers: not installed, skipped (pip install -r benchmarks/requirements.txt)", file=sys.stderr)
    if find_spec("llama_cpp") and find_spec("gguf"):
        for dtype in ("F32", "Q8_0", "Q4_0"):
            jobs[f"llama.cpp {dtype}"] = partial(measure_llama_cpp, dtype=dtype)
            for folder in (draft, target):
                apart(write_gguf_once, folder, dtype)
    else:
        print("llama.cpp: not installed, skipped (pip install -r benchmarks/requirements.txt)", file=sys.stderr)

    results = {}
    for peer, job in jobs.items():
        rows = {
            role: apart(partial(job, threads=threads, repeats=repeats), folder)
            for role, folder in (("draft", draft), ("target", target))
        }
        results[peer] = rows | {"plain": rows["target"][1], "iteration": K * rows["draft"][1] + rows["target"][K + 1]}
        if peer.startswith("transformers"):
            results[peer]["generate"] = apart(
                generate_transformers, target, draft, peer.split()[1], threads, n_tokens, K
            )
        print_row(peer, results[peer])
    return results


def print_row(name, result):
    rows = " ".join(f"{result['target'][n]:8.1f}" for n in ROWS)
    print(f"{name:24} {rows} | draft {result['draft'][1]:6.1f} | iteration {result['iteration']:8.1f}", flush=True)
    for mode, generated in result.get("generate", {}).items():
        print(f"{'':24} generate(), {mode}: {generated['ms_per_token']:.1f} ms per token", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models_dir", type=Path, default=Path("models"))
    parser.add_argument("--draft", default="124M")
    parser.add_argument("--target", default="1558M")
    parser.add_argument("--threads", type=flags.argument(flags.integer(1)), default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=flags.argument(flags.integer(1)), default=7)
    parser.add_argument("--json", help="where to write the results")
    args = parser.parse_args()
    if args.json:
        check_writable(args.json)
    print(f"{'milliseconds for rows':24} " + " ".join(f"{n:8}" for n in ROWS))
    figures = measure(args.models_dir / args.draft, args.models_dir / args.target, args.threads, args.repeats)
    if args.json:
        write_json(args.json, figures)


if __name__ == "__main__":
    guarded(main)

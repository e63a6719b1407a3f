"""Refusals: a line that was typed, or a call in Python, and the one line that says what would be right."""

import os
import pickle
import re
from copy import deepcopy
from pathlib import Path

import pytest
from test_screens import type_in
from tiny import refusal

from speculative import load_pair
from speculative.drafters.heads import FILE

WHOLE = "must be a whole number of at least 1"
REFUSED = [
    # (the words of a command line, or after > a line of a session; what is said)
    # ---- values
    ("--K 4.5", "--K must be a whole number of at least 1 and at most 1024, or auto; for a staged drafter one for"),
    ("--K 4/2", "--K 4/2 is for 2 levels, and --drafter model has 1"),
    ("--n_samples 1e3", f"--n_samples {WHOLE}, not '1e3'"),
    ("--top_k 0", f"--top_k {WHOLE}, or left out, which turns it off, not '0'"),
    ("--threads 1000000000", "1000000000 threads: 1 to "),
    ("--seed -1", "--seed must be a whole number of at least 0, not '-1'"),
    ("--seed 1_000", "--seed must be a whole number of at least 0, not '1_000'"),
    (f"--seed {'9' * 10**5}", f"--seed must be a whole number of at least 0 and at most {2**63 - 1}, not '999"),
    ("--temperature nan", "--temperature must be a number of at least 0, not 'nan'"),
    ("--temperature 1e999", "--temperature must be a number of at least 0, not '1e999'"),
    ("--top_p 2", "--top_p must be a number above 0 and at most 1, or left out, which turns it off, not '2'"),
    ("--tree 2,0", "--tree must be children by depth, as 2,2,1, of at most 64 nodes in all, not '2,0'"),
    ("--tree 8,8", "--tree must be children by depth, as 2,2,1, of at most 64 nodes in all, not '8,8'"),
    ("--dtype float23", "--dtype must be one of float32, bfloat16, int8, int4, not 'float23'; did you mean float32?"),
    ("--json=", "--json must be the name of a file or folder, not ''"),
    ("--serve 80", "--serve must be a port from 1024 to 65535, or 0 for one that is free, not '80'"),
    ("--demo=yes", "--demo must be given without a value, not 'yes'"),
    ("--accept blok", "--accept must be one of: token; block; lenient:B, B from 1e-06 to 1; typical:B, B from"),
    ("--accept lenient:2", "--accept must be one of: token; block"),
    # ---- words
    ("--promt a", "unknown option --promt; did you mean prompt?"),
    ("--k 4", "unknown option --k; did you mean K?"),
    ("--zz 4", "unknown option --zz; see --help"),
    (f"--{'z' * 10**5} 4", "unknown option --zzz"),
    ("--unpack", "unknown option --unpack; did you mean pack?"),
    ("--stop --quiet", "--stop needs a value; one that begins with - is written --stop=VALUE"),
    ("-p -n 4", "--prompt needs a value"),
    ("-K 4 --quiet --K=4", "--K is given twice, and takes one value: give it once"),
    ("> /K 4 /seed 1 /K 4", "--K is given twice, and takes one value: give it once"),
    ("hello", "unexpected 'hello': a value follows its --option; quote a text with spaces"),
    ("-- --trace", "unexpected '--'"),
    ("--demo --target_model_size 124M", "--demo is the bundled pair: leave it out to decode with --target_model_size"),
    # ---- drafters
    ("--drafter modle", "drafter 'modle' is unknown; did you mean model?"),
    ("--drafter model+", "drafter '' is unknown; there are model, "),
    (f"--drafter {'a' * 10**5}", "there are model, "),
    ("--drafter prompt_lookup/model", "prompt_lookup has no model to draft for; model, "),
    ("--drafter model+ngram/heads", "+ can only join drafters of the last level"),
    ("--drafter model/ngram+model", "names model twice: once is enough"),
    ("--drafter model/ngram --tree 2", "--tree does not go with a staged drafter: model/ drafts a chain"),
    ("--drafter bfloat16 --dtype int8", "--drafter bfloat16 takes no fewer bytes than the target, whose"),
    ("--drafter heads", f"{FILE} does not exist: python -m training heads --target_model_size target makes it"),
    # ---- texts
    ("--prompt_file missing", "cannot read the prompt from missing: No such file"),
    ("--prompt_file blank.txt", "the prompt from blank.txt is empty: it should be some text"),
    ("--prompt_file latin1.txt", "byte 3 is not UTF-8"),
    ("--prompt_file dir", "Is a directory"),
    ("--prompt_file no\x1b\x9b\u202e\udcff\nfile", "No such file"),
    ("--drafter ngram --ngram_text missing", "cannot read the text for n-grams from missing"),
    ("--prompt_file long.txt", "the prompt's 1,050,000 bytes exceed the context of 128 tokens: shorten the prompt"),
    (f"--n_tokens_to_generate {10**17}", "exceed the context"),
    ("--tree 2,2 --n_tokens_to_generate 2", "a tree of depth 2 needs --n_tokens_to_generate of at least 3"),
    ("--verify --K 99", "--verify decodes 200 tokens here, too many for a context of 128"),
    # ---- models
    ("--target_model_size 125M", "unknown model size '125M': official models are 124M, 355M, 774M, 1558M"),
    ("--target_model_size a/b/c", "--target_model_size must be 124M, a folder of models_dir, a path that begins with"),
    ("--target_model_size ../124M", "../124M does not exist: give the folder of a model"),
    ("--draft_model_size a\nb", "--draft_model_size must be 124M, a folder"),
    ("--models_dir \udcff --target_model_size x", "lacks hparams.json"),
    # ---- files that are written
    ("--json - --html -", "--json and --html cannot both be standard output: give one of them a file"),
    ("--json dir", "cannot write to dir: it is there, and not a file"),
    ("--prompt_file prompt.txt --json dir/../prompt.txt", "this run uses dir/../prompt.txt: choose another file"),
    ("--drafter ngram --ngram_text prompt.txt --html prompt.txt", "this run uses prompt.txt: choose another file"),
    ("--json PAIR/draft/hparams.json", "hparams.json: choose another file"),
    ("--json PAIR/target/hparams.json", "hparams.json: choose another file"),
    # ---- a session, which ends if nobody types it
    ("> /K 0", "--K must be a whole number of at least 1"),
    ("> /dtype int8", "--dtype cannot change while models are loaded: start again with it"),
    ("> --temperature 1 Hello", "this line would be a prompt: change options in another line, such as /temperature 1"),
    ("> /tree 2,2 /K 4", "--tree and --K cannot be combined: give one of them"),
    (f"> {'x' * 300}", "tokens and 40 more exceed the context of"),
    ("> caf\udce9", r"the prompt must be a text in UTF-8, not 'caf\udce9'"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with files of each bad kind."""
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("the thing in", encoding="utf-8")
    Path("blank.txt").write_text(" \n\t\n")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    Path("long.txt").write_text("a word " * 150_000)
    Path("dir").mkdir()
    return tmp_path


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=lambda text: ascii(text)[:60])
def test_a_line_is_refused_in_a_line(line, said, command, pair_words, tiny_pair, folder, monkeypatch):
    before = sorted(os.listdir(folder))
    type_in(monkeypatch, "/K 5", line[2:])
    words = ["--interactive"] if line.startswith("> ") else line.replace("PAIR", str(tiny_pair)).split(" ")
    typed = {re.match(r"--(\w+)|", word)[1] for word in words}
    more = [word for word in pair_words if word[2:].partition("=")[0] not in typed] if "demo" not in typed else []
    status, out, err = command(*words, *more)
    assert (status, out) == (2, "K = 5\n" if line.startswith("> ") else "")
    assert re.fullmatch("error: (.*)\n", err)
    assert said in err
    assert err[:-1].isprintable()
    assert len(err) < 600
    assert sorted(os.listdir(folder)) == before


def load_on_jax(**options):
    pytest.importorskip("jax")
    return load_pair(demo=True, engine="jax", **options)


CALLS = [
    (lambda pair: load_pair(k=4), "unknown option k; did you mean K?"),
    (lambda pair: load_pair(html="a.html"), "unknown option html"),
    (lambda pair: load_pair(K=True), "K must be a whole number"),
    (lambda pair: load_pair(K=(8, 0), drafter="model/ngram"), "K must be a whole number of at least 1"),
    (lambda pair: load_pair(K=()), "K must be a whole number of at least 1"),
    (lambda pair: load_pair(tree=[2, 2], K=5), "tree and K cannot be combined: give one of them"),
    (lambda pair: load_pair(stop=["a", 1]), "stop must be a text in UTF-8, not ['a', 1]"),
    (lambda pair: load_pair(target_model_size="./a\nb"), r"./a\nb does not exist"),
    (
        lambda pair: load_pair(prompt="a"),
        "load_pair takes no prompt: give it to session.compare or session.",
    ),
    # ---- a session: with the call, and not with the first step
    (lambda pair: pair.changed(dtype="int8"), "dtype cannot change while models are loaded: start again with it"),
    (lambda pair: pair.compare(5, 4), "the prompt must be a text in UTF-8, not 5"),
    (lambda pair: pair.compare("a", 0), "n_tokens_to_generate must be a whole number of at least 1, not 0"),
    (lambda pair: pair.speculative("a", "many"), "n_tokens_to_generate must be a whole number"),
    (lambda pair: pair.speculative("a", 4, sample=-1), "sample must be a whole number of at least 0, not -1"),
    (deepcopy, "loaded models are neither copied nor pickled, "),
    (pickle.dumps, "loaded models are neither copied nor pickled, "),
    (lambda pair: pair.compare("a", 1).page("/"), "cannot write to /: it is there, and not a file"),
    # ---- another engine
    (lambda pair: load_on_jax(batch=2, K="auto"), "batch decodes prompts together in JAX's loop"),
    (
        lambda pair: load_on_jax(batch=4, data_parallel=3),
        "data_parallel 3 gives each copy of the models the same",
    ),
    (lambda pair: load_on_jax(batch=512, data_parallel=512), "mesh 1 data_parallel 512 needs 512 devices"),
    (lambda pair: load_on_jax(accept="typical:0.1", temperature=1), "accept typical:0.1 is for engine c"),
    (lambda pair: load_on_jax(dtype="int4"), "weights in int4 are for engine c or numpy"),
]


@pytest.mark.parametrize(("call", "said"), CALLS)
def test_python_is_refused_in_its_own_words(call, said, pair):
    line = refusal(call, pair)
    assert said in line
    assert "--" not in line

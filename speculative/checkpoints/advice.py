"""Advice about a folder that lacks files: a table of the kinds of folders that people have.

A kind is recognised by the name of a file, as another program writes it. The advice makes a folder of it that can be
read here, or names the program that wrote it.
"""

import os
import re
from collections.abc import Collection
from glob import escape, iglob

SAVED = "save_pretrained({1!r})"
BY_TRANSFORMERS = "with transformers, once: AutoModelForCausalLM, and then AutoTokenizer, .from_pretrained({0!r}"
OTHER_TOKENS = "the tokens are {}, and only GPT-2's byte-level BPE can be read"
OTHER_PROGRAM = "of {}, and cannot be read here: save the model as transformers does, as model.safetensors"


# What the folder lacks; the name of a file that it has; the advice, in which {0} is the folder, or the model of the hub,
# and {1} the folder. The first that fits is given.
# fmt: off
KINDS = {
    "tokens": (
        (r"^vocab\.txt$", OTHER_TOKENS.format("WordPiece, as of BERT")),
        (r"^(spiece|tokenizer|sentencepiece\.bpe)\.model$", OTHER_TOKENS.format("SentencePiece, as of T5 and Llama")),
        (r"\.tiktoken$", OTHER_TOKENS.format("in a file of tiktoken")),
        (r"^meta\.pkl$", OTHER_TOKENS.format("characters, as nanoGPT has them")),
        (r".tokenizer\.json$", "if it holds the model's tokens, rename it to tokenizer.json"),
    ),
    "index": (
        (r"\.safetensors$", "a shard, and the folder has shards of several saves: delete those of the others"),
    ),
    "weights": (
        (r"^model-[0-9]{5}-of-[0-9]{5}\.safetensors$", "copy the other shards from the original model, or save it again"),
        (r"^adapter_model", f"with peft, once: AutoPeftModelForCausalLM.from_pretrained({{0!r}}).merge_and_unload().{SAVED}"),
        (r"^(gpt2_.*|model_[0-9]*|state_.*)\.bin$", "of llm.c, and cannot be read here: its export_hf.py saves what can"),
        (r"^ggml.*\.bin$|\.gguf$", OTHER_PROGRAM.format("llama.cpp")),
        (r"^openvino_", OTHER_PROGRAM.format("OpenVINO")),
        (r"^model\.bin$", OTHER_PROGRAM.format("CTranslate2")),
        (r"^(?!training_args|optimizer|scheduler|rng_state).*\.bin$", f"{BY_TRANSFORMERS}).{SAVED}"),
        (r"\.weights\.h5$|\.keras$", OTHER_PROGRAM.format("Keras")),
        (r"\.h5$", f"{BY_TRANSFORMERS}, from_tf=True).{SAVED}; version 4 can"),
        (r"\.msgpack$", f"{BY_TRANSFORMERS}, from_flax=True).{SAVED}; version 4 can"),
        (r"^(?!heads\.).*\.safetensors$", "if it is the whole model, rename it to model.safetensors"),
        (r"^checkpoint$", "a file that names them"),
        (r"(?<!^model\.ckpt)\.(index|meta|data-.*)$", 'name it in a file checkpoint, as model_checkpoint_path: "model-1000"'),
        (r"^(zero_to_fp32\.py|global_step[0-9]+)$", "of DeepSpeed: run its zero_to_fp32.py, which joins the weights"),
        (r"\.distcp$", OTHER_PROGRAM.format("torch.distributed")),
        (r"\.(pt|pth|ckpt)$", OTHER_PROGRAM.format("torch.save")),
        (r"\.onnx$", OTHER_PROGRAM.format("ONNX")),
        (r"\.npz$", OTHER_PROGRAM.format("MLX or NumPy")),
        (r"\.ot$", OTHER_PROGRAM.format("rust-bert")),
        (r"\.(pb|tflite)$", OTHER_PROGRAM.format("TensorFlow")),
        (r"\.pkl$", OTHER_PROGRAM.format("Python's pickle")),
    ),
}
# fmt: on


def advice(lacking: Collection[str], names: set[str], model: str, folder: str) -> str:
    """Return what would help a folder that lacks "tokens", "index" or "weights". names: the files that it has. model:
    the folder itself, or the model of the hub whose files these are."""
    if "weights" in lacking and (inner := inner_models(folder)):
        return f"there is a model in {inner[-1]}: give that path"
    for form, how in (kind for what, kinds in KINDS.items() if what in lacking for kind in kinds):
        for name in sorted(names):
            if re.search(form, name):
                return f"it has {name}: {how.format(model, folder)}"
    return "copy them from the original model, or Hugging Face's config.json, tokenizer.json and model.safetensors"


def inner_models(folder: str) -> list[str]:
    """Return the folders with weights one or two levels below, as training runs keep them; the newest last."""
    names = ("model*.safetensors", "checkpoint")
    paths = [path for level in ("*", "*/*") for name in names for path in iglob(f"{escape(folder)}/{level}/{name}")]
    return [os.path.dirname(path) for path in sorted(filter(os.path.isfile, paths), key=os.path.getmtime)]


def has_own_weights(folder: str, names: set[str]) -> bool:
    """Return True if somebody has put weights into the folder, in whichever form."""
    forms = [form for form, _ in KINDS["weights"]]
    return bool(inner_models(folder)) or any(re.search(form, name) for form in forms for name in names - {"checkpoint"})

"""OpenAI's four models: their files, sizes and hashes, and where they are published."""

import os

# The bytes of each model's weights, 4 for each parameter.
WEIGHT_BYTES = {"124M": 497_759_232, "355M": 1_419_292_672, "774M": 3_096_120_320, "1558M": 6_230_444_800}
MODEL_SIZES = tuple(WEIGHT_BYTES)

SAME = {"n_vocab": 50257, "n_ctx": 1024}
HPARAMS = {
    "124M": SAME | {"n_embd": 768, "n_head": 12, "n_layer": 12},
    "355M": SAME | {"n_embd": 1024, "n_head": 16, "n_layer": 24},
    "774M": SAME | {"n_embd": 1280, "n_head": 20, "n_layer": 36},
    "1558M": SAME | {"n_embd": 1600, "n_head": 25, "n_layer": 48},
}

SMALL_FILES = ["hparams.json", "encoder.json", "vocab.bpe"]
# OpenAI also publishes `checkpoint`, which names these two, and model.ckpt.meta, the graph: nothing here needs them.
TF_INDEX = "model.ckpt.index"
TF_DATA = "model.ckpt.data-00000-of-00001"
SAFETENSORS = "model.safetensors"

OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/models"
HUGGING_FACE_NAMES = {"124M": "gpt2", "355M": "gpt2-medium", "774M": "gpt2-large", "1558M": "gpt2-xl"}

# No hash of the other files is published. The first two are the same for every size.
SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "124M/model.ckpt.index": "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687",
    "124M/model.ckpt.data-00000-of-00001": "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118",
}


def hashes(model_size: str) -> dict[str, str]:
    """{name: sha256} for those files of an official model whose hash is known; {} for any other model."""
    known = SHA256 if model_size in WEIGHT_BYTES else {}
    return {name.removeprefix(f"{model_size}/"): sha256 for name, sha256 in known.items()}


def addresses(model_size: str, source: str) -> dict[str, str]:
    """{name: URL} of all files of an official model. source is "openai", "huggingface" or the URL of a mirror."""
    if source == "huggingface":
        owner = f"{endpoint()}/openai-community"
        model, gpt2 = (f"{owner}/{name}/resolve/main" for name in (HUGGING_FACE_NAMES[model_size], "gpt2"))
        # The vocabulary is the same for every size, and byte for byte OpenAI's.
        urls = [f"{model}/config.json", f"{gpt2}/vocab.json", f"{gpt2}/merges.txt", f"{model}/model.safetensors"]
        return dict(zip([*SMALL_FILES, SAFETENSORS], urls, strict=True))
    base = OPENAI if source == "openai" else source.rstrip("/")
    return {name: f"{base}/{model_size}/{name}" for name in [*SMALL_FILES, TF_INDEX, TF_DATA]}


def endpoint() -> str:
    """The address of the Hugging Face hub, or of the mirror that HF_ENDPOINT names."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")

"""The names of the files in a model's folder. Of several forms the first that a folder has is read."""

from speculative.checkpoints.official import TF_DATA, TF_INDEX

OPENAI_VOCABULARY = ("encoder.json", "vocab.bpe")
VOCABULARIES = (OPENAI_VOCABULARY, ("tokenizer.json",), ("vocab.json", "merges.txt"))
OPTIONAL = ("tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "generation_config.json")
SAFETENSORS = "model.safetensors"
SHARDS = "model.safetensors.index.json"  # names the files that belong together
USUAL_WEIGHTS = ([SAFETENSORS], [TF_INDEX, TF_DATA])

# The files of the hub that are read here.
SMALL_NAMES = ["config.json", "hparams.json", *OPTIONAL, *(name for form in VOCABULARIES for name in form)]
WEIGHT_NAMES = [SAFETENSORS, SHARDS, "model-*-of-*.safetensors"]

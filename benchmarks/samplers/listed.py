"""The public samplers: where each is found, at which version, and why it is not lossless where the law says so."""

from typing import NamedTuple


class Sampler(NamedTuple):
    """A function of a public project."""

    project: str  # on GitHub
    file: str  # in its checkout; "" if an installed package is taken
    function: str
    version: str  # a commit, or a package's version
    stand_ins: tuple[str, ...] = ()  # modules that its file imports and the law does not need; +a package to run whole
    cause: str = ""  # the cause of a law that is not the target's
    folder: str = ""  # from which it imports its own modules


def parts(package: str, names: str) -> tuple[str, ...]:
    """The modules of a package."""
    return tuple(f"{package}.{name}" for name in names.split())


RICH = ("rich", "termcolor")
LITGPT = ("lightning", *parts("litgpt", "config constants model prompts tokenizer utils"))
TORCHCHAT = ("PIL", *parts("torchchat", "cli distributed model utils"))
DEEPSPEC = ("deepspec.data", "+deepspec.utils")
RECURRENT = (
    "transformers",
    *parts("recurrent_drafting", "attention kv_cache modeling_drafter modeling_llama stats tree_attention"),
)
MLX = ("transformers", *parts("mlx_lm", "tokenizer_utils utils"))
VLLM_0_33 = parts(
    "vllm",
    "config envs logger platforms utils v1.outputs v1.sample.logits_processor v1.sample.metadata v1.sample.ops "
    "v1.sample.sampler v1.spec_decode",
)
VLLM = parts("vllm", "envs logger platforms")
ASCEND = ("vllm", *parts("vllm_ascend", "ascend_config ops sample.penalties sample.sampler"))
LMFLOW = ("accelerate", "datasets", *parts("lmflow", "args datasets models utils"))
SSD = parts("ssd", "config utils.async_helpers")
TXXNRD = ("tqdm", "speculative_decoding.utils")

BLOG = ("jaymody/speculative-sampling", "main.py", "speculative_sampling", "03b4759", ("gpt2", "utils"))
FEIFEIBEAR = ("feifeibear/LLMSpeculativeSampling", "sampling/speculative_sampling.py")
ROMSTO = "romsto/Speculative-Decoding"
SPEC_BENCH = "hemingkx/Spec-Bench"
OF_LITGPT = ("Lightning-AI/litgpt", "litgpt/generate/speculative_decoding.py")
OF_VLLM = ("vllm-project/vllm", "vllm/model_executor/layers")
OF_ASCEND = ("vllm-project/vllm-ascend", "vllm_ascend/sample/rejection_sampler.py")
OF_TXXNRD = ("txxnrd/Speculative_Decoding", "speculative_decoding/algorithms/optimized_speculative_decoding_v2.py")
UNPROCESSED = "the last row misses the processor"
TYPICAL = "has a threshold for q, by design"

SAMPLERS = {
    "jaymody": Sampler(*BLOG),
    "feifeibear": Sampler(*FEIFEIBEAR, "speculative_sampling", "59a209d", ("globals",)),
    "feifeibear_v2": Sampler(*FEIFEIBEAR, "speculative_sampling_v2", "59a209d", ("globals",)),
    "romsto": Sampler(ROMSTO, "sampling/speculative_decoding.py", "speculative_generate", "db7db67", RICH),
    "romsto_ngram": Sampler(
        ROMSTO,
        "ngram_assisted/ngram_assisted.py",
        "ngram_assisted_speculative_generate",
        "db7db67",
        (*RICH, "+ngram_assisted"),
        "line 116 draws from q, line 141 again after a rejection",
    ),
    "shreyansh26": Sampler(
        "shreyansh26/Speculative-Sampling",
        "speculative_sampling.py",
        "speculative_sampling",
        "81fb3b2",
        ("transformers",),
    ),
    "shreyansh26_2": Sampler(
        "shreyansh26/Speculative-Decoding",
        "common/verification.py",
        "probabilistic_verify",
        "76335be",
        cause="line 482: after all drafts comes q's likeliest",
    ),
    "llama_ssp": Sampler("dust-tt/llama-ssp", "lssp/ssp.py", "ssp", "29bed13", ("transformers",)),
    "gpt_fast": Sampler("pytorch-labs/gpt-fast", "generate.py", "generate", "bc04265", ("model", "tokenizer")),
    "torchchat": Sampler("pytorch/torchchat", "torchchat/generate.py", "speculative_decode", "a1a7f37", TORCHCHAT),
    "litgpt_generate": Sampler(
        *OF_LITGPT,
        "generate",
        "2685705",
        LITGPT,
        "line 259 leaves out the first token, drawn at line 245",
    ),
    "pearl": Sampler(
        "smart-lty/ParallelSpeculativeDecoding", "src/engine.py", "speculative_decoding", "5a6f369", ("accelerate",)
    ),
    "lmflow": Sampler(
        "OptimalScale/LMFlow",
        "src/lmflow/pipeline/inferencer.py",
        "SpeculativeInferencer.inference",
        "f3597db",
        LMFLOW,
        "lines 379, in place, and 528 divide by the temperature",
        folder="src",
    ),
    "deepspec": Sampler(
        "deepseek-ai/DeepSpec", "deepspec/eval/base_evaluator.py", "verify_draft_tokens", "afdfa7c", DEEPSPEC
    ),
    "lucidrains": Sampler(
        "lucidrains/speculative-decoding",
        "speculative_decoding/speculative_decoding.py",
        "speculative_decoding",
        "72171ac",
        ("beartype",),
    ),
    "txxnrd": Sampler(*OF_TXXNRD, "_verify_and_accept_tokens", "87aed2a", TXXNRD),
    "eagle": Sampler("SafeAILab/EAGLE", "eagle/model/utils.py", "evaluate_posterior", "cb7e084"),
    "eagle1": Sampler(
        SPEC_BENCH,
        "model/eagle/utils.py",
        "evaluate_posterior",
        "fd2c1cd",
        cause=f"line 410: {UNPROCESSED}",
    ),
    "hass": Sampler(
        "HArmonizedSS/HASS", "model/utils.py", "evaluate_posterior", "38922e4", cause=f"line 401: {UNPROCESSED}"
    ),
    "angelslim": Sampler(
        "Tencent/AngelSlim", "angelslim/compressor/speculative/utils/util.py", "evaluate_posterior", "67394ce"
    ),
    "medusa": Sampler(
        "FasterDecoding/Medusa", "medusa/model/utils.py", "evaluate_posterior", "e2a5d20", cause=f"line 487 {TYPICAL}"
    ),
    "rest": Sampler(
        "FasterDecoding/REST",
        "rest/model/utils.py",
        "evaluate_posterior",
        "50a5fc1",
        ("draftretriever",),
        "line 226 draws from q, line 96 again after a rejection",
    ),
    "specexec": Sampler("yandex-research/specexec", "specdec/spec_SI.py", "_inference_step", "c7f24b3"),
    "triforce": Sampler(
        "Infini-AI-Lab/TriForce",
        "utils/decoding.py",
        "Middle_Spec",
        "164c8c0",
        ("sympy", "termcolor"),
        "line 212 redraws a rejected draft from q",
    ),
    "spec_bench_sps": Sampler(SPEC_BENCH, "model/sps/decoding.py", "_speculative_sampling", "fd2c1cd"),
    "transformers_installed": Sampler("huggingface/transformers", "", "_speculative_sampling", "v5.24.0"),
    "vllm_0_8": Sampler(OF_VLLM[0], f"{OF_VLLM[1]}/rejection_sampler.py", "RejectionSampler", "v0.8.5", VLLM),
    "vllm_typical": Sampler(
        OF_VLLM[0],
        f"{OF_VLLM[1]}/typical_acceptance_sampler.py",
        "TypicalAcceptanceSampler",
        "v0.8.5",
        VLLM,
        f"line 150 {TYPICAL}",
    ),
    "vllm_ascend": Sampler(*OF_ASCEND, "rejection_sample", "182b75e", ASCEND),
    "vllm_ascend_block": Sampler(
        *OF_ASCEND,
        "rejection_sample with enable_block_verify",
        "182b75e",
        ASCEND,
        "line 1573 compares with a product of random numbers",
    ),
    "aphrodite": Sampler(
        "PygmalionAI/aphrodite-engine",
        "aphrodite/modeling/layers/rejection_sampler.py",
        "RejectionSampler",
        "1fac86c",
    ),
    "toyllm": Sampler(
        "ai-glimpse/toyllm",
        "toyllm/sps/generate.py",
        "SpsTextGenerator.generate",
        "1a3c832",
        ("tiktoken", "toyllm.core", "toyllm.sps.models"),
    ),
    "drsy": Sampler(
        "DRSY/SpeculativeDecoding",
        "main.py",
        "speculative_sampling",
        "404198a",
        ("transformers",),
        "line 216 has the prompt's last token twice",
    ),
    "wtlow003": Sampler(
        "wtlow003/speculative-sampling",
        "src/speculative_sampling.py",
        "speculative_sampling",
        "8a77e6f",
        cause="line 87 keeps all drafts unless the first is rejected",
    ),
    "ishapira1": Sampler(
        "ishapira1/speculative_sampling",
        "speculative_sampling.ipynb",
        "rejection_sampling",
        "e515fb2",
        ("pandas", "seaborn", "transformers"),
        "cell 7, line 82 redraws the last accepted draft from q",
    ),
    "speculoos": Sampler(
        "bijinc/speculoos",
        "speculoos/sampler.py",
        "SpeculativeSampler.sample",
        "ee3f3d3",
        ("transformers",),
        "line 148 compares without line 122's temperature",
    ),
    "transformers_neuronx": Sampler(
        "aws-neuron/transformers-neuronx",
        "src/transformers_neuronx/speculation.py",
        "DefaultTokenAcceptor",
        "1ade6d7",
        ("transformers", *parts("transformers_neuronx", "base sampling util")),
        folder="src",
    ),
    "sequoia": Sampler("Infini-AI-Lab/Sequoia", "Tree/SpecTree.py", "SpecTree.accept_step", "0ff3ff7", ("Engine",)),
    "layer_skip": Sampler(
        "facebookresearch/LayerSkip",
        "self_speculation/self_speculation_generator.py",
        "SelfSpeculativeGenerationStrategy.generate_token_ids",
        "f42c669",
        ("colorama", "self_speculation.speculative_streamer"),
    ),
    "self_speculative": Sampler(
        "dilab-zju/self-speculative-decoding", "decoding.py", "self_speculative_sample", "688db8b", ("transformers",)
    ),
    "ssd": Sampler("tanishqkumar/ssd", "ssd/utils/verify.py", "verify", "6ed3022", SSD),
    "ssd_miss": Sampler(
        "tanishqkumar/ssd",
        "ssd/utils/verify.py",
        "verify, after a cache miss",
        "6ed3022",
        SSD,
        "line 130 keeps random drafts that are q's likeliest",
    ),
    "no_magic": Sampler(
        "Mathews-Tom/no-magic",
        "03-systems/microspeculative.py",
        "decode_speculative",
        "ac1c477",
        cause="line 624 drops an end that replaces a draft",
        folder="03-systems",
    ),
    "vllm_0_33": Sampler(OF_VLLM[0], "vllm/v1/sample/rejection_sampler.py", "rejection_sample", "v0.33.0", VLLM_0_33),
    "lmdeploy": Sampler(
        "InternLM/lmdeploy",
        "lmdeploy/pytorch/spec_decode/reject_sampler.py",
        "rejection_sample",
        "1263d5c",
        ("lmdeploy.pytorch.engine",),
    ),
    "text_generation_inference": Sampler(
        "huggingface/text-generation-inference",
        "server/text_generation_server/utils/tokens.py",
        "HeterogeneousNextTokenChooser",
        "db931fc",
        ("transformers", *parts("text_generation_server", "pb utils.logits_process utils.watermark")),
        folder="server",
    ),
    "recurrent_drafter": Sampler(
        "apple/ml-recurrent-drafter",
        "recurrent_drafting/recurrent_drafting.py",
        "_accept_candidate_tokens",
        "bd8586b",
        RECURRENT,
        "line 546 takes a beam's likeliest drafts for draws",
    ),
    "tpu_inference": Sampler(
        "vllm-project/tpu-inference",
        "tpu_inference/layers/jax/sample/rejection_sampler.py",
        "rejection_sample",
        "b8692ff",
        parts("tpu_inference", "layers.common layers.jax.sample.sampling_metadata"),
    ),
    "rt_dlm": Sampler(
        "AuralithAI/RT-DLM",
        "src/core/sampling.py",
        "SpeculativeDecoder._verify_and_accept",
        "1f1ab4d",
        cause="line 733 redraws a rejected draft from q",
    ),
    "mlx_lm": Sampler("ml-explore/mlx-lm", "mlx_lm/generate.py", "speculative_generate_step", "d78bf58", MLX),
    "megatron": Sampler(
        "NVIDIA/Megatron-LM",
        "megatron/core/inference/text_generation_controllers/mtp_utils_pytorch.py",
        "verify_speculative_tokens",
        "d98e8a6",
    ),
}

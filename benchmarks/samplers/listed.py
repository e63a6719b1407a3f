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
VLLM = parts("vllm", "envs logger platforms")
ASCEND = ("vllm", *parts("vllm_ascend", "ascend_config ops sample.penalties sample.sampler"))
LMFLOW = ("accelerate", "datasets", *parts("lmflow", "args datasets models utils"))
TXXNRD = ("tqdm", "speculative_decoding.utils")

BLOG = ("jaymody/speculative-sampling", "main.py", "speculative_sampling", "03b4759", ("gpt2", "utils"))
FEIFEIBEAR = ("feifeibear/LLMSpeculativeSampling", "sampling/speculative_sampling.py")
ROMSTO = "romsto/Speculative-Decoding"
SPEC_BENCH = "hemingkx/Spec-Bench"
OF_LITGPT = ("Lightning-AI/litgpt", "litgpt/generate/speculative_decoding.py")
OF_VLLM = ("vllm-project/vllm", "vllm/model_executor/layers")
OF_ASCEND = ("vllm-project/vllm-ascend", "vllm_ascend/sample/rejection_sampler.py")
OF_TXXNRD = ("txxnrd/Speculative_Decoding", "speculative_decoding/algorithms/optimized_speculative_decoding_v2.py")
UNPROCESSED = "the row after the last draft has temperature 1, without the processor"
TYPICAL = "typical acceptance, by design: a draft stays if q is above a threshold"

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
        "line 116 draws from q and keeps an equal draft, else line 141 draws from q again",
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
        cause="line 482: if all drafts stay, the token after them is q's likeliest, not a draw",
    ),
    "llama_ssp": Sampler("dust-tt/llama-ssp", "lssp/ssp.py", "ssp", "29bed13", ("transformers",)),
    "gpt_fast": Sampler("pytorch-labs/gpt-fast", "generate.py", "generate", "bc04265", ("model", "tokenizer")),
    "torchchat": Sampler("pytorch/torchchat", "torchchat/generate.py", "speculative_decode", "a1a7f37", TORCHCHAT),
    "litgpt_generate": Sampler(
        *OF_LITGPT,
        "generate",
        "2685705",
        LITGPT,
        "the first token, drawn at line 245, is not among those returned (line 259)",
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
        "line 379 divides the logits by the temperature in place, and line 528 divides them again",
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
        "FasterDecoding/Medusa", "medusa/model/utils.py", "evaluate_posterior", "e2a5d20", cause=f"line 487: {TYPICAL}"
    ),
    "rest": Sampler(
        "FasterDecoding/REST",
        "rest/model/utils.py",
        "evaluate_posterior",
        "50a5fc1",
        ("draftretriever",),
        "line 226 draws from q and keeps an equal draft, else line 96 draws from q again",
    ),
    "specexec": Sampler("yandex-research/specexec", "specdec/spec_SI.py", "_inference_step", "c7f24b3"),
    "triforce": Sampler(
        "Infini-AI-Lab/TriForce",
        "utils/decoding.py",
        "Middle_Spec",
        "164c8c0",
        ("sympy", "termcolor"),
        "line 212: after a rejection it draws from q, not from (q - p)+",
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
        f"line 150: {TYPICAL}",
    ),
    "vllm_ascend": Sampler(*OF_ASCEND, "rejection_sample", "182b75e", ASCEND),
    "vllm_ascend_block": Sampler(
        *OF_ASCEND,
        "rejection_sample with enable_block_verify",
        "182b75e",
        ASCEND,
        "line 1573 compares products of random numbers with products of ratios",
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
        "line 216 joins the prompt and ids that begin with its last token, which the text has twice",
    ),
}

"""Its block verification, which it takes from three drafts on."""

from benchmarks.samplers.vllm_ascend import options, rule  # noqa: F401

options.enable_block_verify = True

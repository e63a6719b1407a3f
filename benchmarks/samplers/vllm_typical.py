"""Its TypicalAcceptanceSampler, with the thresholds that its command has by default."""

from vllm.model_executor.layers.typical_acceptance_sampler import TypicalAcceptanceSampler

sampler = TypicalAcceptanceSampler(0.09, 0.3)
sampler.init_tensors("cpu", "cpu")
rule = sampler.forward

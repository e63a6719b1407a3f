"""Its RejectionSampler: the parameters are one of the law's forms."""

from vllm.model_executor.layers.rejection_sampler import RejectionSampler

sampler = RejectionSampler()
sampler.init_tensors("cpu", "cpu")
rule = sampler.forward

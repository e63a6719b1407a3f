"""Public samplers in the law's forms, a function each: the lines to add to a project so that its law can be taken.

Each returns a rule or a loop, and imports its project only when it is called.
"""

from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

from benchmarks.samplers.networks import (
    Placed,
    Unpinned,
    by_windows,
    decode_with_paths,
    from_last,
    moved_up,
)
from speculative.law import as_tensors
from speculative.law.samplers.outputs import Network


def jaymody():
    """The blog's own loop."""
    from main import speculative_sampling

    return speculative_sampling


def feifeibear():
    """Its sample() refuses token 0, so all tokens are moved up by one."""
    from sampling.speculative_sampling import speculative_sampling as theirs

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(moved_up(draft_model, 1)), Network(moved_up(target_model, 1))
        return theirs(torch.tensor([x + 1]), *models, N, K)[0] - 1

    return speculative_sampling


def feifeibear_v2():
    """Its sample() refuses token 0, so all tokens are moved up by one."""
    from sampling.speculative_sampling import speculative_sampling_v2 as theirs

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(moved_up(draft_model, 1)), Network(moved_up(target_model, 1))
        return theirs(torch.tensor([x + 1]), *models, N, K)[0] - 1

    return speculative_sampling


def romsto():
    """N + 1, since a call that drafts nothing divides by zero."""
    from sampling.speculative_decoding import speculative_generate
    from utils.logits_processor import MultinomialProcessor

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(draft_model), Network(target_model)
        text, _ = speculative_generate(
            x.tolist(), *models, None, K, MultinomialProcessor(1.0), N + 1, eos_tokens_id=-1, first_target=False
        )
        return [*x, *text]

    return speculative_sampling


def romsto_ngram():
    """An n-gram storage that proposes the draft's likeliest token."""
    from ngram_assisted.ngram_assisted import ngram_assisted_speculative_generate
    from utils.logits_processor import MultinomialProcessor

    def speculative_sampling(x, draft_model, target_model, N, K):
        def next_token(text):
            return torch.tensor(draft_model(text[0])[-1].argmax()), torch.tensor([True])

        storage = SimpleNamespace(next_token=next_token, update=lambda *_: None, initialize=lambda *_: None)
        processor = MultinomialProcessor(1.0)
        text, _ = ngram_assisted_speculative_generate(
            x.tolist(), storage, Network(target_model), None, K, 1, processor, N, eos_tokens_id=-1
        )
        return [*x, *text]

    return speculative_sampling


def shreyansh26():
    """At temperature 1."""
    from speculative_sampling import speculative_sampling as theirs

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(target_model), Network(draft_model)
        return theirs(*models, torch.tensor([x]), len(x) + N, None, K, debug=False)[0]

    return speculative_sampling


def shreyansh26_2():
    """Its probabilistic_verify() with drafts of our loop."""
    from common.verification import probabilistic_verify

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        output = SimpleNamespace(logits=q.log())
        return probabilistic_verify(lambda ids: output, [0], drafts[0].tolist(), p[0]).emitted_ids

    return rule


def llama_ssp():
    """At its own temperature, 0.5. Its tokenizer is not made."""
    from lssp.base import TEMPERATURE
    from lssp.ssp import ssp

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(target_model, TEMPERATURE), Network(draft_model, TEMPERATURE)
        return ssp(*models, N, torch.tensor([x]), K)[0]

    return speculative_sampling


def gpt_fast():
    """Its whole generate()."""
    from generate import generate

    def speculative_sampling(x, draft_model, target_model, N, K):
        draft, target = Placed(draft_model), Placed(target_model)
        ids, _ = generate(target, torch.tensor(x).int(), N, interactive=False, draft_model=draft, speculate_k=K)
        return ids

    return speculative_sampling


def torchchat():
    """Its speculative_decode(), which generate() calls for each window."""
    from torchchat.generate import LocalGenerator

    def speculative_sampling(x, draft_model, target_model, N, K):
        def window(text):
            models = Placed(target_model, text), Placed(draft_model, text)
            loop = LocalGenerator.__new__(LocalGenerator)
            return loop.speculative_decode(*models, torch.tensor(text[-1:]), len(text) - 1, K, temperature=1.0)

        return by_windows(window, x, N)

    return speculative_sampling


def litgpt_generate():
    """Its generate()."""
    from litgpt.generate.speculative_decoding import generate

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Placed(draft_model), Placed(target_model)
        return generate(*models, torch.tensor(x), len(x) + N + 1, speculative_k=K)[0]

    return speculative_sampling


def pearl():
    """Its speculative_decoding(), the loop beside which it measures, at temperature 1."""
    from src.engine import Decoding

    def speculative_sampling(x, draft_model, target_model, N, K):
        args = SimpleNamespace(max_tokens=N, gamma=K, temp=1, top_k=0, top_p=0)
        loop = SimpleNamespace(args=args, num_acc_tokens=[], accelerator=SimpleNamespace(is_main_process=False))
        loop.draft_model, loop.target_model = Network(draft_model), Network(target_model)
        loop.vocab_size = loop.target_model.config.vocab_size
        return Decoding.speculative_decoding(loop, torch.tensor([x]))[0]

    return speculative_sampling


def lmflow():
    """Its inference() at temperature 0.5; the models encode and decode nothing."""
    from lmflow.pipeline.inferencer import SpeculativeInferencer

    class Decoder(Network):
        def get_backend_model(self):
            return self

        def inference(self, ids, **_):
            return SimpleNamespace(scores=[self(ids).logits[:, -1]])

        def encode(self, ids, **_):
            return ids

        decode = encode

    def speculative_sampling(x, draft_model, target_model, N, K):
        loop = SpeculativeInferencer.__new__(SpeculativeInferencer)
        loop.inferencer_args = SimpleNamespace(device="cpu")
        return loop.inference(Decoder(target_model, 0.5), Decoder(draft_model, 0.5), torch.tensor([x]), 0.5, K, N)

    return speculative_sampling


def deepspec():
    """Its verify_draft_tokens() with drafts of our loop."""
    from deepspec.eval.base_evaluator import DraftProposal, verify_draft_tokens

    always = {"start": 0, "past_key_values_target": None, "temperature": 1.0}

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        ids, m = from_last(drafts), drafts.shape[1]
        given = {"target_model": lambda **_: SimpleNamespace(logits=q.log()), "proposal": DraftProposal(m, ids, p)}
        return verify_draft_tokens(**given, **always, position_ids=ids, max_proposal_tokens=m).committed_tokens[0]

    return rule


def lucidrains():
    """Without its cut to the likeliest tokens."""
    from speculative_decoding.speculative_decoding import speculative_decoding

    def net(model):
        return lambda ids, **_: (Network(model)(ids).logits, (ids[..., None], None))

    def speculative_sampling(x, draft_model, target_model, N, K):
        nets = net(target_model), net(draft_model)
        ids, _ = speculative_decoding(*nets, torch.tensor([x]), len(x) + N, K, filter_thres=0)
        return torch.cat([torch.tensor(x), ids[0]])

    return speculative_sampling


def txxnrd():
    """Its _verify_and_accept_tokens() with drafts of our loop; it draws no token if all drafts of a window stay."""
    from speculative_decoding.algorithms.optimized_speculative_decoding_v2 import OptimizedSpeculativeDecoderV2

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        return OptimizedSpeculativeDecoderV2._verify_and_accept_tokens(None, drafts, p.log(), q[:, :-1].log())[0][0]

    return rule


def eagle():
    """Its processor of logits at temperature 1 is the identity."""
    from eagle.model.utils import evaluate_posterior

    def choose(logits, candidates):
        best, n_accepted, p = evaluate_posterior(logits, candidates, lambda _, row: row)
        return best, n_accepted, torch.multinomial(p, 1)

    def speculative_sampling(x, draft_model, target_model, N, K):
        return decode_with_paths(choose, x, draft_model, target_model, N, K)

    return speculative_sampling


def eagle1():
    """EAGLE-1 in a chain, with its temperature at 0.5 and drafts of our loop."""
    from model.eagle.utils import evaluate_posterior

    temperature = 0.5

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        ids, m = from_last(drafts), drafts.shape[1]
        chances = torch.cat([torch.ones(1), p[0, range(m), drafts[0]]])[None]
        places = [[0] * (m + 1)], ids, [[[]] * (m + 1)]  # a chain: each draft has its row, and no siblings
        scaled = temperature * q.log(), ids, lambda _, row: row / temperature
        _, n, row = evaluate_posterior(*scaled, chances, p[0, :, None], *places)
        return [*drafts[0, :n].tolist(), int(torch.multinomial(row, 1))]

    return rule


def hass():
    """Its evaluate_posterior() with a processor of temperature 0.5."""
    from model.utils import evaluate_posterior

    temperature = 0.5

    def choose(logits, candidates):
        scaled = temperature * logits
        best, n_accepted, p = evaluate_posterior(scaled, candidates, lambda _, row: row / temperature)
        return best, n_accepted, torch.multinomial(p, 1)

    def speculative_sampling(x, draft_model, target_model, N, K):
        return decode_with_paths(choose, x, draft_model, target_model, N, K)

    return speculative_sampling


def angelslim():
    """Its processor of logits at temperature 1 is the identity."""
    from angelslim.compressor.speculative.utils.util import evaluate_posterior

    def speculative_sampling(x, draft_model, target_model, N, K):
        def choose(logits, candidates):
            return evaluate_posterior(logits, candidates, lambda _, row: row)

        return decode_with_paths(choose, x, draft_model, target_model, N, K)

    return speculative_sampling


def medusa():
    """Typical acceptance at temperature 1, with its defaults; the next token is the likeliest, as in its fast mode."""
    from medusa.model.utils import evaluate_posterior

    def choose(logits, candidates):
        best, n_accepted = evaluate_posterior(logits, candidates, 1.0)
        return best, n_accepted, logits[best, n_accepted].argmax()

    def speculative_sampling(x, draft_model, target_model, N, K):
        return decode_with_paths(choose, x, draft_model, target_model, N, K)

    return speculative_sampling


def rest():
    """At temperature 1 with a top-p that cuts nothing; the token after the drafts is drawn as in its next step."""
    from rest.model.utils import evaluate_posterior

    def choose(logits, candidates):
        best, n_accepted = evaluate_posterior(logits.clone(), candidates, 1.0, 0.9999999)
        return best, n_accepted, torch.multinomial(logits[best, n_accepted].softmax(0), 1)

    def speculative_sampling(x, draft_model, target_model, N, K):
        return decode_with_paths(choose, x, draft_model, target_model, N, K)

    return speculative_sampling


def specexec():
    """Two candidates at each place, drawn without replacement as in its select_best_children()."""
    from specdec.spec_SI import SpecInfer

    def speculative_sampling(x, draft_model, target_model, N, K):
        def window(text):
            p, q = (torch.tensor(model(text)[-1]) for model in (draft_model, target_model))
            drafts = torch.multinomial(p, min(2, int((p > 0).sum())))
            _, token = SpecInfer._inference_step(q, p, range(len(drafts)), drafts)
            return [token]

        return by_windows(window, x, N)

    return speculative_sampling


def triforce():
    """Middle_Spec(), whose drafts are passed on as draws from the rows that it returns: those are the target here."""
    from utils.decoding import Middle_Spec

    def speculative_sampling(x, draft_model, target_model, N, K):
        def window(text):
            def rows(model, input_ids):  # after each of the ids, the first of which is the text's last token
                return torch.tensor(model([*text[:-1], *input_ids[0].tolist()])[len(text) - 1 :])

            graph = MagicMock()
            graph.engine.model.device, graph.engine.kv_cache.seq_len = "cpu", 0
            graph.graph_draft_inference = lambda input_ids, **_: rows(draft_model, input_ids)[-1]
            graph.graph_verify = lambda input_ids, **_: rows(target_model, input_ids)
            return torch.tensor(Middle_Spec(torch.tensor([[text[-1]]]), graph, K, False, None)[0][1:])

        return by_windows(window, x, N)

    return speculative_sampling


def spec_bench_sps():
    """Its copy of transformers' acceptance; two names that its file imports are no longer in transformers."""
    import transformers.generation.candidate_generator as candidates
    import transformers.generation.utils as utils

    utils.GreedySearchOutput = candidates._crop_past_key_values = None

    from model.sps.decoding import _speculative_sampling

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        m = drafts.shape[1]
        return _speculative_sampling(drafts, p.log(), m, q.log(), False, m)[0][0]

    return rule


def transformers_installed():
    """The acceptance of assisted generation, as installed: its parameters are one of the law's forms."""
    from transformers.generation.utils import _speculative_sampling

    return _speculative_sampling


def vllm_0_8():
    """Its RejectionSampler: the parameters are one of the law's forms."""
    from vllm.model_executor.layers.rejection_sampler import RejectionSampler

    sampler = RejectionSampler()
    sampler.init_tensors("cpu", "cpu")
    return sampler.forward


def vllm_typical():
    """Its TypicalAcceptanceSampler, with the thresholds that its command has by default."""
    from vllm.model_executor.layers.typical_acceptance_sampler import TypicalAcceptanceSampler

    sampler = TypicalAcceptanceSampler(0.09, 0.3)
    sampler.init_tensors("cpu", "cpu")
    return sampler.forward


def vllm_ascend(block=False):
    """Its rejection_sample() as it is without Triton, with drafts of our loop; vLLM's own names are given here."""
    from vllm_ascend.sample import rejection_sampler as theirs

    theirs.torch, theirs.HAS_TRITON = Unpinned(), False
    theirs.PLACEHOLDER_TOKEN_ID, theirs.GREEDY_TEMPERATURE = -1, 0
    theirs.generate_uniform_probs = lambda n, *_: torch.rand(n, dtype=torch.float64)
    options = theirs.get_ascend_config().rejection_sampler_config
    options.enable_block_verify, options.enable_entropy_verify = block, False

    def rule(proposal, q, rng):
        drafts, p, q = (tensor[0] for tensor in as_tensors(proposal, q))
        m = len(drafts)
        about = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(1), generators={})
        bonus = torch.multinomial(q[-1:], 1)
        ids = theirs.rejection_sample(drafts, [m], m, torch.tensor([m]), p, q[:-1].log(), bonus, about)
        return ids[ids >= 0]

    return rule


def vllm_ascend_block():
    """Its block verification, which it takes from three drafts on."""
    return vllm_ascend(block=True)


def aphrodite():
    """Its RejectionSampler: the parameters are one of the law's forms."""
    from aphrodite.modeling.layers.rejection_sampler import RejectionSampler

    sampler = RejectionSampler(disable_bonus_tokens=False)
    sampler.num_accepted_tokens = sampler.num_emitted_tokens = torch.tensor(0)
    return sampler.forward


def toyllm():
    """Its generate(), whose prompt and text are token ids here."""
    from toyllm.sps.generate import SpsTextGenerator

    def speculative_sampling(x, draft_model, target_model, N, K):
        def model(rows):
            return SimpleNamespace(device=lambda: "cpu", inference=lambda ids, _: torch.tensor(rows(ids)))

        tokenizer = SimpleNamespace(encode=lambda ids: ids, decode=lambda ids: ids)
        loop = SpsTextGenerator(tokenizer, model(target_model), model(draft_model), K)
        return loop.generate(x.tolist(), SimpleNamespace(max_new_tokens=N))

    return speculative_sampling


def drsy():
    """Its text as its tokenizer decodes it, at temperature 1."""
    import main as theirs

    theirs.model = SimpleNamespace(device="cpu")  # a variable of its command

    class Inputs(dict):
        def to(self, device):
            return self

    class Tokenizer:
        def __call__(self, texts, return_tensors):
            return Inputs(input_ids=torch.tensor(texts))

        def decode(self, ids, **_):
            return ids

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(target_model), Network(draft_model)
        return theirs.speculative_sampling(x.tolist(), *models, Tokenizer(), K, {"max_new_tokens": N})

    return speculative_sampling

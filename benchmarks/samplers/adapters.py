"""Public samplers in the law's forms, a function each: the lines to add to a project so that its law can be taken.

Each returns a rule or a loop, and imports its project only when it is called.
"""

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import torch

from benchmarks.samplers.networks import (
    Placed,
    Unpinned,
    by_windows,
    decode_with_paths,
    from_last,
    greedy,
    import_triton,
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


def wtlow003():
    """The tokens that it yields, at temperature 1 without filters."""
    from src.speculative_sampling import speculative_sampling as theirs

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = Network(draft_model), Network(target_model)
        return [*x, *(int(token) for token, _ in theirs(torch.tensor([x]), *models, N, K, 1.0, 0, 0.0))]

    return speculative_sampling


def ishapira1():
    """The function of its notebook, whose models return rows."""
    from speculative.law import function_at

    theirs = function_at(f"{sys.path[0]}/speculative_sampling.ipynb:rejection_sampling")

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = (lambda ids, model=model: torch.tensor(model(ids[0])) for model in (draft_model, target_model))
        return theirs(torch.tensor([x]), *models, K, N)[0]

    return speculative_sampling


def speculoos():
    """Its sample() at temperature 0.5 without filters."""
    from speculoos.sampler import SpeculativeSampler

    def speculative_sampling(x, draft_model, target_model, N, K):
        loop = SpeculativeSampler.__new__(SpeculativeSampler)
        loop.K, loop.eps, loop.sample_config = K, 1e-10, {"temperature": 0.5}
        loop.draft_model, loop.target_model = Network(draft_model, 0.5), Network(target_model, 0.5)
        return loop.sample(torch.tensor([x]), N)[0]

    return speculative_sampling


def transformers_neuronx():
    """Its DefaultTokenAcceptor with drafts of our loop. The ids that are not 0 count, as in its loop: all tokens are
    moved up by one."""
    from transformers_neuronx.speculation import DefaultTokenAcceptor

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        logits = (torch.nn.functional.pad(rows, (1, 0)).log() for rows in (p, q))
        ids = DefaultTokenAcceptor()(drafts + 1, *logits)[0]
        return ids[: torch.count_nonzero(ids)] - 1

    return rule


def sequoia():
    """accept_step() of its SpecTree with two children, drawn by its sampling_without_replacement()."""
    from Tree.SpecTree import SpecTree

    from utils import get_residual, sampling_without_replacement

    def speculative_sampling(x, draft_model, target_model, N, K):
        def window(text):
            p, q = (torch.tensor(model(text)[-1]) for model in (draft_model, target_model))
            m = min(2, int((p > 0).sum()))
            tree = SpecTree.__new__(SpecTree)
            tree.temperature, tree.dtype, tree.ground_truth_len, tree.residual_graph = 1, p.dtype, 1, get_residual
            tree.Successors, tree.r = [[*range(1, m + 1)]], torch.rand(m + 1)
            tree.draft_logits, tree.target_logits = p.log()[None], q[None]
            children = sampling_without_replacement(p.log()[None], torch.rand(1, len(p)), m, 1)
            tree.tokens = from_last(children[None])[0]
            place, residual = tree.accept_step(0)
            return [tree.tokens[place] if place >= 0 else residual.multinomial(1)]

        return by_windows(window, x, N)

    return speculative_sampling


def layer_skip():
    """Its generate_token_ids() at temperature 1; the early layers are the draft. N + 1, as a call that drafts nothing
    divides by zero."""
    import self_speculation.self_speculation_generator as theirs
    from self_speculation.generator_base import GenerationConfig

    def forward(model, ids, past, is_late):
        n = past[0][0].shape[2] - (ids.numel() - 1 if is_late else 0) if past else 0  # before ids
        result = model(ids, theirs.crop_past_key_values(past or [], n))
        return SimpleNamespace(logits=result.logits, past_key_values=result.past_key_values, exit_query_cache=None)

    theirs.forward_early = lambda models, ids, past, *_: forward(models.draft, ids, past, False)
    theirs.forward_remainder = lambda models, ids, past, *_: forward(models.target, ids, past, True)

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = SimpleNamespace(device="cpu", draft=Network(draft_model), target=Network(target_model))
        config = GenerationConfig(N + 1, num_speculations=K, temperature=1.0, top_p=1.0)
        loop = theirs.SelfSpeculativeGenerationStrategy()
        return [*x, *loop.generate_token_ids(models, x.tolist(), [], config).predicted_tokens]

    return speculative_sampling


def self_speculative():
    """Its self_speculative_sample() at temperature 1; the draft is the model within self_draft(). N + 1, as a call that
    drafts nothing divides by zero."""
    import decoding as theirs

    theirs.top_k_top_p_filtering = lambda logits, **_: logits  # no longer in transformers
    always = {"do_sample": True, "do_sample_draft": True, "temperature": 1.0}

    def speculative_sampling(x, draft_model, target_model, N, K):
        class Model(Network):
            def __call__(self, **given):
                return vars(super().__call__(**given))

            def self_draft(self):
                return patch.object(self, "model", draft_model)

        ids = torch.tensor([x])
        text = theirs.self_speculative_sample(Model(target_model), None, ids, N + 1, max_step_draft=K, **always)
        return [*x, *text["generate_ids"][0]]

    return speculative_sampling


def ssd():
    """Its verify() with drafts of our loop, all from its cache."""
    from ssd.utils.verify import verify

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        accepted, own = verify(q.log(), p.log(), from_last(drafts), torch.ones(1), torch.ones(1), torch.ones(1))
        return [*accepted[0][1:], *own]

    return rule


def ssd_miss():
    """Its verify() with the drafts that its draft_runner.py, lines 193 and 194, makes if its cache has none."""
    from ssd.utils.verify import verify

    def speculative_sampling(x, draft_model, target_model, N, K):
        def window(text):
            n_vocab = target_model(text).shape[1]
            drafts = torch.empty(1, K, n_vocab).uniform_().argmax(-1)
            q = torch.tensor(target_model([*text, *drafts[0].tolist()])[-K - 1 :])[None]
            ones = torch.ones(1)
            accepted, own = verify(q.log(), None, from_last(drafts), ones, ones, torch.zeros(1))
            return [*accepted[0][1:], *own]

        return by_windows(window, x, N)

    return speculative_sampling


def no_magic():
    """Its decode_speculative() at temperature 1. Token 0 ends a text, which others follow here."""
    import microspeculative as theirs

    def forward_float(token, place, cache, model, options):
        cache[0]["k"].append([token])
        return torch.tensor(model([row[0] for row in cache[0]["k"]])[-1]).log().tolist()

    theirs.forward_float, theirs.BLOCK_SIZE = forward_float, Network.max_seq_length

    def speculative_sampling(x, draft_model, target_model, N, K):
        options = {"n_layer": 1, "vocab_size": target_model(x).shape[1], "bos": 0}

        def window(text):
            n = len(x) + N - len(text)
            ids = theirs.decode_speculative(text, target_model, draft_model, options, options, n, K, 1.0)[0]
            return ids if len(ids) >= n else [*ids, 0]

        return by_windows(window, x, N)

    return speculative_sampling


def vllm_0_33():
    """Its rejection_sample(): the parameters are one of the law's forms. Each line of its Triton kernels is done by
    PyTorch."""
    import_triton()
    from vllm.v1.sample.rejection_sampler import rejection_sample

    return rejection_sample


def lmdeploy():
    """Its rejection_sample() with drafts of our loop. Each line of its Triton kernels is done by PyTorch."""
    import_triton()
    from lmdeploy.pytorch.spec_decode.reject_sampler import rejection_sample

    def rule(proposal, q, rng):
        drafts, p, q = as_tensors(proposal, q)
        bonus = torch.multinomial(q[:, -1], 1)[0]
        options = SimpleNamespace(max_top_k=0, top_k=None)
        return rejection_sample(q[:, :-1].log(), drafts, bonus, options, p)[0][0]

    return rule


def text_generation_inference():
    """Its HeterogeneousNextTokenChooser at temperature 1, with the drafts that the draft has as the likeliest."""
    from text_generation_server.utils.tokens import HeterogeneousNextTokenChooser

    off = {"watermark": [0], "frequency_penalty": [0], "top_k": [0], "grammars": [""], "grammar_types": [0]}
    ones = {name: [1] for name in ("temperature", "repetition_penalty", "top_p", "typical_p", "do_sample")}
    options = off | ones | {"seeds": [0], "tokenizer": None, "dtype": None, "device": "cpu"}

    def speculative_sampling(x, draft_model, target_model, N, K):
        chooser = HeterogeneousNextTokenChooser(**options)

        def window(text):
            ids = torch.tensor([greedy(draft_model, text, K)])
            logits = torch.tensor(target_model(ids[0])[len(text) - 1 :]).log()
            return chooser(ids, logits, 0, ids[:, len(text) :])[0]

        return by_windows(window, x, N)

    return speculative_sampling


def recurrent_drafter():
    """Two beams of its drafter: the draft's two likeliest tokens, and its likeliest after them. Its functions choose a
    beam and draw the token after it."""
    from recurrent_drafting.recurrent_drafting import _choose_from_candidates, _prepare_next_input

    def speculative_sampling(x, draft_model, target_model, N, K):
        models = draft_model, target_model

        def window(text):
            firsts = draft_model(text)[-1].argsort()[::-1][:2].tolist()
            paths = [greedy(draft_model, [*text, j], K - 1) for j in firsts]
            beams = torch.tensor(paths)[None, :, len(text) - 1 :]
            p, q = (torch.tensor([model(path)[len(text) - 1 :] for path in paths]).log()[None] for model in models)
            n, best = _choose_from_candidates(beams, q, p[:, :, :-1])
            _, token = _prepare_next_input(p[:, :, :-1], q, q, best, n)
            return [*beams[0, best[0], 1 : n[0] + 1], token]

        return by_windows(window, x, N)

    return speculative_sampling


def tpu_inference():
    """Its rejection_sample() with drafts of our loop."""
    import jax
    from jax import numpy as jnp
    from tpu_inference.layers.jax.sample.rejection_sampler import rejection_sample

    def rule(proposal, q, key):
        own, bonus = jax.random.split(key)
        bonus = jax.random.categorical(bonus, jnp.log(q[-1:]))
        drafts, p = jnp.array(proposal.tokens), jnp.array(proposal.p)
        ids = rejection_sample(drafts, jnp.array([len(drafts)]), p, jnp.array(q[:-1]), bonus, True, own)
        return ids[ids >= 0]

    return rule


def rt_dlm():
    """_verify_and_accept() of its SpeculativeDecoder with drafts of our loop."""
    from jax import numpy as jnp
    from src.core.sampling import SpeculativeDecoder

    def rule(proposal, q, key):
        loop = SpeculativeDecoder(lambda _, text: jnp.log(jnp.array(q))[None], None)
        drafts, p = jnp.array([proposal.tokens]), jnp.array(proposal.p)[None]
        chances = jnp.take_along_axis(p, drafts[..., None], axis=-1)[..., 0]
        return loop._verify_and_accept(None, jnp.zeros((1, 1), int), drafts, chances, key)[0][0]

    return rule


def mlx_lm():
    """Its speculative_generate_step() with a sampler of MLX's; its cache holds the text."""
    import mlx.core as mx
    from mlx_lm.generate import speculative_generate_step

    class Text(list):
        state = ()

        def is_trimmable(self):
            return True

        def trim(self, n):
            del self[len(self) - n :]

    class Model(Network):
        def make_cache(self):
            return [Text()]

        def __call__(self, ids, cache):
            cache[0] += ids[0].tolist()
            return mx.log(mx.array(self.model(cache[0])[-ids.size :]))[None]

    def speculative_sampling(x, draft_model, target_model, N, K):
        given = {"num_draft_tokens": K, "max_tokens": N, "sampler": mx.random.categorical}
        steps = speculative_generate_step(mx.array(x), Model(target_model), Model(draft_model), **given)
        return [*x, *(token for token, *_ in steps)]

    return speculative_sampling


def megatron():
    """Its verify_speculative_tokens() with drafts of our loop; the target's tokens are drawn as in its controller."""
    from megatron.core.inference.text_generation_controllers.mtp_utils_pytorch import verify_speculative_tokens

    def rule(proposal, q, rng):
        drafts, _, q = as_tensors(proposal, q)
        own = torch.multinomial(q[0], 1)[:, 0]
        last, *_ = verify_speculative_tokens(from_last(drafts)[0], own, 1, 0, drafts.shape[1])
        return own[: last[0] + 1]

    return rule

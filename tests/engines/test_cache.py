"""The cache is never stale: any series of texts and trees gives the rows of an empty cache, and the log says what it
read."""

import shutil
from functools import partial

import numpy as np
import pytest
from mistakes import Mistakes, make
from safetensors.numpy import load_file, save_file
from tiny import HPARAMS, convert, logits_themselves, on_jax, random_params, refusal

from speculative.engines.c import packing
from speculative.engines.c.library import compiles
from speculative.engines.formats import FORMATS
from speculative.engines.model import Model
from speculative.engines.network import CachedNetwork, check_finite, common_prefix
from speculative.engines.plain import PlainPass
from speculative.engines.shared_cache import SharedCache, SharedNetwork, entries_of_target, with_shared_caches
from speculative.trees import Tree, by_paths

RNG = np.random.default_rng


KINDS = ["gpt2.py", *FORMATS]
WIDE = {"n_vocab": 50, "n_ctx": 250, "n_embd": 96, "n_head": 3, "n_layer": 2}


def two_of(kind, hparams=HPARAMS, seed=0):
    """Two networks of the same weights, and how their rows are compared: of engine.c to the bit."""
    params = random_params(hparams, seed)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # noqa: E731
    if kind == "jax":
        pytest.importorskip("jax")
        from speculative.engines.jax.forward import cached

        return [cached(on_jax(params, hparams)), CachedNetwork(params, hparams, PlainPass(params, hparams))], close
    if kind == "gpt2.py":
        return [CachedNetwork(params, hparams, PlainPass(params, hparams)) for _ in range(2)], close
    if not compiles():
        pytest.skip("there is no compiler")
    from speculative.engines.c.forward import CompiledPass

    params = convert(params, partial(packing.pack, kind))
    networks = [CachedNetwork(params, hparams, CompiledPass(params, hparams, 2)) for _ in range(2)]
    return networks, np.testing.assert_array_equal


@pytest.fixture(params=["jax", "gpt2.py", "float32"])
def networks(request):
    return two_of(request.param)


def random_tree(rng, n):
    """A tree of n nodes. Siblings differ."""
    tree = Tree("")
    while len(tree.tokens) < n:
        parent = int(rng.integers(1 + len(tree.tokens)))
        token = int(rng.integers(6))
        if token not in [tree.tokens[child - 1] for child in tree.children[parent]]:
            tree.add(parent, token, None)
    return tree


def test_a_series_of_texts(networks):
    """Longer ones, shorter ones, others: to the bit the rows of an empty cache."""
    (network, other), same = networks
    model, fresh = Model(network, logits_themselves), Model(other, logits_themselves)
    rng = RNG(0)
    x = rng.integers(4, size=3)
    held = np.empty(0, int)
    for _ in range(80):
        n_last = int(rng.integers(1, len(x) + 1))
        rows = model(x, n_last)
        other.forget()
        same(rows, fresh(x, n_last))
        call = model.log[-1]
        assert call.n_rows == len(rows) == n_last
        assert call.n_read == len(x) - min(common_prefix(held, x), len(x) - n_last)
        assert call.prefill == (call.n_read > n_last + 2)
        assert call.seconds >= 0
        held = x.copy()
        x[0] = 5  # a caller may change its text
        cut = int(rng.integers(1, len(x) + 1))
        x = np.append(held[:cut], rng.integers(4, size=int(rng.integers(6))))[-HPARAMS["n_ctx"] :]
        if rng.random() < 0.15:
            x = rng.integers(4, size=int(rng.integers(1, 20)))


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_their_paths(kind):
    """Each node's row is that of its path alone. engine.c does not read an accepted path again; heads find its output.

    The texts are longer than a tile of keys, the trees wider than a group of rows, the first tree is in two chunks."""
    (network, other), same = two_of(kind, WIDE)
    network = with_shared_caches({"target": network}, [])["target"]
    model = Model(network, logits_themselves)
    rng = RNG(0)
    x = rng.integers(6, size=119)
    for _ in range(12):
        tree = random_tree(rng, int(rng.integers(40)))
        n = 1 + len(tree.tokens)
        for nodes in (None, rng.permutation(range(rng.integers(n), n)).tolist(), None):
            same(model.score_tree(x, tree, nodes), by_paths(other.logits)(x, tree, nodes))
        x = np.append(x, tree.path(int(rng.integers(n)))).astype(int)
        alone = Model(other, logits_themselves)
        alone(x)
        same(model.hidden_after(x), alone.hidden_after(x))
        assert model.hidden_after(np.append(x, 9)) is None
        x = np.append(x, rng.integers(6))
        same(network.logits(x), other.logits(x))
        x = np.append(x, 0)
        assert kind == "gpt2.py" or network.rows(x).n_read == 1


def sharing(networks):
    """A target and copies with quite other weights, which share its cache in one decode."""
    shared = SharedCache(networks[0])
    return [SharedNetwork(network, shared, rank) for rank, network in enumerate(networks)]


def call_a_target_and_its_copies(kind):
    """Texts, trees and interrupted passes in any order: the target's rows are those of an empty cache."""
    (target, other), same = two_of(kind)
    networks = sharing([target, *(two_of(kind, seed=rank)[0][0] for rank in (1, 2))])
    [target, *_] = networks
    rng = RNG(0)
    x = rng.integers(4, size=6)
    for _ in range(300):
        network = networks[rng.integers(3)]
        tree = random_tree(rng, int(rng.integers(8)))
        n_last = int(rng.integers(1, len(x) + 1))
        text = lambda one, x=x, n_last=n_last: one.logits(x, n_last)  # noqa: E731
        nodes = lambda one, x=x, tree=tree: one.tree_rows(x, tree, range(1 + len(tree.tokens))).logits  # noqa: E731
        call = text if rng.random() < 0.5 else nodes
        if rng.random() < 0.1:
            interrupt(network, call)
        elif network is target:
            rows = call(target)
            other.forget()
            same(rows, call(other))
        else:
            call(network)
        path = tree.path(int(rng.integers(1 + len(tree.tokens))))
        x = np.append(x, path).astype(int) if rng.random() < 0.7 else x[: rng.integers(2, len(x) + 1)]
        x = np.append(x, rng.integers(4, size=rng.integers(2)))[: HPARAMS["n_ctx"] - 8]


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_reads_nothing_that_its_copies_wrote(kind):
    call_a_target_and_its_copies(kind)


beside_copies = Mistakes()
feed_shared, restore = SharedNetwork.feed_shared, SharedCache.restore  # the right ones, which wrong twins call


@beside_copies.plant(call_a_target_and_its_copies, SharedNetwork, "feed_shared")
def lets_the_target_read_what_its_copies_wrote(self, x, n, n_last, parents=None):
    rows = feed_shared(self, x, n, n_last, parents)
    entries = self.shared.entries
    self.shared.hold(entries._replace(lengths=np.full_like(entries.lengths, len(x))))
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mistake", beside_copies, ids=str)
def test_a_mistake_beside_copies_is_seen(mistake, kind, monkeypatch):
    make(monkeypatch, mistake)
    with pytest.raises(AssertionError):
        mistake.seen_by(kind)


def test_a_path_that_a_copy_moves_is_not_its_targets():
    """A copy moves the key of a node of its own to where the target had another node."""
    (target, other), same = two_of("float32")
    [copy, _], _ = two_of("float32", seed=1)
    target, copy = sharing([target, copy])
    tree = Tree("")
    for network, parent, token in ((target, 0, 7), (target, 1, 7), (copy, 0, 8)):
        tree.add(parent, token, None)
        network.tree_rows(np.arange(3), tree, [len(tree.tokens)])
    copy.logits(np.array([0, 1, 2, 8, 9]))
    x = np.array([0, 1, 2, 8, 9, 3])
    same(target.logits(x), other.logits(x))


def decode_at_random(networks, seed, rows):
    """Call the models of one decode in any order, on texts and trees; yield before each call."""
    models = [Model(network, logits_themselves) for network in sharing(networks)]
    rng = RNG(seed)
    x = np.arange(6) % 4
    for _ in range(40):
        yield
        model = models[rng.integers(3)]
        tree = random_tree(rng, int(rng.integers(6)))
        if rng.random() < 0.5:
            rows.append(model(x, int(rng.integers(1, 4))))
            x = np.append(x, rng.integers(4, size=rng.integers(3)))
        else:
            rows.append(model.score_tree(x, tree, [int(rng.integers(1 + len(tree.tokens)))]))
            x = np.append(x, tree.path(int(rng.integers(1 + len(tree.tokens))))).astype(int)
        x = x[: rng.integers(3, 20)]


def decode_beside_another(kind, seed):
    """The rows of a decode, on caches that it has to itself, and on those that another decode uses meanwhile."""
    alone, beside, others = [], [], []
    for rows, more in ((alone, []), (beside, [seed + 1000])):
        networks = [two_of(kind, seed=rank)[0][0] for rank in range(3)]
        decodes = [decode_at_random(networks, seed, rows), *(decode_at_random(networks, one, others) for one in more)]
        rng = RNG(seed)
        while decodes:
            if more and rng.random() < 0.1:
                networks[0].forget()
            decode = decodes[rng.integers(len(decodes))]
            if next(decode, "ended") == "ended":
                decodes.remove(decode)
    return alone, beside


def differ(kind="float32"):
    """Whether rows of these decodes depend on others beside them."""
    both = (decode_beside_another(kind, seed) for seed in range(6))
    return any(not all(map(np.array_equal, alone, beside)) for alone, beside in both)


def test_the_rows_of_a_decode_do_not_depend_on_the_decodes_beside_it():
    """Those of a copy either, which reads what others wrote to the cache of its target."""
    assert not differ()


beside_decodes = Mistakes()


@beside_decodes.plant(differ, SharedCache, "restore")
def restores_nothing(self, reader, x):
    if self.contents.writer is not self:
        self.entries = entries_of_target(self.contents.tokens)
        self.contents.writer = self


@beside_decodes.plant(differ, SharedCache, "restore")
def restores_what_the_target_wrote_alone(self, reader, x):
    networks = self.networks
    self.networks = [network for network in networks if network.rank == 0]
    restore(self, reader, x)
    self.networks = networks


@pytest.mark.parametrize("mistake", beside_decodes, ids=str)
def test_a_mistake_beside_decodes_is_seen(mistake, monkeypatch):
    make(monkeypatch, mistake)
    assert mistake.seen_by()


def interrupt(network, call):
    """Interrupt a call when its pass has written into the cache, or has moved an accepted path there."""

    def interrupted(function):
        def run(*args):
            function(*args)
            raise KeyboardInterrupt

        return run

    forward, move = network.forward, getattr(network.cache, "move", None)
    network.forward = interrupted(forward)
    network.forward.takes_trees = forward.takes_trees
    if move:
        network.cache.move = interrupted(move)
    with pytest.raises(KeyboardInterrupt):
        call(network)
    network.forward = forward
    if move:
        network.cache.move = move


@pytest.mark.parametrize(("n", "n_last"), [(0, 1), (3, 4), (HPARAMS["n_ctx"] + 1, 1)])
def test_a_text_that_does_not_fit_is_an_error(networks, n, n_last):
    (network, _), _ = networks
    with pytest.raises(ValueError, match=r"tokens|no token"):
        network.logits(np.zeros(n, int), n_last)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_one_line_with_their_position(row, value):
    logits = np.zeros((3, 50), np.float32)  # [n, n_vocab]
    logits[:, 7] = -np.inf  # a probability of 0
    check_finite(logits, "the target", 11)
    logits[row, 30] = value
    line = refusal(check_finite, logits, "the target", 11)
    assert line.startswith(f"the target gives logits that are not finite, at position {11 + row}: its weights are")


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    "words", ["", "--temperature=0.7 --top_p=0.9", "--K=auto", "--tree=2,2", "--drafter=int8/model", "--verify"]
)
def test_damaged_weights_end_a_run_in_one_line(role, words, command, tiny_pair, tmp_path):
    """Finite weights that are too large to compute with."""
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    path = models / role / "model.safetensors"
    arrays = load_file(path)
    arrays["h.0.attn.c_attn.weight"][:, 0] = np.float32(3e38)  # queries become infinite, and scores NaN
    save_file(arrays, path)
    pair = [f"--models_dir={models}", "--target_model_size=target", "--draft_model_size=draft", "--threads=1"]
    status, _, err = command(*pair, "--prompt=the thing", "--n_tokens_to_generate=8", *words.split())
    assert status == 2
    assert f"error: the {role} {role} gives logits that are not finite, at position " in err.splitlines()[-1]


@pytest.mark.parametrize("words", ["--dtype=float16", "--draft_dtype=float16 --engine=numpy", "--drafter=float16"])
def test_weights_beyond_float16_are_one_line_that_names_bfloat16(words, command, tiny_pair, tmp_path):
    models = shutil.copytree(tiny_pair, tmp_path / "models")
    role = "draft" if "draft_dtype" in words else "target"
    path = models / role / "model.safetensors"
    arrays = load_file(path)
    arrays["h.0.mlp.c_fc.weight"][:, 0] = 65520
    save_file(arrays, path)
    pair = [f"--models_dir={models}", "--target_model_size=target", "--draft_model_size=draft"]
    status, _, err = command(*pair, "--prompt=the thing", *words.split())
    line = "error: tensor h0/mlp/c_fc/w has numbers beyond 65,504, the last of float16: --dtype bfloat16 holds them"
    assert (status, err.splitlines()[-1]) == (2, line)
    assert command(*pair, "--prompt=the", "-n", "2", *words.replace("float16", "bfloat16").split())[0] == 0

"""A mixture of experts, where a window reads more weights than a row; and a router that is trained, for real routing.

This is what python -m benchmarks.assumption experts and router measure. A feed-forward of E experts sends each row to k
of them, and reads only the experts that some row is sent to. One row touches k, a window of several rows touches more.
So scoring a window no longer costs what scoring a token does.

Source: Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer"; the loss
that keeps the experts' shares even is that of Fedus et al. 2021, "Switch Transformers", equation 4.
"""

from collections import defaultdict
from functools import partial
from itertools import product
from statistics import median

import numpy as np

from benchmarks.common import MODELS, PROMPTS
from benchmarks.ladder import in_registers
from benchmarks.sweep import INK
from benchmarks.tables import seconds
from gpt2 import ffn, layer_norm, mha, softmax
from plumbing import texts
from speculative.engines import kernels, packed, plain, runtime
from speculative.filters import to_distribution
from speculative.measure.analysis import largest_beta
from speculative.sampling import autoregressive_sampling
from utils import load_encoder_hparams_and_params

N_TEXT = 200  # tokens of a text that the router learns on
ROUTED = [8, 16]  # experts
K_ROUTED = 2  # of them, to which a row is sent
STEPS = 600  # in which a router learns
BATCHES = (4, 16, 32)
EVEN = 0.01  # the weight of the loss that keeps the shares even, as in Switch Transformers


def expected_experts(E, k, n_rows):
    """E (1 - (1 - k / E)^n_rows): a row misses an expert with chance 1 - k / E, and all rows with that to the power of
    n_rows. Divided by k it is the β of the feed-forward, if reading the experts is all that takes time."""
    return E * (1 - (1 - k / E) ** n_rows)


def route(x, router, k):  # [n_seq, n_embd], [n_embd, E] -> [n_seq, k] ids of experts, [n_seq, k] their weights
    """Each row goes to the k experts with its largest logits; their shares add up to 1."""
    logits = x @ router  # [n_seq, E]
    chosen = np.argsort(-logits, axis=-1)[:, :k]  # [n_seq, k]
    return chosen, softmax(np.take_along_axis(logits, chosen, -1))


def mixture(x, router, experts, k):  # [n_seq, n_embd] -> [n_seq, n_embd]
    """Stands in for gpt2.ffn: experts with an ffn's parameters each, of which only the chosen ones are read."""
    chosen, shares = route(x, router, k)
    out = np.zeros_like(x)  # [n_seq, n_embd]
    for e in np.unique(chosen):
        rows, places = np.nonzero(chosen == e)  # [n] twice
        out[rows] += shares[rows, places, None] * ffn(x[rows], **experts[e])
    return out


def n_distinct(chosen, n_rows):  # [n_seq, k] -> [n_windows], how many experts each n_rows rows in a row touch
    windows = np.stack([chosen[i : i + n_rows].ravel() for i in range(len(chosen) - n_rows + 1)])  # [n_windows, ...]
    windows = np.sort(windows, axis=-1)
    return 1 + np.count_nonzero(np.diff(windows, axis=-1), axis=-1)


class OneThread(packed.PackedWeight):
    """A float32 weight whose x @ w reads it once, at the speed of the memory, for any number of rows. (NumPy's takes
    several times as long for several rows.)"""

    def __rmatmul__(self, x):  # [n_rows, n_in] -> [n_rows, n_out]
        n_in, n_out = self.shape
        padded = packed.aligned((len(x), self.n_steps * kernels.x_bytes(self.format) // 4), np.float32)  # [n_rows, ...]
        padded[:, :n_in] = x
        padded[:, n_in:] = 0
        out = packed.aligned((len(self.tiles), len(x), kernels.LANES), np.float32)  # [n_tiles, n_rows, lanes]
        tiles = self.tiles.ctypes.data, len(self.tiles), self.tiles[0].nbytes
        here = (padded.ctypes.data, padded.strides[0], *tiles, out.ctypes.data, self.n_steps)
        in_registers(kernels.kernels_of(self.dtype).multiply.address, len(x), *here)
        return out.transpose(1, 0, 2).reshape(len(x), -1)[:, :n_out]


def random_experts(E, rng, n_embd, n_hidden, weight=OneThread.packed):
    """-> (router [n_embd, E], experts). The router's columns are orthogonal and of one length, so random rows go to all
    experts equally often."""

    def linear(n_in, n_out):
        w = rng.standard_normal((n_in, n_out), np.float32) / np.float32(n_in**0.5)
        return {"w": weight(w), "b": np.zeros(n_out, np.float32)}

    router, _ = np.linalg.qr(rng.standard_normal((n_embd, E)))
    experts = [{"c_fc": linear(n_embd, n_hidden), "c_proj": linear(n_hidden, n_embd)} for _ in range(E)]
    return router.astype(np.float32), experts


# ---- A router that learns --------------------------------------------------------------------------------------------


def texts_of(model, prompts, n_texts, rng):  # -> [[n_tokens] ids, ...], which a model writes after its prompts
    xs = [prompts[i % len(prompts)] for i in range(n_texts)]
    return [
        np.append(x, [step.tokens[0] for step in autoregressive_sampling(x, model, N_TEXT - len(x), rng)]).astype(int)
        for x in xs
    ]


def into_ffn(params, n_head, layer, x):  # [n_seq] -> [n_seq, n_embd], what the feed-forward of a layer is given
    blocks = params["blocks"]
    x = params["wte"][x] + params["wpe"][: len(x)]  # [n_seq, n_embd]
    for block in blocks[:layer]:
        x = x + mha(layer_norm(x, **block["ln_1"]), **block["attn"], n_head=n_head)
        x = x + ffn(layer_norm(x, **block["ln_2"]), **block["mlp"])
    block = blocks[layer]
    x = x + mha(layer_norm(x, **block["ln_1"]), **block["attn"], n_head=n_head)
    return layer_norm(x, **block["ln_2"])


def learn(x, y, E, k, steps, seed=0, n_batch=256):  # [n, n_embd] twice -> router [n_embd, E], the last step's loss
    """Teaches a mixture of E experts to give y for x. Each has 4 n_embd / k hidden units, so that the k experts of a
    row
    together have as many as the feed-forward that they replace."""
    import jax
    import jax.numpy as jnp

    from training.fit import make_train_step

    rng = np.random.default_rng(seed)
    n_embd = x.shape[1]
    n_hidden = 4 * n_embd // k

    def random(*shape):
        return (rng.standard_normal(shape) / shape[-2] ** 0.5).astype(np.float32)

    params = {"router": random(n_embd, E), "c_fc": random(E, n_embd, n_hidden), "c_proj": random(E, n_hidden, n_embd)}
    params |= {"b_fc": np.zeros((E, 1, n_hidden), np.float32), "b": np.zeros(n_embd, np.float32)}
    variance = float(np.var(y, axis=0).sum())

    def loss(params, batch):
        x, y = batch
        logits = x @ params["router"]  # [n, E]
        least = jax.lax.top_k(logits, k)[0][:, -1:]  # [n, 1]
        chosen = logits >= least  # [n, E]
        shares = jax.nn.softmax(jnp.where(chosen, logits, -jnp.inf))  # [n, E]
        a = jax.nn.gelu(jnp.einsum("ni,eih->enh", x, params["c_fc"]) + params["b_fc"])  # [E, n, n_hidden]
        out = jnp.einsum("enh,eho,ne->no", a, params["c_proj"], shares) + params["b"]  # [n, n_embd]
        even = E * (chosen.mean(0) / k * jax.nn.softmax(logits).mean(0)).sum()  # 1 where all shares are the same
        return ((out - y) ** 2).sum(-1).mean() / variance + EVEN * even

    optimizer, train_step = make_train_step(loss, steps, 2e-3)
    state = (jax.tree.map(jnp.array, params), optimizer.init(params))
    value = None
    for _ in range(steps):
        rows = rng.integers(len(x), size=n_batch)
        state, value = train_step(state, (x[rows], y[rows]))
    return np.asarray(state[0]["router"]), float(value)


# ---- What is measured ------------------------------------------------------------------------------------------------


def measure_experts(o, model):
    """Of the widths of 124M: 18.9 MB an expert in float32, so 8 are 151 MB."""
    n_embd = model("124M", 12, lambda name, array: array)[1]["n_embd"]
    rng = np.random.default_rng(0)
    found = []
    rows = [*range(1, 10)]
    windows = [(1, n) for n in rows] + [(B, n) for B in BATCHES for n in (1, o.K + 1)]
    for E in ROUTED:
        router, weights = random_experts(E, rng, n_embd, 4 * n_embd)
        times, same, touched = (defaultdict(list) for _ in range(3))
        for _, (B, n) in product(range(4 * o.rounds), windows):
            x = rng.standard_normal((B * n, n_embd), np.float32)  # [B*n, n_embd]
            alike = np.tile(x[:1], (B * n, 1))  # all to the same experts, as in a feed-forward without routing
            times[B, n].append(seconds(partial(mixture, x, router, weights, K_ROUTED)))
            same[B, n].append(seconds(partial(mixture, alike, router, weights, K_ROUTED)))
            touched[B, n].append(len(np.unique(route(x, router, K_ROUTED)[0])))
        for B, n in windows:
            if B > 1 and n == 1:
                continue
            expected = expected_experts(E, K_ROUTED, B * n)
            row = {"E": E, "B": B, "rows": n, "formula": expected, "counted": float(np.mean(touched[B, n]))}
            row["predicted"] = expected / expected_experts(E, K_ROUTED, B)
            row["beta"], row["same"] = (median(np.divide(t[B, n], t[B, 1])) for t in (times, same))
            found.append(row)
    return found, "E B rows experts=formula:.2f counted:.2f β=predicted:.2f measured=beta:.2f same_experts=same:.2f"


def plot_experts(rows, o, axes):
    [panel] = axes
    for color, E in zip(("C0", "C1"), ROUTED, strict=True):
        of = [row for row in rows if row["E"] == E and row["B"] == 1]
        n_rows = [row["rows"] for row in of]
        panel.plot(n_rows, [row["beta"] for row in of], color=color, label=f"{E} experts, measured")
        panel.plot(n_rows, [row["predicted"] for row in of], color=color, marker="", linestyle=":")
    panel.plot([], [], color=INK, marker="", linestyle=":", label="how many more a window touches, by formula")
    panel.plot(n_rows, [row["same"] for row in of], color="C2", label="all rows to the same two")
    most = [largest_beta(2 / 3, n - 1, 0.01) for n in n_rows]
    panel.plot(n_rows, most, color=INK, marker="", linestyle="--", label="largest β that pays: α = 2/3, c = 0.01")
    panel.set(xlabel="rows of a window", ylabel="β", xticks=n_rows, ylim=(0, None), title="Top-2 of random experts")
    panel.legend(fontsize=8)


def measure_router(o, model):
    encoder, hparams, params = load_encoder_hparams_and_params("tiny-target", str(MODELS))
    model = plain.CachedModel(packed.pack(params, packed.packer("float32")), hparams, to_distribution, runtime.new_pass)
    prompts = [encoder.encode(prompt) for prompt in texts.read_prompts(PROMPTS["prose"], 20)]
    rng = np.random.default_rng(0)
    layer = hparams["n_layer"] // 2
    into = partial(into_ffn, params, hparams["n_head"], layer)
    learned_on = np.concatenate([into(x) for x in texts_of(model, prompts[:10], 60, rng)])  # [n, n_embd]
    tested_on = [into(x) for x in texts_of(model, prompts[10:], 20, rng)]
    y = ffn(learned_on, **params["blocks"][layer]["mlp"])
    found = []
    for E in ROUTED:
        router, _ = learn(learned_on, y, E, K_ROUTED, STEPS)
        chosen = [route(x, router, K_ROUTED)[0] for x in tested_on]  # [n_seq, k] of each text
        shuffled = rng.permutation(np.concatenate(chosen))
        shares = np.bincount(shuffled.ravel(), minlength=E) / shuffled.size
        for n in range(1, 10):
            row = {"E": E, "rows": n, "formula": expected_experts(E, K_ROUTED, n), "largest": E * shares.max()}
            row["shuffled"] = np.mean(n_distinct(shuffled, n))
            row["text"] = np.mean(np.concatenate([n_distinct(of, n) for of in chosen]))
            found.append(row | {"beta": row["text"] / K_ROUTED, "off": row["text"] / row["formula"] - 1})
    columns = "E rows formula:.2f rows_shuffled=shuffled:.2f text:.2f β=beta:.2f off:+.0% largest_share_×_E=largest:.2f"
    return found, columns


def plot_router(rows, o, axes):
    for E, panel in zip(ROUTED, axes, strict=True):
        of = [row for row in rows if row["E"] == E]
        labels = {"formula": "formula: even and independent", "shuffled": "learned, rows of the text shuffled"}
        for name, label in (labels | {"text": "learned, the text as it is"}).items():
            panel.plot([row["rows"] for row in of], [row[name] for row in of], label=label)
        panel.set(xlabel="rows of a window", ylabel="distinct experts", title=f"{E} experts", ylim=(0, None))
        panel.legend(fontsize=8)


if __name__ == "__main__":
    from plumbing import exits

    exits.fail("error: this is measured by python -m benchmarks.assumption experts", 2)

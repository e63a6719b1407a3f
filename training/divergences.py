"""The distance of the draft's distribution p from the target's q: four divergences that a draft can learn to reduce.

    kl           KL(q ‖ p) = Σ q log(q / p)        from the target to the draft ("forward")
    reverse_kl   KL(p ‖ q) = Σ p log(p / q)        from the draft to the target
    jsd          (KL(q ‖ m) + KL(p ‖ m)) / 2       from both to their middle, m = (p + q) / 2
    tvd          Σ |p - q| / 2 = 1 - α             the same in both directions

kl is large where the target has a token that the draft lacks. A draft that learns by it covers all of the target, and
is too broad. reverse_kl is large where the draft has a token that the target lacks. Such a draft keeps to what it can
match, and is too narrow. jsd lies between them and is at most log 2. tvd is the chance that a drafted token is rejected
(Leviathan et al. 2023, section 3.2). Its gradient knows only on which side of q each p lies, and fades where p is
nearly 0.

The gradients are those of the divergence at the tokens of a given text. If the draft wrote the text, that is not the
gradient of the expected divergence. A change of the draft also changes what it writes:

    d/dθ E[D(x)] = E[dD(x)/dθ] + E[D(x) d log p(x)/dθ],   x drawn from p

The second term is left out, since it is noisy and would need many samples. So the draft learns to do better on the text
that it writes, and never to write text on which it does better. (Agarwal et al. 2023, section 3, leave it out
too; Zhou et al. 2023 name these four, tvd in a form with less noise.)
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

TINY = float(np.finfo(np.float32).tiny)  # stands for a probability that float32 rounds to 0


def kl(log_p, q):  # [n, n_vocab] twice -> [n], nats
    return (xlogy(q, q) - q * log_p).sum(-1)


def reverse_kl(log_p, q):  # [n, n_vocab] twice -> [n], nats
    return (jnp.exp(log_p) * (log_p - jnp.log(jnp.maximum(q, TINY)))).sum(-1)


def jsd(log_p, q):  # [n, n_vocab] twice -> [n], nats
    p = jnp.exp(log_p)  # [n, n_vocab]
    log_m = jnp.log(jnp.maximum((p + q) / 2, TINY))  # [n, n_vocab]
    return (xlogy(q, q) - q * log_m + p * (log_p - log_m)).sum(-1) / 2


def tvd(log_p, q):  # [n, n_vocab] twice -> [n], from 0 to 1
    return abs(jnp.exp(log_p) - q).sum(-1) / 2


DIVERGENCES = {"kl": kl, "reverse_kl": reverse_kl, "jsd": jsd, "tvd": tvd}

"""The functions of gpt2.py on single numbers and rows, compiled: the exponential, GELU, layer norm, and their sums."""

import math
from functools import partial

import numpy as np
from numba import njit

# For functions that only compiled code calls. The wrappers by which Python could call them make compiling take a third
# longer.
compiled_only = partial(njit, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

F = np.float32
LOG2_E = F(1 / math.log(2))
LN_2_HIGH = F(355 / 512)  # ln 2 in two parts: a whole number up to 2**15 times this one is exact,
LN_2_LOW = F(math.log(2) - 355 / 512)  # and this one is small
SQRT_2_OVER_PI = F(math.sqrt(2 / math.pi))
SQRT_HALF = F(math.sqrt(0.5))


@compiled_only
def exp(x):
    """e**x for float32 x <= 0, to 3 in 10 million; 0 below -87. The same steps for every x, so loops vectorise.

    x = n ln 2 + r with a whole n and |r| <= ln 2 / 2: e**r by its series, 2**n by writing n into the exponent's bits.
    """
    n = np.floor(x * LOG2_E + F(0.5))
    r = x - n * LN_2_HIGH - n * LN_2_LOW
    series = F(1 / 720) + r * F(1 / 5040)
    series = F(1 / 120) + r * series
    series = F(1 / 24) + r * series
    series = F(1 / 6) + r * series
    series = F(0.5) + r * series
    series = F(1) + r * series
    series = F(1) + r * series
    power = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return F(0) if x < F(-87) else series * power


@compiled_only
def gelu(x):
    """0.5 (1 + tanh(z)) is 1 / (1 + e**(-2z)), or e**(2z) / (1 + e**(2z)): of these, that with the exponent below 0."""
    z = SQRT_2_OVER_PI * (x + F(0.044715) * x * x * x)
    e = exp(F(-2) * abs(z))
    return x * (F(1) if z > 0 else e) / (F(1) + e)


@compiled_only
def gelu_by_erf(x):
    """x times the chance that a normal variable is below it, to 7 in 10 million, by the rational approximation of the
    error function in Abramowitz and Stegun 1964, 7.1.26."""
    z = SQRT_HALF * abs(x)
    t = F(1) / (F(1) + F(0.3275911) * z)
    series = F(-1.453152027) + t * F(1.061405429)
    series = F(1.421413741) + t * series
    series = F(-0.284496736) + t * series
    series = F(0.254829592) + t * series
    beyond = F(0.5) * t * series * exp(-z * z)  # the chance that it is above |x|
    return x * (F(1) - beyond if x > 0 else beyond)


@compiled_only(fastmath={"reassoc", "nsz"})
def total(x):
    """The sum, in an order that the length alone decides."""
    result = F(0)
    for i in range(len(x)):
        result += x[i]
    return result


@compiled_only(fastmath={"reassoc", "nsz"})
def total_of_squares(x):
    result = F(0)
    for i in range(len(x)):
        result += x[i] * x[i]
    return result


@compiled_only(fastmath={"nnan", "nsz"})
def largest(x):
    result = F(-np.inf)
    for i in range(len(x)):
        result = max(result, x[i])
    return result


@compiled_only
def layer_norm(x, g, b, out):
    """One row."""
    n = len(x)
    mean = total(x) / F(n)
    for i in range(n):
        out[i] = x[i] - mean
    deviation = F(math.sqrt(total_of_squares(out) / F(n) + F(1e-5)))
    for i in range(n):
        out[i] = g[i] * (out[i] / deviation) + b[i]

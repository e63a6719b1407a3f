"""A model on one device, or split over several as in Megatron.

Source: Shoeybi et al. 2019, "Megatron-LM"; section 4.1 of Chen et al. 2023 runs its models like this.

Each of several devices has some of the heads and some of the hidden units of every layer: a share of the columns of
c_attn and c_fc, and the rows of the two c_proj that belong to them. It computes a sum over its own heads or units, and
the sums of all devices are added up: two all-reduces a layer, which the compiler adds. Every device computes all the
rest, which is small, for itself; it also samples, with the same random numbers as the others.

- If the number of heads is not a multiple of the devices', heads of zeros are added, whose values are 0, and so is
  their part of the output. 1558M has 25 heads: 26 on 2 devices (13 each), 28 on 4 (7), 32 on 8 (4).
- wte, a third of all bytes for 124M, is split by its n_embd columns and not by tokens: 50257 tokens cannot be divided,
  768 and 1600 columns can. Looking up is then an all-gather of a few rows, and the logits are one more all-reduce.
- wpe, the biases after an all-reduce and the layer norms are on every device.
- Each device has all of the draft: all-reduces would take longer than reading its layers (section 6 of the paper).
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from speculative.engines import formats
from speculative.engines.jax.compilation import devices
from speculative.engines.jax.model import SMALL, DeviceNetwork, Matrix
from speculative.support.errors import Option, UserError

# Which axis of which tensor is split. c_attn is kept as [n_embd, 3, n_head, d_head] (its bias without the first), as a
# device's share of its columns is not contiguous.
SPLIT_AXIS = {"wte": 1, "mlp/c_fc/w": 1, "mlp/c_fc/b": 0, "mlp/c_proj/w": 0}
SPLIT_AXIS |= {"attn/c_attn/w": 2, "attn/c_attn/b": 1, "attn/c_proj/w": 0}


def make_mesh(n_model: int, n_data: int = 1) -> Mesh:
    """n_data copies of the models, each split over n_model neighbouring devices. Raises UserError if there are fewer
    devices, or if a process has none of them."""
    flags = [Option("mesh"), f" {n_model}"]
    if n_data > 1:
        flags += [" ", Option("data_parallel"), f" {n_data}"]
    grid = np.array(devices(n_model * n_data, *flags)).reshape(n_data, n_model)
    mesh = Mesh(grid, ["data", "model"])
    processes = {device.process_index for device in mesh.devices.flat}
    if len(processes) < jax.process_count():
        raise UserError(
            *flags, " leaves some processes without a device: ", Option("mesh"), f" {jax.device_count()} takes all"
        )
    return mesh


def new_network(hparams: dict, dtype: str, mesh: Mesh, split: bool) -> DeviceNetwork:
    """Return a DeviceNetwork for the devices of the mesh, still without parameters. Each tensor is placed as soon as it
    is read, so the host never holds the model.

    dtype: the format of the matrices, which decides those of the cache and the activations; biases, norms and wpe stay
    in float32. split: over the devices of a model, or all of it on each. Raises UserError if it cannot be split, and if
    JAX does not take the format.
    """
    n_devices = mesh.shape["model"]
    n_padded = hparams["n_head"]
    if split:
        check_widths(hparams, n_devices)
        n_padded = -(-n_padded // n_devices) * n_devices  # the next multiple
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    needs = formats.on_jax(dtype)
    computed = jnp.dtype(needs.computed_on_cpu if on_cpu else needs.computed)
    return DeviceNetwork({}, hparams, n_padded, computed, mesh, split, least_rows(on_cpu, computed))


def check_widths(hparams: dict, n_devices: int) -> None:
    """Raise UserError if a width of the model does not divide into the devices'."""
    n_embd = hparams["n_embd"]
    for width in (n_embd, hparams.get("n_inner", 4 * n_embd)):
        if width % n_devices:
            raise UserError(Option("mesh"), f" {n_devices} cannot split a width of {width}: take a divisor of it")


def least_rows(on_cpu: bool, computed: np.dtype) -> int:
    """Return the number of rows that a call should compute at least.

    On a GPU, XLA multiplies a single row as a vector, by more kernels. Eight rows of float32 take less time than two,
    also than five: 3.98, 5.05 and 4.72 ms of 1558M on an H200.
    """
    if on_cpu:
        return 1
    return SMALL if computed == jnp.float32 else 2


def placed(network: DeviceNetwork, needs: formats.OnJax, name: str, a: np.ndarray) -> Any:
    """Return a parameter on the devices: a Matrix, or an array of float32."""
    name = re.sub(r"^h\d+/", "", name)
    axis = None
    if network.split:
        axis = SPLIT_AXIS.get(name)
        a = pad_heads(name, a, network.hparams["n_head"], network.n_head)
    if name != "wte" and not name.endswith("/w"):
        return put(network, a, axis)
    formats.check_range(name, a, needs.stored)
    scale = None
    if needs.quantise:
        axis_in = 1 if name == "wte" else 0  # as x is multiplied by wte.T
        a, scale = needs.quantise(a, axis_in)
        of_scale = None if axis in (None, axis_in) else axis - 1
        scale = put(network, scale, of_scale)
    stored = put(network, a.astype(jnp.dtype(needs.stored)), axis)
    # The factor of the two c_proj is split already, and the product of c_attn and c_fc stays split.
    of_input = None if name.endswith("c_proj/w") else network.everywhere
    of_output = None if name.endswith(("c_attn/w", "c_fc/w")) else network.everywhere
    return Matrix(stored, scale, network.dtype, of_input, of_output)


def put(network: DeviceNetwork, a: np.ndarray, axis: int | None) -> Any:
    """Place an array on the devices, split along an axis, or whole on each."""
    sharding = network.everywhere
    if axis is not None:
        sharding = NamedSharding(network.mesh, PartitionSpec(*[None] * axis, "model"))
    return jax.make_array_from_callback(a.shape, sharding, a.__getitem__)  # only the parts on this machine


def pad_heads(name, a, n_head, n_padded):
    """A parameter of mha, with its heads as an axis and with heads of zeros added; any other as it is."""
    n_more = n_padded - n_head
    if name.startswith("attn/c_attn"):
        a = a.reshape(*a.shape[:-1], 3, n_head, -1)  # [n_embd, 3, n_head, d_head], or the bias without n_embd
        others = [(0, 0)] * (a.ndim - 2)
        return np.pad(a, [*others, (0, n_more), (0, 0)])
    if name == "attn/c_proj/w":
        d_head = len(a) // n_head
        return np.pad(a, [(0, n_more * d_head), (0, 0)])  # [n_padded*d_head, n_embd]
    return a

"""The weights of a run against the network that run.json names: every tensor's name, type and shape, and nothing else.

A table of the package's networks, written from their description in docs/formats/run.md and not from their code: no torch is
needed, and nothing is built, however large the sizes in run.json are.

Guarantees
    Weights pass only if they are exactly the tensors of the named network for the data's shape and classes, of that width,
    with the noise layers that ``config`` names. Whatever run.json holds ends in problems, never in an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import is_positive_count, whole
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_model import FILE
from twinproof.auditing.verify_run_json import FILE as RUN_JSON

OWN = "own:"
# Tensors that are named one by one; the rest are counted.
NAMED_TENSORS = 5
MOST_AXES = 8

Shape = tuple[int, ...]
Tensors = dict[str, tuple[str, Shape]]
"""Type and shape by name, in the words of safetensors."""


@dataclass(frozen=True)
class Described:
    """A network without noise: its tensors, and the shape of its first linear layer's output (None where it has none)."""

    tensors: Tensors
    first: Shape | None


class Misfit(Exception):
    """A network that does not exist: unknown, or too small an image."""


def linear(name: str, inputs: int, outputs: int) -> Tensors:
    """A linear layer with its bias."""
    return {f"{name}.weight": ("F32", (outputs, inputs)), f"{name}.bias": ("F32", (outputs,))}


def convolution(name: str, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> Tensors:
    """A convolution with square kernels."""
    weight: Tensors = {f"{name}.weight": ("F32", (outputs, inputs, kernel, kernel))}
    return {**weight, f"{name}.bias": ("F32", (outputs,))} if bias else weight


def norm(name: str, size: int) -> Tensors:
    """Scale and shift of a normalisation."""
    return {f"{name}.{part}": ("F32", (size,)) for part in ("weight", "bias")}


def _image(shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise Misfit(f"images of at least {smallest}x{smallest}")
    return shape[0], shape[1], shape[2]


def _halved(size: int) -> int:
    """What a stride of 2 leaves of a side, with padding of half the kernel."""
    return -(-size // 2)


def _mlp(shape: Shape, classes: int, width: int) -> Described:
    hidden = 64 * width
    return Described(linear("1", math.prod(shape), hidden) | linear("3", hidden, classes), (hidden,))


def _small_cnn(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 4)
    maps, hidden = 16 * width, 32 * width
    tensors = (
        convolution("0", channels, maps, 3)
        | convolution("2", maps, 2 * maps, 3)
        | linear("5", 2 * maps * _halved(height) * _halved(across), hidden)
        | linear("7", hidden, classes)
    )
    return Described(tensors, (maps, height, across))


def _tramer_boneh_cnn(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 1)

    def first(size: int) -> int:
        return (size - 4) // 2 + 1  # kernels of 8, stride 2, padding 2

    def last(size: int) -> int:
        return (first(size) - 1 - 4) // 2  # a pool of 2 at stride 1, kernels of 4 at stride 2, the pool again

    if min(last(height), last(across)) < 1:
        raise Misfit("images of at least 20x20")
    maps, hidden = 16 * width, 32 * width
    tensors = (
        convolution("0", channels, maps, 8)
        | convolution("3", maps, 2 * maps, 4)
        | linear("7", 2 * maps * last(height) * last(across), hidden)
        | linear("9", hidden, classes)
    )
    return Described(tensors, (maps, first(height), first(across)))


def _gelu_cnn(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 8)
    maps = 16 * width
    tensors = (
        convolution("0", channels, maps, 7, bias=False)
        | norm("1", maps)
        | convolution("3", maps, 2 * maps, 3, bias=False)
        | norm("4", 2 * maps)
        | convolution("6", 2 * maps, 4 * maps, 3, bias=False)
        | norm("7", 4 * maps)
        | linear("10", 4 * maps * -(-height // 8) * -(-across // 8), classes)
    )
    return Described(tensors, (maps, _halved(height), _halved(across)))


def _scatter_cnn(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 8)
    maps, hidden = 16 * width, 32 * width
    filters: Tensors = {"0.fine": ("F32", (16, 1, 9, 9)), "0.coarse": ("F32", (16, 4, 9, 9)), "0.scale": ("F32", (81, 1, 1))}
    for name, size in (("rows", height), ("columns", across)):
        filters[f"0.{name}_from_full"] = ("F32", (-(-size // 4), size))
        filters[f"0.{name}_from_half"] = ("F32", (_halved(_halved(size)), _halved(size)))
    tensors = (
        filters
        | convolution("1", 81 * channels, maps, 3)
        | convolution("3", maps, 2 * maps, 3)
        | linear("6", 2 * maps * -(-height // 8) * -(-across // 8), hidden)
        | linear("8", hidden, classes)
    )
    return Described(tensors, None)


def _stobatch_cnn(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 4)
    maps, units = 32 * width, 256 * width
    rows, columns = (_halved(_halved(size) // 2) for size in (height, across))
    tensors = (
        convolution("0", channels, maps, 5)
        | norm("1", maps)
        | convolution("4", maps, 2 * maps, 5)
        | linear("7", 2 * maps * rows * columns, units)
        | norm("8", units)
        | linear("10", units, classes)
    )
    return Described(tensors, (maps, _halved(height), _halved(across)))


def _wide_resnet(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 8)
    tensors, before = convolution("0", channels, 16, 3, bias=False), 16
    for number in range(6):  # three stages of two blocks
        maps, block = 64 * width * 2 ** (number // 2), str(number + 1)
        tensors |= norm(f"{block}.norm1", before) | convolution(f"{block}.conv1", before, maps, 3, bias=False)
        tensors |= norm(f"{block}.norm2", maps) | convolution(f"{block}.conv2", maps, maps, 3, bias=False)
        if number in (2, 4) or before != maps:
            tensors |= convolution(f"{block}.shortcut", before, maps, 1, bias=False)
        before = maps
    return Described(tensors | norm("7", before) | linear("11", before, classes), (16, height, across))


def _resnet(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 8)
    before = 64 * width
    tensors = convolution("0", channels, before, 3, bias=False) | norm("1", before)
    for number in range(8):  # four stages of two blocks
        maps, block = 64 * width * 2 ** (number // 2), str(number + 3)
        tensors |= convolution(f"{block}.conv1", before, maps, 3, bias=False) | norm(f"{block}.norm1", maps)
        tensors |= convolution(f"{block}.conv2", maps, maps, 3, bias=False) | norm(f"{block}.norm2", maps)
        if before != maps:
            tensors |= convolution(f"{block}.shortcut.0", before, maps, 1, bias=False) | norm(f"{block}.shortcut.1", maps)
        before = maps
    return Described(tensors | linear("13", before, classes), (64 * width, height, across))


def _small_vit(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 8)
    if height % 4 or across % 4:
        raise Misfit("images with sides that are multiples of 4")
    size, patches = 128 * width, (height // 4) * (across // 4)
    tensors = convolution("0.embed", channels, size, 4) | {"0.position.weight": ("F32", (patches, size))}
    for block in map(str, range(1, 7)):
        tensors |= norm(f"{block}.norm1", size) | norm(f"{block}.norm2", size)
        for part in ("query", "key", "value", "out"):
            tensors |= linear(f"{block}.attention.{part}", size, size)
        tensors |= linear(f"{block}.expand", size, 4 * size) | linear(f"{block}.contract", 4 * size, size)
    return Described(tensors | norm("7", size) | linear("9", size, classes), None)


NETWORKS: dict[str, Callable[[Shape, int, int], Described]] = {
    "mlp": _mlp,
    "small-cnn": _small_cnn,
    "tramer-boneh-cnn": _tramer_boneh_cnn,
    "gelu-cnn": _gelu_cnn,
    "scatter-cnn": _scatter_cnn,
    "stobatch-cnn": _stobatch_cnn,
    "wrn-16-4": _wide_resnet,
    "resnet-18": _resnet,
    "small-vit": _small_vit,
}
# What a noise layer keeps of its scales, by where they came from; K is the number of coordinates.
_SCALES = {"uniform": None, "random": None, "learned": "log_shares", "public": "scales", "training": "scales"}


def is_own(run: dict[str, Any]) -> bool:
    """Whether the run's network is its owner's, so that its tensors are not known here."""
    config = run.get("config")
    model = config.get("model") if isinstance(config, dict) else None
    return isinstance(model, str) and model.startswith(OWN)


def tensors_of(run: dict[str, Any]) -> Tensors | Problem:
    """The tensors of the network that ``run`` names, or why there are none."""
    config, data = run.get("config"), run.get("data")
    config, data = config if isinstance(config, dict) else {}, data if isinstance(data, dict) else {}
    name, width = config.get("model"), whole(config.get("width", 1))
    shape, classes = data.get("shape"), data.get("classes")
    if not _is_shape(shape) or not isinstance(classes, list):
        return Problem(RUN_JSON, "data names no shape and classes that a network can have", shown(shape), "sizes from 1")
    if not isinstance(name, str) or name not in NETWORKS:
        return Problem(RUN_JSON, "config.model is not a network of this package", shown(name), ", ".join(NETWORKS))
    if width is None or width < 1:
        return Problem(RUN_JSON, "config.width has a value it cannot have", shown(config.get("width")), "an integer from 1")
    try:
        network = NETWORKS[name](tuple(shape), len(classes), width)
        noise = _noise(config, tuple(shape), network.first)
    except Misfit as why:
        return Problem(RUN_JSON, "the network of config does not fit the data", f"{name}, {shown(shape)}", str(why))
    return network.tensors | noise


def _is_shape(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and 1 <= len(value) <= MOST_AXES and all(map(is_positive_count, value))


def _noise(config: dict[str, Any], shape: Shape, first: Shape | None) -> Tensors:
    """The tensors of the noise layers that ``config`` names."""
    layer = config.get("noise_layer")
    if layer is None:
        return {}
    layer = layer if isinstance(layer, dict) else {}
    place, redistribution = layer.get("place"), layer.get("redistribution")
    deviation: Tensors = {"noise.deviation": ("F64", ())}
    if place == "input-and-first-layer" and first is not None:
        both = deviation | {"input_noise.deviation": ("F64", ())}
        draws = {"on_input": shape, "on_layer": first, "offset": first}
        kept: Tensors = {f"fixed_draws.{name}": ("F32", size) for name, size in draws.items()}
        return both | kept if config.get("variant") == "published" else both
    outputs = {"input": shape, "first-layer": first}.get(place) if isinstance(place, str) else None
    if outputs is None or not isinstance(redistribution, str) or redistribution not in _SCALES:
        raise Misfit("config.noise_layer with a place and a redistribution that this network has")
    scales = _SCALES[redistribution]
    return deviation | ({} if scales is None else {f"noise.spread.{scales}": ("F32", (math.prod(outputs),))})


def stored_tensors(content: bytes) -> Tensors | None:
    """What model.safetensors holds; None where it cannot be read, which is told elsewhere."""
    from safetensors import SafetensorError, deserialize

    try:
        found = deserialize(content)  # type: ignore[no-untyped-call]  # raw: no framework, no copy into one
    except SafetensorError:
        return None
    return {str(name): (str(tensor["dtype"]), tuple(int(size) for size in tensor["shape"])) for name, tensor in found}


def tensor_problems(stored: Tensors, wanted: Tensors, network: str) -> Iterator[Problem]:
    """Every tensor that is missing, of another type or shape, or unknown to the network."""
    different = [name for name in sorted(wanted.keys() | stored.keys()) if stored.get(name) != wanted.get(name)]
    for name in different[:NAMED_TENSORS]:
        what = f"tensor {shown(name)} is not that of the network {shown(network)}"
        yield Problem(FILE, what, _words(stored.get(name)), _words(wanted.get(name)))
    if more := different[NAMED_TENSORS:]:
        what = f"{len(more)} more tensors are not those of the network {shown(network)}"
        yield Problem(FILE, what, shown(", ".join(more)), "the names, types and shapes of the network")


def network_problems(content: bytes, run: dict[str, Any]) -> Iterator[Problem]:
    """Whether the weights are those of the network that ``run`` names; not to be asked for an owner's network."""
    wanted, stored = tensors_of(run), stored_tensors(content)
    if isinstance(wanted, Problem):
        yield wanted
    elif stored is not None:
        yield from tensor_problems(stored, wanted, str(run["config"]["model"]))


def _words(tensor: tuple[str, Shape] | None) -> str:
    return "no such tensor" if tensor is None else shown(f"{tensor[0]} {list(tensor[1])}")

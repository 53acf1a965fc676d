"""The weights: finite numbers, the tensors of the network that run.json names, and one model in all files.

The table of built-in networks is written from their description in docs/formats/run.md: no torch is needed, and nothing is
built, however large the sizes in run.json are. Whatever run.json holds ends in problems, never in an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from twinproof_verify.evidence import RunFolder, raw_tensors, sha256, shown
from twinproof_verify.files import MODEL, RUN_JSON
from twinproof_verify.findings import Problem
from twinproof_verify.models import LARGEST_WHOLE, PositiveCount, Record, block, sound

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_WHOLE = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


def weight_problems(content: bytes) -> Iterator[Problem]:
    """Whether the file can be loaded and holds only finite numbers."""
    tensors = raw_tensors(content)
    if isinstance(tensors, str):
        yield Problem(MODEL, "the weights cannot be loaded", tensors, "a safetensors file")
        return
    if not tensors:
        yield Problem(MODEL, "the file holds no weights", "0 tensors", "at least one tensor")
    for name, tensor in tensors.items():
        kind = str(tensor["dtype"])
        finite = _all_finite(kind, tensor["data"])
        if finite is None:
            yield Problem(MODEL, f"tensor {shown(name)} has a type that is not known", shown(kind), "a float or integer type")
        elif not finite:
            yield Problem(MODEL, f"tensor {shown(name)} holds numbers that are not finite", "NaN or infinity", "finite weights")


def _all_finite(kind: str, data: Any) -> bool | None:
    if kind in _WHOLE:
        return True
    if kind == "BF16":
        # The upper half of a float32: widen it, numpy has no bfloat16.
        halves: NDArray[np.uint32] = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        return bool(np.isfinite((halves << np.uint32(16)).view(np.float32)).all())
    if kind in _FLOATS:
        return bool(np.isfinite(np.frombuffer(data, dtype=_FLOATS[kind])).all())
    return None


def identity_problems(folder: RunFolder, stated: Mapping[str, object]) -> Iterator[Problem]:
    """Whether ledger, certificates and attacks speak of the weights that are there: ``stated`` digests, by file."""
    content = folder.content(MODEL)
    if isinstance(content, Problem):
        return
    digest = sha256(content)
    for file, said in stated.items():
        if said != digest:
            yield Problem(file, "model_sha256 is not the digest of the weights", shown(said), digest)


# Tensors that are named one by one; the rest are counted.
NAMED_TENSORS = 5

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


def _interval_cnn(shape: Shape, classes: int, width: int) -> Described:
    channels, height, across = _image(shape, 8)
    maps, units = 16 * width, 64 * width
    rows, columns = (_halved(size) // 2 for size in (height, across))  # kernels of 4 with padding 1 leave no odd end
    tensors = (
        convolution("0", channels, maps, 5)
        | convolution("2", maps, 2 * maps, 4)
        | linear("5", 2 * maps * rows * columns, units)
        | linear("7", units, classes)
    )
    return Described(tensors, (maps, _halved(height), _halved(across)))


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
    for layer in map(str, range(1, 7)):
        tensors |= norm(f"{layer}.norm1", size) | norm(f"{layer}.norm2", size)
        for part in ("query", "key", "value", "out"):
            tensors |= linear(f"{layer}.attention.{part}", size, size)
        tensors |= linear(f"{layer}.expand", size, 4 * size) | linear(f"{layer}.contract", 4 * size, size)
    return Described(tensors | norm("7", size) | linear("9", size, classes), None)


NETWORKS: dict[str, Callable[[Shape, int, int], Described]] = {
    "mlp": _mlp,
    "relu-mlp": _mlp,
    "interval-cnn": _interval_cnn,
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


class _Sizes(Record):
    shape: Annotated[list[PositiveCount], Field(min_length=1, max_length=8)]
    classes: list[Any]


def tensors_of(run: dict[str, Any]) -> Tensors | Problem:
    """The tensors of the network that ``run`` names, or why there are none."""
    config, data = block(run, "config"), block(run, "data")
    name, width = config.get("model"), config.get("width", 1)
    sizes = sound(_Sizes, {key: data.get(key) for key in ("shape", "classes")})
    if sizes is None:
        got = shown(data.get("shape"))
        return Problem(RUN_JSON, "data names no shape and classes that a network can have", got, "sizes from 1")
    if not isinstance(name, str) or name not in NETWORKS:
        return Problem(RUN_JSON, "config.model is not a network of this package", shown(name), ", ".join(NETWORKS))
    if type(width) is not int or not 1 <= width <= LARGEST_WHOLE:
        return Problem(RUN_JSON, "config.width has a value it cannot have", shown(width), "an integer from 1")
    shape = tuple(sizes.shape)
    try:
        network = NETWORKS[name](shape, len(sizes.classes), width)
        return network.tensors | _noise(config, shape, network.first)
    except Misfit as why:
        return Problem(RUN_JSON, "the network of config does not fit the data", f"{name}, {shown(sizes.shape)}", str(why))


def _noise(config: dict[str, Any], shape: Shape, first: Shape | None) -> Tensors:
    """The tensors of the noise layers that ``config`` names."""
    if config.get("noise_layer") is None:
        return {}
    layer = block(config, "noise_layer")
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
    found = raw_tensors(content)
    if isinstance(found, str):
        return None
    return {name: (str(tensor["dtype"]), tuple(int(size) for size in tensor["shape"])) for name, tensor in found.items()}


def tensor_problems(stored: Tensors, wanted: Tensors, network: str) -> Iterator[Problem]:
    """Every tensor that is missing, of another type or shape, or unknown to the network."""
    different = [name for name in sorted(wanted.keys() | stored.keys()) if stored.get(name) != wanted.get(name)]
    for name in different[:NAMED_TENSORS]:
        what = f"tensor {shown(name)} is not that of the network {shown(network)}"
        yield Problem(MODEL, what, _words(stored.get(name)), _words(wanted.get(name)))
    if more := different[NAMED_TENSORS:]:
        what = f"{len(more)} more tensors are not those of the network {shown(network)}"
        yield Problem(MODEL, what, shown(", ".join(more)), "the names, types and shapes of the network")


def network_problems(content: bytes, run: dict[str, Any]) -> Iterator[Problem]:
    """Whether the weights are those of the network that ``run`` names; not to be asked for an owner's network."""
    wanted, stored = tensors_of(run), stored_tensors(content)
    if isinstance(wanted, Problem):
        yield wanted
    elif stored is not None:
        yield from tensor_problems(stored, wanted, str(run["config"]["model"]))


def _words(tensor: tuple[str, Shape] | None) -> str:
    return "no such tensor" if tensor is None else shown(f"{tensor[0]} {list(tensor[1])}")

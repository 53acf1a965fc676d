"""The weights: finite numbers, the tensors of the network that run.json names, and one model in all files.

The table of built-in networks is written from their description in docs/formats/run.md: no torch is needed, and nothing is
built, however large the sizes in run.json are. Whatever run.json holds ends in problems, never in an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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


class Misfit(Exception):
    """A network that does not exist: unknown, or too small an image."""


class Network:
    """A network without noise, layer by layer: its tensors, the ``shape`` that the next layer sees, and that of the first
    linear layer's output (``first``; None where there is none).
    """

    def __init__(self, shape: Shape, smallest: int = 0) -> None:
        if smallest and (len(shape) != 3 or min(shape[1:]) < smallest):
            raise Misfit(f"images of at least {smallest}x{smallest}")
        self.tensors: Tensors = {}
        self.shape = shape
        self.first: Shape | None = None

    def _then(self, shape: Shape) -> None:
        self.shape = shape
        self.first = self.first or shape

    def add(self, name: str, *sizes: int, bias: int = 0) -> None:
        self.tensors[f"{name}.weight"] = "F32", sizes
        if bias:
            self.tensors[f"{name}.bias"] = "F32", (bias,)

    def linear(self, name: str, outputs: int) -> None:
        self.add(name, outputs, math.prod(self.shape), bias=outputs)
        self._then((outputs,))

    def norm(self, name: str) -> None:
        self.add(name, self.shape[0], bias=self.shape[0])

    def convolution(
        self, name: str, maps: int, kernel: int, stride: int = 1, pad: int | None = None, *, bias: bool = True
    ) -> None:
        """With square kernels; the padding is half the kernel unless it is said."""
        self.add(name, maps, self.shape[0], kernel, kernel, bias=maps if bias else 0)
        around = 2 * (kernel // 2 if pad is None else pad)
        self._then((maps, *((side + around - kernel) // stride + 1 for side in self.shape[1:])))

    def pool(self, stride: int) -> None:
        self.shape = (self.shape[0], *((side - 2) // stride + 1 for side in self.shape[1:]))
        if min(self.shape) < 1:
            raise Misfit("images of at least 20x20")  # of the one network whose sides can vanish


SEQUENCES = {
    "mlp": (0, "1 linear 64, 3 linear"),
    "relu-mlp": (0, "1 linear 64, 3 linear"),
    "interval-cnn": (8, "0 convolution 16 5 2 2, 2 convolution 32 4 2 1, 5 linear 64, 7 linear"),
    "contrast-cnn": (8, "1 convolution 16 5 2 2, 3 convolution 32 4 2 1, 6 linear 64, 8 linear"),
    "small-cnn": (4, "0 convolution 16 3, 2 convolution 32 3 2, 5 linear 32, 7 linear"),
    "tramer-boneh-cnn": (1, "0 convolution 16 8 2 2, - pool 1, 3 convolution 32 4 2 0, - pool 1, 7 linear 32, 9 linear"),
    "gelu-cnn": (8, "0 bare 16 7 2, 1 norm, 3 bare 32 3 2, 4 norm, 6 bare 64 3 2, 7 norm, 10 linear"),
    "stobatch-cnn": (4, "0 convolution 32 5 2, 1 norm, - pool 2, 4 convolution 64 5 2, 7 linear 256, 8 norm, 10 linear"),
}
"""The smallest image, and the layers by name: outputs of a linear one (or the classes); maps, kernel, stride and padding of a
convolution (``bare``: without bias); the stride of a pool. Outputs and maps grow with the width.
"""


def _sequence(net: Network, layers: str, classes: int, width: int) -> Network:
    for layer in layers.split(", "):
        name, kind, *numbers = layer.split()
        sizes = [int(number) for number in numbers]
        if kind == "linear":
            net.linear(name, sizes[0] * width if sizes else classes)
        elif kind == "norm":
            net.norm(name)
        elif kind == "pool":
            net.pool(*sizes)
        else:
            net.convolution(name, sizes[0] * width, *sizes[1:], bias=kind == "convolution")
    return net


def _scatter_cnn(shape: Shape, classes: int, width: int) -> Network:
    net = Network(shape, 8)
    net.tensors |= {"0.fine": ("F32", (16, 1, 9, 9)), "0.coarse": ("F32", (16, 4, 9, 9)), "0.scale": ("F32", (81, 1, 1))}
    for name, size in (("rows", shape[1]), ("columns", shape[2])):
        net.tensors[f"0.{name}_from_full"] = "F32", (-(-size // 4), size)
        net.tensors[f"0.{name}_from_half"] = "F32", (-(-size // 4), -(-size // 2))
    net.shape = (81 * shape[0], *(-(-size // 4) for size in shape[1:]))
    _sequence(net, "1 convolution 16 3 2, 3 convolution 32 3, 6 linear 32, 8 linear", classes, width)
    net.first = None
    return net


def _wide_resnet(shape: Shape, classes: int, width: int) -> Network:
    net = Network(shape, 8)
    net.convolution("0", 16, 3, bias=False)
    for number in range(6):  # three stages of two blocks
        maps, before, block = 64 * width * 2 ** (number // 2), net.shape[0], str(number + 1)
        for part in "12":
            net.norm(f"{block}.norm{part}")
            net.convolution(f"{block}.conv{part}", maps, 3, bias=False)
        if number in (2, 4) or before != maps:
            net.add(f"{block}.shortcut", maps, before, 1, 1)
    net.norm("7")
    net.shape = net.shape[:1]  # the mean over all places
    net.linear("11", classes)
    return net


def _resnet(shape: Shape, classes: int, width: int) -> Network:
    net = Network(shape, 8)
    net.convolution("0", 64 * width, 3, bias=False)
    net.norm("1")
    for number in range(8):  # four stages of two blocks
        maps, before, block = 64 * width * 2 ** (number // 2), net.shape[0], str(number + 3)
        for part in "12":
            net.convolution(f"{block}.conv{part}", maps, 3, bias=False)
            net.norm(f"{block}.norm{part}")
        if before != maps:
            net.add(f"{block}.shortcut.0", maps, before, 1, 1)
            net.norm(f"{block}.shortcut.1")
    net.shape = net.shape[:1]  # the mean over all places
    net.linear("13", classes)
    return net


def _small_vit(shape: Shape, classes: int, width: int) -> Network:
    net, size = Network(shape, 8), 128 * width
    if shape[1] % 4 or shape[2] % 4:
        raise Misfit("images with sides that are multiples of 4")
    net.convolution("0.embed", size, 4, 4, 0)
    net.add("0.position", math.prod(net.shape[1:]), size)
    net.shape = (size,)  # every patch by itself
    for layer in map(str, range(1, 7)):
        for part in ("attention.query", "attention.key", "attention.value", "attention.out"):
            net.linear(f"{layer}.{part}", size)
        net.linear(f"{layer}.expand", 4 * size)
        net.linear(f"{layer}.contract", size)
        net.norm(f"{layer}.norm1")
        net.norm(f"{layer}.norm2")
    net.norm("7")
    net.linear("9", classes)
    net.first = None
    return net


BLOCKS = {"scatter-cnn": _scatter_cnn, "wrn-16-4": _wide_resnet, "resnet-18": _resnet, "small-vit": _small_vit}
NETWORKS = (
    *("mlp", "relu-mlp", "interval-cnn", "contrast-cnn", "small-cnn", "tramer-boneh-cnn", "gelu-cnn", "scatter-cnn"),
    *("stobatch-cnn", "wrn-16-4", "resnet-18", "small-vit"),
)


def network_of(name: str, shape: Shape, classes: int, width: int) -> Network:
    if name in BLOCKS:
        return BLOCKS[name](shape, classes, width)
    smallest, layers = SEQUENCES[name]
    return _sequence(Network(shape, smallest), layers, classes, width)


# What a noise layer keeps of its scales, by where they came from; K is the number of coordinates.
_SCALES = {"uniform": None, "random": None, "learned": "log_shares", "public": "scales", "training": "scales"}


class _Sizes(Record):
    shape: Annotated[list[PositiveCount], Field(min_length=1, max_length=8)]
    classes: list[Any]


def tensors_of(run: dict[str, Any]) -> Tensors | Problem:
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
        network = network_of(name, shape, len(sizes.classes), width)
        return network.tensors | _noise(config, shape, network.first)
    except Misfit as why:
        return Problem(RUN_JSON, "the network of config does not fit the data", f"{name}, {shown(sizes.shape)}", str(why))


def _noise(config: dict[str, Any], shape: Shape, first: Shape | None) -> Tensors:
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

"""Lowering: the same network in the fastest of several equivalent forms, chosen by measuring.

Guarantees
    - ``lowered`` gives the scores of the model up to float rounding: each form is compared with the model on random inputs and
      one that differs is not used. What cannot be rewritten (hooks, other number types, unknown layers) runs as it is.
    - For one device, batch and library the answer's bits depend on the form alone: with the ``form`` of an earlier call the
      same network is made again, so that an interrupted certification ends with the same bytes.
    - The user's model is not changed; torch's settings are left as they were found.

    A certificate is true without any of this, since it speaks of the function that is evaluated; with it, that function is the
    user's network. docs/decisions/0007-equivalent-networks-and-shared-noise.md
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification.fast_layers import (
    ActivationPool,
    DenseConvolution,
    NormActivation,
    SlicedMaxPool,
    can_be_dense,
    is_plain_pool,
    norm_can_be_fused,
    pool_can_be_fused,
)
from twinproof.certification.grid_noise import RemainingNoise, draws_noise, repeatable
from twinproof.certification.noise_site import Unwhitened
from twinproof.compute.devices import FLOAT32, TF32, arithmetic_of, convolutions_in_tf32, one_thread_inside, products_in_tf32
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.module_state import evaluation_mode, own_copy


def layers_in_order(model: nn.Module) -> list[nn.Module]:
    """The layers of (nested) plain ``nn.Sequential`` containers; anything else counts as one layer.

    Exact types only: a subclass may do more in its ``forward`` than run its children.
    """
    if type(model) is not nn.Sequential:
        return [model]
    return [layer for child in model for layer in layers_in_order(child)]


def runs_as_written(model: nn.Module) -> bool:
    """Whether calling each module is calling its class's ``forward`` and nothing else: no hooks, no replaced methods."""
    return not any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) or "__call__" in vars(module)
        for module in model.modules()
    )


def shapes_before(layers: list[nn.Module], example: Tensor) -> list[tuple[int, ...]]:
    """The shape of one row before each layer, found by running ``example`` through them."""
    shapes = []
    with torch.inference_mode():
        for layer in layers:
            shapes.append(tuple(example.shape[1:]))
            example = layer(example)
    return shapes


class ChannelsLast(nn.Module):
    """Puts maps in channels-last memory; for one channel only the strides change, which is free."""

    def forward(self, x: Tensor) -> Tensor:
        _, channels, height, width = x.shape
        if channels == 1 and x.is_contiguous():
            # Torch finds both orders fulfilled and keeps the strides; its convolution then picks the slower path.
            return x.as_strided(x.shape, (height * width, 1, width, 1))
        return x.contiguous(memory_format=torch.channels_last)


class NumpyTanh(nn.Module):
    """numpy's tanh: on one core a seventh of the time of torch's, and it uses no other core."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        """Element by element, in the order in memory."""
        values = x if self.in_place else torch.empty_like(x)
        # The memory order counts for speed: numpy walks an array in its own order.
        source, target = (np.asarray(_innermost_last(part)) for part in (x, values))
        np.tanh(source, out=target)
        return values


class InPlaceReLU(nn.Module):
    """ReLU on a tensor that may be overwritten."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


class LinearOfMaps(nn.Module):
    """``nn.Flatten`` and ``nn.Linear`` after channels-last maps, with the weight's columns in their order in memory."""

    def __init__(self, linear: nn.Linear, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        order = torch.arange(channels * height * width).view(channels, height * width).T.reshape(-1)
        self.weight = nn.Parameter(linear.weight.detach()[:, order.to(linear.weight.device)].contiguous(), requires_grad=False)
        bias: Tensor | None = linear.bias  # torch's types forget that it may be missing
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to (rows, features)."""
        return F.linear(x.permute(0, 2, 3, 1).flatten(1), self.weight, self.bias)


def _innermost_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


# Layers that answer with a tensor of their own, which the next layer may overwrite.
_FRESH = (nn.Conv2d, nn.Linear, DenseConvolution, LinearOfMaps, Unwhitened, RemainingNoise)
# Layers after which maps are in channels-last memory if they were before.
_KEEPS_ORDER = (nn.Conv2d, nn.Tanh, nn.ReLU, ChannelsLast, NumpyTanh, InPlaceReLU, SlicedMaxPool, Unwhitened, RemainingNoise)


@dataclass
class _Rewriter:
    """All layers, with the shape before each, and what was made of the first ones.

    ``channels_last`` is the memory order of the next layer's input: a guess that affects only speed. ``fresh`` says that
    nothing else holds that input, so that it may be overwritten.
    """

    layers: list[nn.Module]
    shapes: list[tuple[int, ...]]
    done: list[nn.Module] = field(default_factory=list)
    channels_last: bool = False
    fresh: bool = False

    def put(self, layer: nn.Module) -> None:
        self.done.append(layer)
        made = isinstance(layer, ChannelsLast | DenseConvolution | ActivationPool | NormActivation)
        self.channels_last = made or (self.channels_last and type(layer) in _KEEPS_ORDER)
        # A view of a tensor is as fresh as the tensor.
        self.fresh = type(layer) in _FRESH or (self.fresh and type(layer) is ChannelsLast)

    def linear_of_maps(self, place: int) -> LinearOfMaps | None:
        """Flatten and Linear from ``place`` on as one layer, where channels-last maps come in."""
        flatten, linear = (*self.layers[place : place + 2], None, None)[:2]
        if not self.channels_last or type(flatten) is not nn.Flatten or type(linear) is not nn.Linear:
            return None
        if (flatten.start_dim, flatten.end_dim) != (1, -1) or len(self.shapes[place]) != 3:
            return None
        return LinearOfMaps(linear, self.shapes[place])

    def rewritten(self, one: Callable[[int, nn.Module], int]) -> nn.Sequential:
        """Everything that is ``done`` after ``one`` was called with each place and layer; it says how many layers it took."""
        place = 0
        while place < len(self.layers):
            linear = self.linear_of_maps(place)
            if linear is not None:
                self.put(linear)
            place += 2 if linear is not None else one(place, self.layers[place])
        return nn.Sequential(*self.done).eval()


def for_cpu(layers: list[nn.Module], shapes: list[tuple[int, ...]], *, overwrite: bool = False) -> nn.Sequential:
    """Convolutions in channels-last memory, pools as slices, a faster tanh; the layers are used and changed in place.

    With ``overwrite`` the result may write over its input.
    """
    state = _Rewriter(layers, shapes, fresh=overwrite)

    def one(place: int, layer: nn.Module) -> int:
        if isinstance(layer, nn.MaxPool2d) and is_plain_pool(layer) and state.channels_last:
            state.put(SlicedMaxPool(layer))
        elif type(layer) is nn.Tanh:
            state.put(NumpyTanh(in_place=state.fresh))
        elif type(layer) is nn.ReLU:
            state.put(InPlaceReLU() if state.fresh else layer)
        else:
            state.put(layer.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        return 1

    if len(shapes[0]) == 3:
        state.put(ChannelsLast())
    return state.rewritten(one)


def with_dense_convolutions(layers: list[nn.Module], shapes: list[tuple[int, ...]]) -> nn.Sequential | None:
    """Convolutions as matrix products, activation and pool or norm and activation in one kernel; None where none allows it."""
    tf32, products = convolutions_in_tf32(), products_in_tf32()
    # TF32 can be switched on for a while, but if it was on, torch cannot switch it off and restore how coarse it was.
    if tf32 is None or products is None or (products and not tf32):
        return None
    if not any(can_be_dense(layer, shape) for layer, shape in zip(layers, shapes, strict=True)):
        return None
    state = _Rewriter(layers, shapes)
    if len(shapes[0]) == 3 and not can_be_dense(layers[0], shapes[0]):
        state.put(ChannelsLast())

    def one(place: int, layer: nn.Module) -> int:
        after = layers[place + 1] if place + 1 < len(layers) else None
        if isinstance(layer, nn.Conv2d) and can_be_dense(layer, shapes[place]):
            pool = layers[place + 2] if place + 2 < len(layers) else None
            # The bias is added after the maximum, where there are fewer numbers: rounding keeps the order of sums.
            fused = after is not None and pool is not None and pool_can_be_fused(after, pool)
            state.put(DenseConvolution(layer, shapes[place], tf32=tf32, with_bias=not fused))
            if after is None or pool is None or not fused:
                return 1
            state.put(ActivationPool(after, pool, layer.bias))
            return 3
        if isinstance(after, nn.MaxPool2d) and state.channels_last and pool_can_be_fused(layer, after):
            state.put(ActivationPool(layer, after))
            return 2
        if after is not None and state.channels_last and norm_can_be_fused(layer, after):
            state.put(NormActivation(layer, after))
            return 2
        state.put(layer)
        return 1

    return state.rewritten(one)


AS_GIVEN = "as given"
CHANNELS_LAST = "channels last, sliced pools"
DENSE = "dense convolutions"
_FORMS = {"cpu": (CHANNELS_LAST,), "cuda": (DENSE,)}
# Differences of scores relative to the largest one: rounding errors lie a hundred times below, a wrong layer far above.
_TOLERANCE = {FLOAT32: 1e-4, TF32: 5e-3}
_COMPARED_ROWS = 4
# Rewritten networks on a CPU run in pieces of this many rows, so that maps stay in the cache.
_PIECE = 128
# The most rows, and the seconds per form, when measuring: enough to see a difference of some percent.
_TIMED_ROWS = {"cpu": 128, "cuda": 65_536}
_SECONDS = {"cpu": 0.04, "cuda": 0.02}
_GROWTH = 8
_REPEATS = 5
# Another form is taken only if it needs less than this share of the time, so that noise seldom decides.
_WORTH_IT = 0.9
_SEED = 20_260_101
_KEY = Key.from_seed(_SEED)


class Lowered(nn.Module):
    """A network in eval mode in the form named ``form``, computing in ``arithmetic`` ('float32' or 'tf32')."""

    def __init__(self, network: nn.Module, form: str, arithmetic: str, piece: int | None = None) -> None:
        super().__init__()
        self.network, self.form, self.arithmetic, self.piece = network, form, arithmetic, piece
        self.training = False  # not eval(), which would reach into a network that could not be copied

    def forward(self, x: Tensor) -> Tensor:
        """The network's scores, ``piece`` rows at a time where that is set."""
        if self.piece is None or len(x) <= self.piece:
            scores: Tensor = self.network(x)
            return scores
        return torch.cat([self.network(x[first : first + self.piece]) for first in range(0, len(x), self.piece)])


def lowered(
    model: nn.Module,
    shape: tuple[int, ...],
    device: torch.device,
    rows: int,
    *,
    form: str | None = None,
    overwrite: bool = False,
) -> Lowered:
    """``model``, which lies on ``device``, in the form that is fastest there for batches of ``rows`` inputs of ``shape``.

    ``form`` asks for exactly that form instead; one that this network does not have is refused. With ``overwrite`` the result
    may write over its input.
    """
    task = _Task(model, shape, device, arithmetic_of(model, device), overwrite)
    with evaluation_mode(model), torch.no_grad():
        if form == AS_GIVEN:
            return task.as_given()
        if form is None:
            made = [task.checked(name) for name in _FORMS.get(device.type, ())]
            return task.fastest([task.as_given(), *(found for found in made if found is not None)], rows)
        found = task.checked(form)
        if found is None:
            raise ConfigError(
                "this network does not have that form",
                where="form",
                got=form,
                wanted=", ".join((AS_GIVEN, *_FORMS.get(device.type, ()))),
                fix="certify on the machine where the certification began, or start again",
            )
        return found


def _own_copy(model: nn.Module) -> nn.Module | None:
    """A copy in eval mode; None where a module cannot be copied."""
    own = own_copy(model)
    try:
        return None if own is None else own.eval().requires_grad_(False)
    except RuntimeError:  # a compiled module
        return None


@dataclass(frozen=True)
class _Task:
    """A network to lower, and where it runs."""

    model: nn.Module
    shape: tuple[int, ...]
    device: torch.device
    arithmetic: str
    overwrite: bool

    def as_given(self) -> Lowered:
        own = _own_copy(self.model)
        return Lowered(self.model if own is None else own, AS_GIVEN, self.arithmetic)

    def checked(self, form: str) -> Lowered | None:
        """The form of the model, if there is one and it gives the model's scores."""
        network = self._rewritten(form)
        if network is None or not self._agrees(network):
            return None
        return Lowered(network, form, self.arithmetic, _PIECE if self.device.type == "cpu" else None)

    def _rewritten(self, form: str) -> nn.Module | None:
        if form not in _FORMS.get(self.device.type, ()) or not runs_as_written(self.model):
            return None
        numbers = [tensor for tensor in (*self.model.parameters(), *self.model.buffers()) if tensor.is_floating_point()]
        if any(tensor.device.type != self.device.type or tensor.dtype != torch.float32 for tensor in numbers):
            return None
        own = _own_copy(self.model)
        layers = [] if own is None else layers_in_order(own)
        if not layers:
            return None
        shapes = shapes_before(layers, torch.zeros((1, *self.shape), device=self.device))
        if form == DENSE:
            return with_dense_convolutions(layers, shapes)
        return for_cpu(layers, shapes, overwrite=self.overwrite)

    def _agrees(self, network: nn.Module) -> bool:
        generator = torch.Generator().manual_seed(_SEED)
        # Inputs lie in [0, 1]; with noise also far outside it.
        for low, high in ((0, 1), (-4, 5)):
            inputs = low + (high - low) * torch.rand((_COMPARED_ROWS, *self.shape), generator=generator).to(self.device)
            kept = inputs.clone()
            wanted, got = self._scores(self.model, inputs), self._scores(network, inputs)
            if not (torch.equal(inputs, kept) or self.overwrite) or wanted.shape != got.shape:
                return False
            # A comparison with NaN is false, so that scores that are not finite agree with nothing.
            if not bool(((got - wanted).abs() <= _TOLERANCE[self.arithmetic] * float(wanted.abs().max())).all()):
                return False
        return True

    def _scores(self, network: nn.Module, inputs: Tensor) -> Tensor:
        """The answers of ``network``; what layers of ours draw meanwhile is the same in every form."""
        with repeatable(self.device, _KEY, "compare") if draws_noise(network) else nullcontext():
            scores: Tensor = network(inputs)
        return scores

    def fastest(self, forms: list[Lowered], rows: int) -> Lowered:
        """The first of ``forms``, unless another one is clearly faster."""
        if len(forms) == 1:
            return forms[0]
        kind = self.device.type
        generator = torch.Generator(self.device).manual_seed(_SEED)
        inputs = torch.rand((min(rows, _TIMED_ROWS[kind]), *self.shape), device=self.device, generator=generator)
        # On a CPU each batch is worked on by one thread, so it is measured with one.
        with one_thread_inside():
            some = _affordable(forms[0], inputs)
            seconds = [_seconds(form, some) for form in forms]
        best = min(range(len(forms)), key=seconds.__getitem__)
        return forms[best if seconds[best] < _WORTH_IT * seconds[0] else 0]


def _affordable(network: nn.Module, inputs: Tensor) -> Tensor:
    """As many inputs as the time for measuring allows: on a GPU 1,000 rows take no longer than 1."""
    rows = 1
    while rows < len(inputs) and _GROWTH * _seconds(network, inputs[:rows], repeats=1) < _SECONDS[inputs.device.type]:
        rows = min(_GROWTH * rows, len(inputs))
    return inputs[:rows]


def _seconds(network: nn.Module, inputs: Tensor, repeats: int = _REPEATS) -> float:
    """The shortest of a few runs, after one that warms up; a slow one is not repeated for long."""
    device, best, spent = inputs.device, float("inf"), 0.0
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda device: None
    network(inputs)
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        network(inputs)
        wait(device)
        seconds = time.perf_counter() - began
        best, spent = min(best, seconds), spent + seconds
        if spent > _SECONDS[device.type]:
            break
    return best

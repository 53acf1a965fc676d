"""Where the noise enters a network, what comes before and after it, and how far the input moves it.

Noise sigma * S * xi on h = W x + b is noise sigma * xi on u = S^-1 W x: the network continues with S (u + noise) + b, which is
post-processing. u is a float64 product, rounded to the grid of the noise, so that u + noise is exact and what follows sees a
function of a continuous shift (docs/decisions/0011-noise-after-the-first-layer.md). The price is ``slack``.

The first modules of such a network are not called: a product in float64 and exact noise stand for them. So they must do what
their types say and nothing else, and the network must stay as it was, or the certificate would be about another network.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from twinproof.certification.bounds import Charge, Floats
from twinproof.certification.confidence import few_digits_above
from twinproof.certification.grid_noise import GridNoise, RemainingNoise, layer_noise
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.layers.module_state import same_bits
from twinproof.layers.noise import Law, NoiseLayer, Place, Spread
from twinproof.layers.noise_placement import UNEQUAL_INPUT, NoiseSplit
from twinproof.privacy.linear_maps import Norm, layer_map
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.paper_formulas import paper_reshaped_kernel, paper_row_norm, paper_single_feature_map
from twinproof.runs.reading import Length

# The norm in which each law's noise hides a shift.
TARGETS = {Law.GAUSSIAN: Norm.L2, Law.LAPLACE: Norm.L1}


@dataclass(frozen=True)
class NormBound:
    """A bound on an operator norm, and where it comes from."""

    value: float
    method: str


def identity_norm(law: Law, norm: str, dimension: int) -> NormBound:
    """The norm of the identity on ``dimension`` coordinates, from ``norm`` to the law's own; rounded up."""
    powers = (
        {Norm.L1: 0.0, Norm.L2: 0.0, Norm.LINF: 0.5} if law is Law.GAUSSIAN else {Norm.L1: 0.0, Norm.L2: 0.5, Norm.LINF: 1.0}
    )
    power = powers[Norm(norm)]
    value = math.nextafter(math.sqrt(dimension), math.inf) if power == 0.5 else float(dimension) ** power
    return NormBound(value, "identity")


@dataclass(frozen=True)
class Movement:
    """How far the layer that gets the noise moves for one unit of the input, and by how much more for its ``slack``.

    ``slackless_norm``, where there is one, is a norm that holds without slack.
    """

    operator_norm: Length
    operator_norm_method: str
    slack: Length = 0.0
    slackless_norm: Length | None = None

    def size(self, reached: Floats) -> Floats:
        """The change of the input that moves the layer by no more than ``reached``, in units of its noise."""
        sizes = np.maximum(reached - self.slack, 0.0) / self.operator_norm
        return sizes if self.slackless_norm is None else np.maximum(sizes, reached / self.slackless_norm)


def layer_norm(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: Floats) -> NormBound:
    """The norm of ``layer`` with its outputs divided by ``scale``: never below the truth (``operator_norm``); ten digits."""
    bound = operator_norm(layer, shape, source=norm, target=TARGETS[law], scale=scale)
    return NormBound(few_digits_above(bound.value), bound.method)


def diagonal_norm(scales: Floats, law: Law, norm: str) -> NormBound:
    """The norm of S^-1 from ``norm`` to the law's own: exact, but that it is rounded up to ten digits."""
    each = 1 / scales
    match Norm(norm), law:
        case (Norm.L1, _) | (Norm.L2, Law.GAUSSIAN):  # the coordinate with the least noise, alone
            value = float(each.max())
        case Norm.LINF, Law.LAPLACE:
            value = math.fsum(each)
        case _:  # all coordinates together: linf to l2, and by duality l2 to l1
            value = math.sqrt(math.fsum(each * each))
    return NormBound(few_digits_above(value * ROUNDED_UP), "diagonal")


def papers_norm(layer: nn.Module, shape: tuple[int, ...], law: Law, norm: str, scale: Floats) -> NormBound:
    """The norm that the papers use, where they have one of their own: for bounds that are published, not proven."""
    convolution = not isinstance(layer, nn.Linear)
    if law is Law.GAUSSIAN and norm == Norm.LINF and convolution:
        return NormBound(paper_single_feature_map(layer, shape, scale), "paper: single feature map")
    if law is Law.GAUSSIAN and norm == Norm.LINF:
        return NormBound(paper_row_norm(layer, shape, scale), "paper: largest row")
    if law is Law.GAUSSIAN and norm == Norm.L2 and convolution and bool((scale == 1).all()):
        return NormBound(paper_reshaped_kernel(layer), "paper: reshaped kernel")
    return layer_norm(layer, shape, law, norm, scale)


class NoiseSite(ABC):
    """``network`` maps rows of points plus noise to outputs; ``levels`` are those of the inputs.

    ``points`` is a fixed function of a stored input with values on the grid of ``noise``. For two inputs at a distance r in a
    norm, their points (in units of ``noise.sigma``) are at most ``norm_bound(norm).value * r + slack`` apart, in l2 for
    Gaussian and in l1 for Laplace noise.
    """

    place: str
    levels: int
    noise: GridNoise
    network: nn.Module
    own_noise: bool
    slack: float

    @abstractmethod
    def points(self, stored: Tensor) -> Tensor:
        """What the noise is added to, for inputs in stored levels (float32)."""

    @abstractmethod
    def dimension(self, shape: tuple[int, ...]) -> int:
        """How many coordinates get noise, for inputs of ``shape``."""

    @abstractmethod
    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """How far the points of inputs of ``shape`` move for one unit of ``norm``, by the rule of ``charge``."""

    def slackless_norm(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> float | None:
        """A norm, not below that of ``norm_bound``, which holds without ``slack``; None where there is none to prefer."""
        return None

    @abstractmethod
    def in_l2(self, shape: tuple[int, ...], norm: str) -> Movement:
        """How far points of inputs of ``shape`` are apart in l2, whatever the law: for bounds on Laplace noise in l2."""


class InputSite(NoiseSite):
    """Equal noise on the input itself: points are stored levels, and nothing is rounded."""

    place = Place.INPUT
    slack = 0.0

    def __init__(self, network: nn.Module, noise: GridNoise, *, own_noise: bool) -> None:
        self.network, self.noise, self.own_noise, self.levels = network, noise, own_noise, noise.levels

    def points(self, stored: Tensor) -> Tensor:
        """The stored levels."""
        return stored

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the input."""
        return math.prod(shape)

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """That of the identity, for every charge."""
        return identity_norm(self.noise.law, norm, self.dimension(shape))

    def in_l2(self, shape: tuple[int, ...], norm: str) -> Movement:
        """Nothing is rounded."""
        found = identity_norm(Law.GAUSSIAN, norm, self.dimension(shape))
        return Movement(found.value, found.method)


class FirstLayerSite(NoiseSite):
    """A site whose first linear layer is replaced by a copy in exact arithmetic; at the input, by a layer that multiplies by 1.

    ``layer`` gets inputs of ``layer_shape``; ``scales`` are the least ones of the noise that are drawn.
    """

    own_noise = True

    def __init__(self, split: NoiseSplit, input_shape: tuple[int, ...], levels: int) -> None:
        self.levels, self.scales = levels, split.noise.spread.least_scales()
        self.layer, self.layer_shape = _copied_layer(split, input_shape)
        convolves = split.before is not None and not isinstance(split.before, nn.Linear)
        self._input_shape = input_shape if convolves else None

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuses inputs of another shape than the one that the layer was bounded for."""
        wanted = self._input_shape
        if math.prod(shape) != math.prod(self.layer_shape) if wanted is None else shape != wanted:
            raise DataError(
                "the inputs do not have the shape that the first layer was bounded for",
                where="certify",
                got=shape,
                wanted=str(wanted or self.layer_shape),
            )


def _copied_layer(split: NoiseSplit, input_shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    """A copy of the linear layer before the noise, and the shape of what goes into it."""
    if split.before is None:
        # Every coordinate by itself: a convolution with a kernel of one, whose only weight is 1.
        identity = nn.Conv1d(1, 1, 1, bias=False, dtype=torch.float64)
        nn.init.ones_(identity.weight)
        return identity, (1, math.prod(split.noise.shape))
    layer = copy.deepcopy(split.before)
    if isinstance(layer, nn.Linear):
        return layer, (layer.in_features,)
    if not input_shape:
        raise ConfigError(
            "the norm of a convolution depends on the size of the images",
            where="input_shape",
            got="nothing",
            wanted="the shape of one input, e.g. (1, 28, 28)",
        )
    return layer, input_shape


class LayerSite(FirstLayerSite):
    """Noise behind the first layer, or unequal noise on the input, whose norm is the same for every charge.

    What is drawn beyond the least scales of a random spread is part of the network.
    """

    def __init__(self, split: NoiseSplit, input_shape: tuple[int, ...], sigma: float, levels: int) -> None:
        super().__init__(split, input_shape, levels)
        noise = split.noise
        self.place = UNEQUAL_INPUT if split.before is None else split.place
        self._whitened = WhitenedLayer(self.layer, self.layer_shape, self.scales, noise.law, sigma, levels)
        self.noise, self.slack, self._point_shape = self._whitened.noise, self._whitened.slack, noise.shape
        self._norms: dict[tuple[str, Law, bool], NormBound] = {}
        remaining = [RemainingNoise(noise.law, sigma, noise.spread)] if noise.spread.random else []
        self.network = nn.Sequential(Unwhitened(split, self.scales), *remaining, *split.after)

    def points(self, stored: Tensor) -> Tensor:
        """The whitened layer on the grid, in the shape of the layer."""
        self.check_shape(tuple(stored.shape[1:]))
        return self._whitened.points(stored).view(len(stored), *self._point_shape)

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the layer."""
        return self._whitened.dimension

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """The operator norm of the whitened layer, where one noise alone is added; found once, since it can take seconds."""
        return self._norm_bound(shape, norm, self.noise.law, charge is Charge.CLAIMED)

    def in_l2(self, shape: tuple[int, ...], norm: str) -> Movement:
        """The operator norm that Gaussian noise would ask for, and rounding as it is in l2."""
        found = self._norm_bound(shape, norm, Law.GAUSSIAN, False)
        return Movement(found.value, found.method, self._whitened.slack_for(Law.GAUSSIAN))

    def _norm_bound(self, shape: tuple[int, ...], norm: str, law: Law, claimed: bool) -> NormBound:
        self.check_shape(shape)
        if (norm, law, claimed) not in self._norms:
            if self.place == UNEQUAL_INPUT:
                found = diagonal_norm(self.scales, law, norm)
            else:
                found = (papers_norm if claimed else layer_norm)(self.layer, self.layer_shape, law, norm, self.scales)
            self._norms[norm, law, claimed] = found
        return self._norms[norm, law, claimed]


# Sums, roots and products that make up the slack are each right to 2^-53 of their value; far below this share.
ROUNDED_UP = 1 + 2.0**-40


class WhitenedLayer:
    """u = S^-1 W x for inputs x in [0, 1] of ``levels`` stored levels, on the grid of the noise of deviation ``sigma``.

    ``shape`` is that of one input as ``layer`` gets it, ``scales`` the diagonal of S.

    Guarantees
        ``points`` is a fixed function of the stored input alone. For two inputs x and x' its values are at most
        |A (x - x')| + ``slack`` apart, A = S^-1 W, in l2 (Gaussian) or l1 (Laplace). Proof: A is applied as the matrix whose
        norm is bounded, in float64; by the usual model of its arithmetic (``linear_maps.relative_error``) a coordinate errs by
        at most a share ``error`` of sum_j |A_kj|, since 0 <= x <= 1. Rounding to the grid moves a coordinate by half a step.
        Twice the sum of both, for two inputs: sqrt(K) steps in l2 or K steps in l1, and 2 * error times that norm of the row
        sums.
    """

    def __init__(self, layer: nn.Module, shape: tuple[int, ...], scales: Floats, law: Law, sigma: float, levels: int) -> None:
        self._matrix, self._levels = layer_map(layer, shape, scales), levels
        self.dimension = self._matrix.outputs
        ones = np.ones((self._matrix.inputs, 1))
        rows = np.ldexp(self._matrix.absolute().apply(ones)[:, 0], self._matrix.exponent) * (1 + self._matrix.error)
        refuse_zeros(layer, rows)
        self.noise: GridNoise = layer_noise(sigma, law, self.dimension, float(rows.max()))
        self._rows = rows
        self.slack = self.slack_for(law)

    def slack_for(self, law: Law) -> float:
        """The slack in the norm in which noise of ``law`` hides a shift."""
        whole, root = float(self.dimension), math.sqrt(self.dimension)
        steps, error = (root, np.linalg.norm(self._rows)) if law is Law.GAUSSIAN else (whole, self._rows.sum())
        return few_digits_above(ROUNDED_UP * (steps * self.noise.grid + 2 * self._matrix.error * float(error)))

    def points(self, stored: Tensor) -> Tensor:
        """(inputs, dimension) float32 multiples of the grid, on the device of ``stored``, which holds levels."""
        inputs = stored.reshape(len(stored), self._matrix.inputs).cpu().double().numpy() / self._levels
        made = np.empty((len(inputs), self.dimension), dtype=np.float32)
        # One by one: a product of matrices may sum in another order for another number of inputs.
        for place, one in enumerate(inputs):
            answers = np.ldexp(self._matrix.apply(one[:, None])[:, 0], self._matrix.exponent)
            made[place] = np.rint(answers / self.noise.grid) * self.noise.grid
        if made.size and not float(np.abs(made).max()) <= self.noise.largest:
            raise ModelError(
                "the layer before the noise is larger than its weights allow",
                where="certify",
                got=float(np.abs(made).max()),
                wanted=f"at most {self.noise.largest}, for inputs in [0, 1]",
            )
        return torch.from_numpy(made).to(stored.device)


def refuse_zeros(layer: nn.Module, sums: Floats) -> None:
    """Refuses a layer whose weights, added up in ``sums`` of magnitudes, are all zero: it says nothing about a radius."""
    if not sums.any():
        raise ModelError(
            "the layer before the noise ignores its input",
            where=type(layer).__name__,
            got="weights that are all zero",
            wanted="a layer that depends on its input",
            fix="train the network first",
        )


class Unwhitened(nn.Module):
    """S v + b: rows v of the whitened layer times the scales S, plus the bias b of the layer before the noise, in its dtype."""

    def __init__(self, split: NoiseSplit, scales: NDArray[np.float64]) -> None:
        super().__init__()
        shape, device = split.noise.shape, split.noise.deviation.device
        dtype = torch.float32 if split.before is None else split.before.weight.dtype
        given = torch.ones(()) if bool((scales == 1).all()) else torch.from_numpy(scales).view(shape)
        self.register_buffer("scales", given.to(device, dtype))
        bias = None if split.before is None else split.before.bias
        channels = torch.zeros(1) if bias is None else bias.detach().clone()
        self.register_buffer("bias", channels.view(-1, *[1] * (len(shape) - 1)).to(device, dtype))
        self.scales: Tensor
        self.bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """(rows, *shape)."""
        return torch.addcmul(self.bias, x.to(self.bias.dtype), self.scales)


def refuse_hidden_work(model: nn.Module, split: NoiseSplit) -> None:
    """Refuses anything that ``model`` does around its noise that its ``split`` does not show, since that would be left out.

    No hook or replaced ``forward`` on the container, a leading Flatten, the noise or its spread; no noise layer of a class of
    its own; no fixed spread with other scales than those that are certified. The first layer is checked where its norm is
    bounded (``checked_layer``).
    """
    flatten = [next(iter(model.children()))] if split.flattens else []
    for module in (model, *flatten, split.noise, split.noise.spread):
        if _does_more(module):
            raise _left_out(type(module).__name__, "a forward hook, or a replaced forward", "noise can be taken out of it")
    if type(split.noise) is not NoiseLayer:
        raise ModelError(
            "a noise layer of another class may add other noise",
            where=type(split.noise).__name__,
            got="a subclass of NoiseLayer",
            wanted="NoiseLayer itself, whose noise is known",
            fix="write a Spread for other scales",
        )
    if not split.noise.spread.random and not _multiplies_by_its_least(split.noise.spread):
        raise ModelError(
            "the noise has other scales than those that would be certified",
            where=type(split.noise.spread).__name__,
            got="a spread that is not random, with a forward that does not multiply by least()",
            wanted="both from one function of the same tensors",
        )


def refuse_global_hooks() -> None:
    """Refuses hooks that torch calls for every module: forms of a network that fuse modules would not call them."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise _left_out("torch.nn.modules.module", "a forward hook for all modules", "modules do what they say")


def _left_out(where: str, got: str, what: str) -> ModelError:
    return ModelError(
        "a hook would be left out of what is certified",
        where=where,
        got=got,
        wanted=f"a network whose {what}",
        fix="remove the hook while certifying",
    )


def _does_more(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _multiplies_by_its_least(spread: Spread) -> bool:
    with torch.no_grad():
        least = spread.least()
        scales = spread(torch.ones((1, *spread.shape), dtype=least.dtype, device=least.device))
        # NaN equals NaN here: scales that are not numbers are refused where the layer is bounded.
        return bool(torch.allclose(scales.reshape(-1), least.to(scales.dtype), rtol=0, atol=0, equal_nan=True))


def front_of(model: nn.Module, split: NoiseSplit) -> tuple[nn.Module, ...]:
    """The modules of ``model`` that are not called when votes are counted: a leading Flatten, the first layer, the noise."""
    flatten = (next(iter(model.children())),) if split.flattens else ()
    return (*flatten, *(() if split.before is None else (split.before,)), split.noise)


class AsSmoothed:
    """What ``model`` is made of, and the tensors of its ``front``: the modules that exact arithmetic stands for.

    Guarantees
        ``refuse_changes`` returns only if every module of the network is the same object of the same class in the same place,
        the front has the parameters and buffers that it had, bit by bit, and no hook or replaced ``forward`` on the front (or
        on the network itself) would be left out. What a user's code keeps outside modules and buffers is not seen.
    """

    def __init__(self, model: nn.Module, front: Iterable[nn.Module]) -> None:
        self._model, self._front = model, tuple(front)
        self._places = _places(model)
        self._tensors = [{name: value.detach().clone() for name, value in _tensors(part).items()} for part in self._front]

    def refuse_changes(self) -> None:
        """ModelError that names the first thing that is not as it was."""
        now = _places(self._model)
        for path in sorted(now.keys() | self._places.keys()):
            if now.get(path) != self._places.get(path):
                raise _changed(path or type(self._model).__name__, "another module, or one more or less")
        for part, kept in zip(self._front, self._tensors, strict=True):
            found = _tensors(part)
            # A network may have been moved to another device since: its numbers are the same.
            if found.keys() != kept.keys() or not all(
                same_bits(value.to(kept[name].device), kept[name]) for name, value in found.items()
            ):
                raise _changed(type(part).__name__, "other weights before the noise, or other scales or deviation of it")
        for inner in (self._model, *(inner for part in self._front for inner in part.modules())):
            if _does_more(inner):
                raise _changed(type(inner).__name__, "a forward hook, or a replaced forward")


def _places(model: nn.Module) -> dict[str, tuple[nn.Module, type[nn.Module]]]:
    # The modules themselves, not their ids: an id may be given to a new module when the old one is gone.
    return {path: (part, type(part)) for path, part in model.named_modules(remove_duplicate=False)}


def _tensors(part: nn.Module) -> dict[str, Tensor]:
    return dict((*part.named_parameters(), *part.named_buffers()))


def _changed(where: str, got: str) -> ModelError:
    return ModelError(
        "the network was changed after it was smoothed",
        where=where,
        got=got,
        wanted="the network of the moment at which it was smoothed",
        fix="smooth the network again, without hooks",
    )

"""The layer that certificates behind it rest on, rebuilt from the run, and its operator norm proven once more.

The layer is written down as a matrix from the weights in the run (``verify_layer_matrix``), and what is recorded of its norm is
proven by a factorisation of the verifier's own (``verify_operator_norm``): no code of the certifier, and no network, has a part
in it.

Guarantees
    A recorded norm passes only if it is proven for the weights in the run, divided by the scales of the noise in the run (that
    of a refuted bound: if it is not below what the paper claims); a recorded slack only if it also pays for what float64 errs
    in that layer. Whatever the run holds ends in a value, a problem, or a note that a layer is too large to be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from twinproof.auditing.evidence import RunFolder, shown
from twinproof.auditing.fields import is_positive_count
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_float_share import layer_error, share_problems
from twinproof.auditing.verify_layer_matrix import (
    Array,
    Layer,
    LayerError,
    LayerTooLargeError,
    Matrix,
    column_sums,
    largest_output,
    row_sums,
)
from twinproof.auditing.verify_method import BOTH, FIRST_LAYER, INPUT
from twinproof.auditing.verify_model import FILE as MODEL
from twinproof.auditing.verify_noise import Noise, exactness_problems, smallest_slack
from twinproof.auditing.verify_noise_place import Placement, Spread, Tensors, numbers, placement_of
from twinproof.auditing.verify_operator_norm import FLOAT_SLACK, least_provable, reached
from twinproof.auditing.verify_reach import GAUSSIAN, LAPLACE, PUBLISHED
from twinproof.auditing.verify_run_json import FILE as RUN_JSON
from twinproof.auditing.verify_two_noises import STATED_OVER_DRAWN, TwoNoises, is_usable, two_noises_problems

if TYPE_CHECKING:
    from torch import nn

LARGEST_INPUT = 2**22
# What a stranger's settings may raise where they are not of the form that the format describes.
_REFUSALS = (LayerError, ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)

Leave = Callable[[str], None]
TOO_LARGE = "the operator norm of the first layer, which is too large"


@dataclass(frozen=True, eq=False)
class NoiseSite:
    """Where a network draws its own noise: behind ``layer`` (None at the input), with these scales of its coordinates."""

    law: str
    layer: Layer | None
    deviation: float
    scales: Array
    # The layer with each output divided by its scale; None where there is none, or where it is too large.
    matrix: Matrix | None
    # Of a second noise, on the input, where there is noise behind the layer too.
    input_deviation: float | None = None
    # How many times larger than drawn a paper says that the two noises are.
    stated: float = 1.0
    # What was proven, by source, target and claim: certificates and attacks ask the same, and it can take seconds.
    known: dict[tuple[str, str, float], float] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """In the words of certificates.json."""
        if self.input_deviation is not None:
            return BOTH
        return INPUT if self.layer is None else FIRST_LAYER

    def least_provable(self, norm: str, target: str, claimed: float) -> float:
        """``claimed`` where it is proven that the layer stretches by no more; else a larger number."""
        if self.matrix is None:
            raise LayerTooLargeError("no matrix")
        asked = (norm, target, claimed)
        if asked not in self.known:
            self.known[asked] = least_provable(self.matrix, norm, target, claimed)
        return self.known[asked]


def noise_site(
    folder: RunFolder, run: dict[str, Any], network: nn.Module | None = None, *, plain: bool = False
) -> NoiseSite | Problem | None:
    """The noise of the run's own network, None if it draws none; a problem where that cannot be found out.

    Where nothing but Gaussian noise at the input is spoken of (``plain``), an owner's network need not be there, unless its
    weights are those of a network with noise of its own.
    """
    config = run.get("config")
    config = config if isinstance(config, dict) else {}
    without, content = config.get("noise_layer") is None, folder.content(MODEL)
    if without and not _is_own(config):
        return None
    if isinstance(content, Problem):
        return content
    if _is_own(config) and network is None:
        spoken_of = without and plain and not _stores_noise(content)
        return None if spoken_of else _unknown("the network is the owner's, and its code is not here")
    shape = _shape(run)
    if isinstance(shape, Problem):
        return shape
    try:
        placement = placement_of(config, network if _is_own(config) else None)
        return None if placement is None else _site(placement, _tensors(content), shape)
    except _REFUSALS as error:
        return _unknown(f"{type(error).__name__}: {error}")


def _stores_noise(content: bytes) -> bool:
    """Whether the weights hold the deviation of a noise layer."""
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]  # the names of the tensors, in JSON: nothing is read but the text
    return b'noise.deviation"' in header


def _is_own(config: dict[str, Any]) -> bool:
    return isinstance(config.get("model"), str) and config["model"].startswith("own:")


def _unknown(why: str) -> Problem:
    what = "the noise layer cannot be rebuilt, so that nothing behind it can be checked"
    return Problem(MODEL, what, shown(why), "a network by its name, or in Python: verify_run(path, network=your_module)")


def _shape(run: dict[str, Any]) -> tuple[int, ...] | Problem:
    """Of one input; sizes that no data have are refused before anything of that size is built."""
    data = run.get("data")
    shape = data.get("shape") if isinstance(data, dict) else None
    if not isinstance(shape, list) or not shape or not all(map(is_positive_count, shape)) or math.prod(shape) > LARGEST_INPUT:
        return Problem(RUN_JSON, "no network can be built for this shape", shown(shape), f"at most {LARGEST_INPUT} numbers")
    return tuple(shape)


def _tensors(content: bytes) -> Tensors:
    from safetensors import SafetensorError, deserialize

    try:
        return dict(deserialize(content))  # type: ignore[no-untyped-call]  # raw: no framework, no copy into one
    except SafetensorError as error:
        raise LayerError(str(error)) from error


def _site(placement: Placement, tensors: Tensors, shape: tuple[int, ...]) -> NoiseSite:
    layer = None if placement.first is None else placement.first.layer(tensors, shape, flattens=placement.flattens)
    scales = placement.spread.scales(tensors, math.prod(shape) if layer is None else layer.outputs)
    try:
        matrix = None if layer is None else layer.matrix(scales)
    except LayerTooLargeError:
        matrix = None
    on_input = placement.input_spread
    return NoiseSite(
        law=placement.law,
        layer=layer,
        deviation=_deviation(tensors, placement.spread),
        scales=scales,
        matrix=matrix,
        input_deviation=None if on_input is None else _equal_deviation(tensors, placement.law, on_input, math.prod(shape)),
        stated=STATED_OVER_DRAWN if placement.kept else 1.0,
    )


def _deviation(tensors: Tensors, spread: Spread) -> float:
    return float(numbers(tensors, f"{spread.name}.deviation").reshape(()))


def _equal_deviation(tensors: Tensors, law: str, spread: Spread, coordinates: int) -> float:
    """Of noise on the input; unequal noise, or noise of another law, counts as none, for which nothing is proven."""
    equal = law == LAPLACE and spread.kind != "random" and bool((spread.scales(tensors, coordinates) == 1).all())
    return _deviation(tensors, spread) if equal else 0.0


def site_problems(noise: Noise, site: NoiseSite | None, leave: Leave, *, own_sigma: bool = False) -> Iterator[Problem]:
    """Whether ``noise`` is the network's own (``site``; None: it has none, and Gaussian noise is added to the input).

    Its deviation may have been chosen anew for certificates; with ``own_sigma`` it was not. What is not checked is told to
    ``leave``.
    """
    if site is not None and site.input_deviation is not None:
        yield from _two_noises_problems(noise, site, site.input_deviation, leave)
        return
    if own_sigma and site is not None and noise.sigma != site.deviation:
        what = "sigma is not that of the network's own noise"
        yield Problem(noise.file, what, repr(noise.sigma), f"{site.deviation!r} ({MODEL})")
    truth = (GAUSSIAN, INPUT) if site is None else (site.law, site.place)
    if (noise.law, noise.place) != truth:
        what = "law and place of the noise are not those of the run's network"
        yield Problem(noise.file, what, f"{noise.law}, {noise.place}", ", ".join(truth))
    elif site is not None and len(site.scales) != noise.dimension:
        what = "dimension is not the number of coordinates that get noise"
        yield Problem(noise.file, what, str(noise.dimension), str(len(site.scales)))
    elif site is not None and site.layer is not None:
        yield from _layer_problems(noise, site, site.layer, leave)
    elif site is not None and not (site.scales == 1).all():
        what = "noise at the input has other scales than 1, for which nothing is proven here"
        yield Problem(noise.file, what, f"smallest scale {site.scales.min()!r}", "1")


def _layer_problems(noise: Noise, site: NoiseSite, layer: Layer, leave: Leave) -> Iterator[Problem]:
    """The operator norm, what float64 errs, and whether layer and noise add up exactly in the network."""
    if site.matrix is None:
        leave(TOO_LARGE)
        return
    target = "l2" if noise.law == GAUSSIAN else "l1"
    claim = _papers_claim(noise.norm, site, layer, site.matrix) if noise.bound == PUBLISHED else None
    try:
        least = site.least_provable(noise.norm, target, noise.operator_norm) if claim is None else claim * (1 - FLOAT_SLACK)
    except LayerTooLargeError:
        leave(TOO_LARGE)
        least = reached(site.matrix, noise.norm, target)
    if not noise.operator_norm >= least:
        what = "operator_norm is below what the weights of the first layer allow"
        yield Problem(noise.file, what, repr(noise.operator_norm), f"at least {least!r}")
    erring = layer_error(noise.law, layer.inputs, row_sums(site.matrix))
    yield from share_problems(noise, smallest_slack(noise), erring)
    yield from exactness_problems(noise, largest_output(site.matrix))


def _papers_claim(norm: str, site: NoiseSite, layer: Layer, matrix: Matrix) -> float | None:
    """What the papers put in the norm's place, where they have something of their own: compared, not proven.

    The largest row over K r (the scale squared) times the root of the outputs, of one map where there are several; and the
    largest singular value of the kernel as one row for each map.
    """
    if norm == "linf":
        count = math.prod(layer.sizes) if layer.is_convolution else layer.outputs
        return math.sqrt(count) * float((row_sums(matrix) / site.scales).max())
    if norm == "l2" and layer.is_convolution and bool((site.scales == 1).all()):
        return float(np.linalg.norm(layer.weight.reshape(len(layer.weight), -1), ord=2))
    return None


def _two_noises_problems(noise: Noise, site: NoiseSite, input_scale: float, leave: Leave) -> Iterator[Problem]:
    """Noise on the input and behind the layer, both of Laplace's law."""
    if (noise.law, noise.place, site.law) != (LAPLACE, BOTH, LAPLACE) or not (
        is_usable(input_scale) and is_usable(site.deviation)
    ):
        what = "two noises are certified together where both are Laplace's, and equal on the input"
        yield Problem(noise.file, what, f"{noise.law}, {noise.place}", f"{LAPLACE}, {BOTH}")
        return
    if site.matrix is None:
        leave(TOO_LARGE)
        return
    drawn = TwoNoises(
        input_scale,
        site.deviation,
        column_sums(site.matrix),
        len(site.scales),
        lambda claimed: site.least_provable(noise.norm, "l1", claimed),
        site.stated,
    )
    try:
        yield from two_noises_problems(noise, drawn)
    except LayerTooLargeError:
        leave(TOO_LARGE)

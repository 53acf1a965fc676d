"""The layer that certificates behind it rest on, rebuilt from the run, and its operator norm proven once more.

A recorded norm passes only if it is proven for the weights in the run, divided by the scales of the noise in the run (that of
a refuted bound: if it is not below what the paper claims); a recorded slack only if it pays for the steps of the grid and for
what float64 errs in that layer. With Laplace noise on the input and behind the layer, norms pass only if none is below what is
proven: for the bound ``composition`` the sum of what the two noises charge, for the others the least of either alone and of the
split by coordinates. Of unequal noise at the input the norm is known exactly. Whatever the run holds ends in a value, a
problem, or a note that a layer is too large to be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof_verify.bounds import COMPOSITION, GAUSSIAN, LAPLACE, PUBLISHED
from twinproof_verify.certificates import (
    BOTH,
    FIRST_LAYER,
    FLOAT_SLACK,
    INPUT,
    TABLE_ENDS,
    UNEQUAL_INPUT,
    Distance,
    Noise,
    exactness_problems,
    identity_norm,
    smallest_slack,
)
from twinproof_verify.evidence import RunFolder, Tensors, raw_tensors, shown
from twinproof_verify.files import MODEL, RUN_JSON
from twinproof_verify.findings import Problem
from twinproof_verify.layers import (
    Array,
    Layer,
    LayerTooLargeError,
    Matrix,
    OwnersNetwork,
    Placement,
    Spread,
    column_sums,
    joint_matrix,
    largest_output,
    numbers,
    placement_of,
    row_sums,
)
from twinproof_verify.models import block, sound
from twinproof_verify.operator_norms import least_provable, reached
from twinproof_verify.run_json import Data, is_own

# Of a product besides the sum itself: the weight over its scale, the input's quotient, the step.
ROUNDINGS = 8
# A root, a product and a sum, each right to half of the last bit.
_OWN_ROUNDING = 2.0**-50


def relative_share(inputs: int) -> float:
    """How far a float64 product with so many inputs can be from the truth, as a share of the sum of its terms' magnitudes.

    A sum errs by as many units of the last place as it has terms, in whatever order it is taken (Higham, chapter 3).
    """
    return (inputs + ROUNDINGS) * 2.0**-53


def layer_error(law: str, inputs: int, rows: NDArray[np.float64]) -> float:
    """How far apart float64 can put the layers of two inputs, in the norm of the noise; ``rows`` are its sums of magnitudes."""
    length = float(np.linalg.norm(rows) if law == GAUSSIAN else rows.sum())
    return 2 * relative_share(inputs) * length


def diagonal_norm(scales: Array, norm: str, law: str) -> float:
    """The longest that a change of length 1 in ``norm`` can be, divided by ``scales``, in l2 (Gaussian) or l1 (Laplace).

    A linear function on the l1 ball is largest at a corner; on the l2 and linf balls see Cauchy and Schwarz, and Hoelder.
    """
    shares, power = np.abs(1 / scales), 2 if law == GAUSSIAN else 1
    if norm == "l1" or (norm, power) == ("l2", 2):
        return float(np.max(shares))
    # From linf every coordinate moves by 1. From l2 to l1 the best direction is that of the shares themselves.
    return float(np.linalg.norm(shares, ord=power if norm == "linf" else 2))


def share_problems(file: str, said: Distance, rounding: float, error: float) -> Iterator[Problem]:
    """Whether the record's slack pays for ``rounding`` to the grid and for the ``error`` of float64, both in its own units."""
    paid = rounding + error
    if not said.slack >= paid * (1 - _OWN_ROUNDING):
        what = f"{said.name}slack is understated: rounding to the grid and in float64 costs more"
        yield Problem(file, what, repr(said.slack), f"at least {paid!r}")


STATED_OVER_DRAWN = 2.0
"""Appendix N's psi: how much larger, beside draws that are kept, the noise is said to be than the one drawn anew."""


@dataclass(frozen=True)
class TwoNoises:
    """What the network draws: scales on the input and behind the layer, which has these sums of its ``columns`` and ``rows``.

    ``least_provable`` takes a number and returns it if the layer is proven to stretch by no more in l1, else a larger one;
    ``least_joint`` the same for what both noises together charge in l2. ``stated`` is how many times larger its paper says that
    both noises are.
    """

    input_scale: float
    hidden_scale: float
    columns: NDArray[np.float64]
    rows: NDArray[np.float64]
    least_provable: Callable[[float], float]
    least_joint: Callable[[float], float]
    stated: float = 1.0

    def known_costs(self, norm: str) -> tuple[float, float]:
        """Per unit of ``norm``: to the noise of the input alone, and split by coordinates; both exact."""
        each = np.minimum(1 / self.input_scale, self.columns / self.hidden_scale)
        split = {"l1": each.max(), "l2": np.linalg.norm(each), "linf": each.sum()}[norm]
        return identity_norm(norm, LAPLACE, len(self.columns)) / self.input_scale, float(split)

    def least_rate(self, norm: str, bound: str, stated_rate: float) -> float:
        """``stated_rate`` if ``bound`` charges no more per unit of ``norm``, else a larger number that it would charge."""
        alone, split = self.known_costs(norm)
        if bound not in (PUBLISHED, COMPOSITION):
            if min(alone, split) <= stated_rate:
                return stated_rate
            return min(alone, split, self._least_hidden(stated_rate))
        times = self.stated if bound == PUBLISHED else 1.0
        rate = (alone + self._least_hidden(stated_rate * times - alone)) / times
        return rate if rate > stated_rate * (1 + FLOAT_SLACK) else stated_rate

    def least_rate_in_l2(self, norm: str, stated_rate: float) -> float:
        """``stated_rate`` if the two noises together charge no more deviations, in l2, per unit of ``norm``; else more."""
        alone = identity_norm(norm, GAUSSIAN, len(self.columns)) / self.input_scale
        return stated_rate if alone <= stated_rate else min(alone, self.least_joint(stated_rate))

    def _least_hidden(self, stated_rate: float) -> float:
        """What the noise behind the layer alone charges: a number as low as can be proven, once the stated one cannot."""
        claimed = stated_rate * self.hidden_scale
        if not claimed > 0:
            return float(self.columns.max()) / self.hidden_scale  # the norm is at least its largest column
        least = self.least_provable(claimed)
        # Times the scale and divided by it again may end one float above where it began: a claim that is proven stays as it is.
        return stated_rate if least == claimed else least / self.hidden_scale

    def costs_of_slack(self, noise: Noise, law: str) -> tuple[float, float]:
        """Of rounding the layer (in l2 the split too), and as ``layer_error`` for inputs as far as the noise's table goes."""
        step, ratio = noise.grid / noise.levels, self.input_scale / self.hidden_scale
        furthest = 1 + math.ceil(TABLE_ENDS[noise.law] * noise.steps) * step
        share = 2 * relative_share(len(self.columns)) * furthest * ratio
        if law == LAPLACE:
            return len(self.rows) * step, share * float(self.columns.sum())
        length = float(np.linalg.norm(self.rows))
        split = math.hypot(math.sqrt(len(self.columns)), ratio * length) * step / 2
        return math.sqrt(len(self.rows)) * step + split, share * length


def two_noises_problems(noise: Noise, drawn: TwoNoises) -> Iterator[Problem]:
    """Scale, number of coordinates, both norms and slack of the record against the network."""
    if noise.sigma != drawn.input_scale:
        what = "sigma is not the scale of the network's noise on its input"
        yield Problem(noise.file, what, repr(noise.sigma), repr(drawn.input_scale))
    coordinates = len(drawn.columns) + len(drawn.rows)
    if noise.dimension != coordinates:
        what = "dimension is not the number of coordinates that get noise"
        yield Problem(noise.file, what, str(noise.dimension), str(coordinates))
    for one in noise.distances():
        yield from share_problems(noise.file, one, *drawn.costs_of_slack(noise, one.law))
        alone = identity_norm(noise.norm, one.law, len(drawn.columns)) / drawn.input_scale
        for name, said in (("operator_norm", one.operator_norm), ("slackless_norm", one.slackless_norm)):
            if said is None:
                continue
            stated = said / noise.sigma * (1 + FLOAT_SLACK)
            # Where rounding is not paid for, only the noise of the input can be charged for all.
            if name == "slackless_norm" and noise.bound not in (PUBLISHED, COMPOSITION):
                least = alone
            elif one.law == GAUSSIAN:
                least = drawn.least_rate_in_l2(noise.norm, stated)
            else:
                least = drawn.least_rate(noise.norm, noise.bound, stated)
            if not stated >= least:
                what = f"{one.name}{name} is below what the noise and the weights of the first layer allow"
                yield Problem(noise.file, what, repr(said), f"at least {noise.sigma * least!r}")
    # Half the room: a quotient in float32 must still tell whole steps apart.
    yield from exactness_problems(noise, float(noise.levels), room=0.5)


LARGEST_INPUT = 2**22

Leave = Callable[[str], None]
TOO_LARGE = "the operator norm of the first layer, which is too large"


@dataclass(frozen=True, eq=False)
class NoiseSite:
    """Where a network draws its own noise: behind ``layer`` (None at the input), with these scales of its coordinates.

    ``unequal`` says of noise at the input that the scales are not all 1, or are drawn for every row.
    """

    law: str
    layer: Layer | None
    deviation: float
    scales: Array
    # The layer with each output divided by its scale; None where there is none, or where it is too large.
    matrix: Matrix | None
    # Of a second noise, on the input, where there is noise behind the layer too.
    input_deviation: float | None = None
    unequal: bool = False
    # How many times larger than drawn a paper says that the two noises are.
    stated: float = 1.0
    # What was proven, by source, target and claim: certificates and attacks ask the same, and it can take seconds.
    known: dict[tuple[str, str, float], float] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """In the words of certificates.json."""
        if self.input_deviation is not None:
            return BOTH
        if self.layer is not None:
            return FIRST_LAYER
        return UNEQUAL_INPUT if self.unequal else INPUT

    def least_provable(self, norm: str, target: str, claimed: float) -> float:
        """``claimed`` where it is proven that the layer stretches by no more; else a larger number."""
        if self.matrix is None:
            raise LayerTooLargeError("no matrix")
        asked = (norm, target, claimed)
        if asked not in self.known:
            self.known[asked] = least_provable(self.matrix, norm, target, claimed)
        return self.known[asked]

    def least_joint(self, norm: str, claimed: float) -> float:
        """The same for what both noises together charge of a change, in l2 and in deviations."""
        if self.matrix is None or self.input_deviation is None:
            raise LayerTooLargeError("no matrix")
        asked = (norm, "both", claimed)
        if asked not in self.known:
            both = joint_matrix(self.matrix, self.input_deviation, self.deviation)
            self.known[asked] = least_provable(both, norm, "l2", claimed)
        return self.known[asked]


def noise_site(
    folder: RunFolder, run: dict[str, Any], owners: Callable[[], OwnersNetwork] | None = None, *, plain: bool = False
) -> NoiseSite | Problem | None:
    """The noise of the run's own network, None if it draws none; a problem where that cannot be found out.

    Where nothing but Gaussian noise at the input is spoken of (``plain``), an owner's network need not be there, unless its
    weights are those of a network with noise of its own.
    """
    own, without, content = is_own(run), block(run, "config").get("noise_layer") is None, folder.content(MODEL)
    if without and not own:
        return None
    if isinstance(content, Problem):
        return content
    if own and owners is None:
        spoken_of = without and plain and not _stores_noise(content)
        return None if spoken_of else _unknown("the network is the owner's, and its code is not here")
    data = sound(Data, run.get("data"))
    if data is None:
        return _unknown("data are not of the form that the format describes")
    if math.prod(data.shape) > LARGEST_INPUT:
        what = "no network can be built for this shape"
        return Problem(RUN_JSON, what, shown(data.shape), f"at most {LARGEST_INPUT} numbers")
    tensors = raw_tensors(content)
    try:
        if isinstance(tensors, str):
            return _unknown(tensors)
        placement = placement_of(block(run, "config"), owners() if own and owners is not None else None)
        return None if placement is None else _site(placement, tensors, tuple(data.shape))
    except (ArithmeticError, MemoryError, ValueError) as error:
        return _unknown(f"{type(error).__name__}: {error}")


def _stores_noise(content: bytes) -> bool:
    """Whether the weights hold the deviation of a noise layer."""
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]  # the names of the tensors, in JSON: nothing is read but the text
    return b'noise.deviation"' in header


def _unknown(why: str) -> Problem:
    what = "the noise layer cannot be rebuilt, so that nothing behind it can be checked"
    return Problem(MODEL, what, shown(why), "a network by its name, or in Python: verify_run(path, network=your_module)")


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
        input_deviation=None if on_input is None else _equal_deviation(tensors, on_input, math.prod(shape)),
        unequal=layer is None and not _is_equal(placement.spread, scales),
        stated=STATED_OVER_DRAWN if placement.kept else 1.0,
    )


def _deviation(tensors: Tensors, spread: Spread) -> float:
    return float(numbers(tensors, f"{spread.name}.deviation").reshape(()))


def _equal_deviation(tensors: Tensors, spread: Spread, coordinates: int) -> float:
    """Of noise on the input; unequal noise counts as none, for which nothing is proven."""
    return _deviation(tensors, spread) if _is_equal(spread, spread.scales(tensors, coordinates)) else 0.0


def _is_equal(spread: Spread, scales: Array) -> bool:
    return spread.kind != "random" and bool((scales == 1).all())


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
    elif site is not None and site.unequal:
        yield from _unequal_problems(noise, site.scales)


def _unequal_problems(noise: Noise, scales: Array) -> Iterator[Problem]:
    """The operator norm, slack, and whether the input divided by ``scales`` and noise add up exactly in the network."""
    shares = 1 / scales
    for one in noise.distances():
        truth = diagonal_norm(scales, noise.norm, one.law)
        if not truth * (1 - _OWN_ROUNDING * len(scales)) <= one.operator_norm <= truth * (1 + FLOAT_SLACK):
            what = f"{one.name}operator_norm is not that of the input divided by the scales of its noise"
            yield Problem(noise.file, what, repr(one.operator_norm), repr(truth))
        # Of a coordinate by itself: nothing is summed.
        yield from share_problems(noise.file, one, smallest_slack(noise, one.law), layer_error(one.law, 1, shares))
    yield from exactness_problems(noise, float(np.max(shares)))


def _layer_problems(noise: Noise, site: NoiseSite, layer: Layer, leave: Leave) -> Iterator[Problem]:
    """The operator norm, what float64 errs, and whether layer and noise add up exactly in the network."""
    if site.matrix is None:
        leave(TOO_LARGE)
        return
    claim = _papers_claim(noise.norm, site, layer, site.matrix) if noise.bound == PUBLISHED else None
    for one in noise.distances():
        target = "l2" if one.law == GAUSSIAN else "l1"
        try:
            least = site.least_provable(noise.norm, target, one.operator_norm) if claim is None else claim * (1 - FLOAT_SLACK)
        except LayerTooLargeError:
            leave(TOO_LARGE)
            least = reached(site.matrix, noise.norm, target)
        if not one.operator_norm >= least:
            what = f"{one.name}operator_norm is below what the weights of the first layer allow"
            yield Problem(noise.file, what, repr(one.operator_norm), f"at least {least!r}")
        erring = layer_error(one.law, layer.inputs, row_sums(site.matrix))
        yield from share_problems(noise.file, one, smallest_slack(noise, one.law), erring)
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
    """Noise on the input and behind the layer, both of one law."""
    usable = all(0 < scale < math.inf for scale in (input_scale, site.deviation))
    if (noise.law, noise.place) != (site.law, BOTH) or not usable:
        what = "two noises are certified together where both are of the network's law, and equal on the input"
        yield Problem(noise.file, what, f"{noise.law}, {noise.place}", f"{site.law}, {BOTH}")
        return
    if site.matrix is None:
        leave(TOO_LARGE)
        return
    drawn = TwoNoises(
        input_scale,
        site.deviation,
        column_sums(site.matrix),
        row_sums(site.matrix),
        lambda claimed: site.least_provable(noise.norm, "l1", claimed),
        lambda claimed: site.least_joint(noise.norm, claimed),
        site.stated,
    )
    try:
        yield from two_noises_problems(noise, drawn)
    except LayerTooLargeError:
        leave(TOO_LARGE)

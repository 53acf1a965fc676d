"""The layer that certificates behind it rest on, rebuilt from the run, and its operator norm bounded from both sides.

The network's code and the file of weights are the run's own (``twinproof.layers``, ``twinproof.runs``): what a layer computes
cannot be read from its numbers. Its norm is asked of ``twinproof.privacy.sensitivity``, which has no part in certification, and
again of a search of our own, which runs the layer itself and knows nothing of that package.

Guarantees
    A recorded norm passes only if it is not below the proven bound for the weights in the run, divided by the scales of the
    noise in the run, and not below what any tried input reaches; a recorded slack only if it also pays for what float64 errs
    in that layer. Whatever the run holds ends in a value or a problem; nothing larger than the weights that are there is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinproof.audit.evidence import RunFolder, shown
from twinproof.audit.fields import is_positive_count, whole
from twinproof.audit.verification import Problem
from twinproof.audit.verify_float_share import layer_error, row_sums, share_problems
from twinproof.audit.verify_method import BOTH, FIRST_LAYER, INPUT
from twinproof.audit.verify_model import FILE as MODEL
from twinproof.audit.verify_noise import Noise, exactness_problems, smallest_slack
from twinproof.audit.verify_norm_search import largest_output, reached_norm
from twinproof.audit.verify_reach import GAUSSIAN, LAPLACE, PUBLISHED
from twinproof.audit.verify_run_json import FILE as RUN_JSON
from twinproof.audit.verify_two_noises import STATED_OVER_DRAWN, TwoNoises, column_sums, is_usable, two_noises_problems
from twinproof.errors import TwinproofError

if TYPE_CHECKING:
    from torch import nn

    from twinproof.layers.noise import NoiseLayer

FLOAT_SLACK = 1e-9
LARGEST_INPUT = 2**22
LARGEST_WIDTH = 2**16
# What building a network from a stranger's settings may raise, besides the errors that are meant for people.
_REFUSALS = (TwinproofError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class NoiseSite:
    """Where a network draws its own noise: behind ``layer`` (None at the input), which sees inputs of ``shape``."""

    law: str
    layer: nn.Module | None
    shape: tuple[int, ...]
    deviation: float
    scales: NDArray[np.float64]
    # Of a second noise, on the input, where there is noise behind the layer too.
    input_deviation: float | None = None
    # How many times larger than drawn a paper says that the two noises are.
    stated: float = 1.0
    # Norms that were found, by source and target: certificates and attacks ask for the same one, and it can take seconds.
    known: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """In the words of certificates.json."""
        if self.input_deviation is not None:
            return BOTH
        return INPUT if self.layer is None else FIRST_LAYER


def noise_site(
    folder: RunFolder, run: dict[str, Any], network: nn.Module | None = None, *, plain: bool = False
) -> NoiseSite | Problem | None:
    """The noise of the run's own network, None if it draws none; a problem where that cannot be found out.

    Where nothing but Gaussian noise at the input is spoken of (``plain``), an owner's network need not be there, unless its
    weights are those of a network with noise of its own.
    """
    config = run.get("config")
    config = config if isinstance(config, dict) else {}
    without = config.get("noise_layer") is None
    if without and not _is_own(config):
        return None
    if _is_own(config) and network is None:
        spoken_of = without and plain and not _stores_noise(folder)
        return None if spoken_of else _unknown("the network is the owner's, and its code is not here")
    refusal = _too_large(run, config)
    if refusal is not None:
        return refusal
    try:
        return _rebuilt(folder, run, network)
    except _REFUSALS as error:
        return _unknown(_words(error))


def _stores_noise(folder: RunFolder) -> bool:
    """Whether the weights hold the deviation of a noise layer."""
    content = folder.content(MODEL)
    if isinstance(content, Problem):
        return False  # which is told elsewhere
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]  # the names of the tensors, in JSON: nothing is read but the text
    return b'noise.deviation"' in header


def _is_own(config: dict[str, Any]) -> bool:
    return isinstance(config.get("model"), str) and config["model"].startswith("own:")


def _unknown(why: str) -> Problem:
    what = "the noise layer cannot be rebuilt, so that nothing behind it can be checked"
    return Problem(MODEL, what, shown(why), "a network by its name, or in Python: verify_run(path, network=your_module)")


def _words(error: Exception) -> str:
    return error.what if isinstance(error, TwinproofError) else f"{type(error).__name__}: {error}"


def _too_large(run: dict[str, Any], config: dict[str, Any]) -> Problem | None:
    """Sizes that no weights in the run can have: without this, one number could stop the machine that checks it."""
    data = run.get("data")
    shape = data.get("shape") if isinstance(data, dict) else None
    if not isinstance(shape, list) or not shape or not all(map(is_positive_count, shape)) or math.prod(shape) > LARGEST_INPUT:
        return Problem(RUN_JSON, "no network can be built for this shape", shown(shape), f"at most {LARGEST_INPUT} numbers")
    width = whole(config.get("width", 1))
    if width is None or not 1 <= width <= LARGEST_WIDTH:
        wanted = f"an integer from 1 to {LARGEST_WIDTH}"
        return Problem(RUN_JSON, "no network can be built of this width", shown(config.get("width")), wanted)
    return None


def _rebuilt(folder: RunFolder, run: dict[str, Any], network: nn.Module | None) -> NoiseSite | Problem | None:
    import torch  # heavy, and only needed for runs with noise of their own

    from twinproof.layers.noise import split_at_noise, split_at_two_noises
    from twinproof.layers.noise.fixed_draws import FixedDraws
    from twinproof.runs.run import Run

    content, shape = folder.content(MODEL), tuple(run["data"]["shape"])
    if isinstance(content, Problem):
        return content
    with torch.random.fork_rng(devices=[]):  # a network is made with random weights, which must not cost the caller's numbers
        if network is None and (refusal := _more_than_stored(len(content), run, shape)) is not None:
            return refusal
        model = Run(folder.root, run, network).model()
        two = split_at_two_noises(model)
        split = split_at_noise(model) if two is None else two.hidden
    if split is None:
        return None
    kept = two is not None and isinstance(next(iter(two.hidden.after), None), FixedDraws)
    return NoiseSite(
        law=str(split.noise.law),
        layer=split.before,
        shape=(math.prod(shape),) if split.flattens else shape,
        deviation=float(split.noise.deviation),
        scales=split.noise.spread.least_scales(),
        input_deviation=None if two is None else _equal_deviation(two.input_noise),
        stated=STATED_OVER_DRAWN if kept else 1.0,
    )


def _equal_deviation(noise: NoiseLayer) -> float:
    """Of noise on the input; unequal noise, or noise of another law, counts as none, for which nothing is proven."""
    equal = str(noise.law) == LAPLACE and not noise.spread.random and bool((noise.spread.least_scales() == 1).all())
    return float(noise.deviation) if equal else 0.0


def _more_than_stored(stored: int, run: dict[str, Any], shape: tuple[int, ...]) -> Problem | None:
    """Whether the network has more weights than ``stored`` bytes hold; asked of one without memory behind its weights."""
    import torch

    from twinproof.layers.models.registry import build_network

    config = run["config"]
    with torch.device("meta"):
        empty = build_network(config["model"], shape, len(run["data"]["classes"]), width=config.get("width", 1))
    wanted = sum(weight.numel() for weight in empty.parameters())
    if wanted > stored:
        return Problem(MODEL, "the weights are not those of the network of config", f"{stored} bytes", f"{wanted} weights")
    return None


def site_problems(noise: Noise, site: NoiseSite | None, *, own_sigma: bool = False) -> Iterator[Problem]:
    """Whether ``noise`` is the network's own (``site``; None: it has none, and Gaussian noise is added to the input).

    Its deviation may have been chosen anew for certificates; with ``own_sigma`` it was not.
    """
    if site is not None and site.input_deviation is not None:
        yield from _two_noises_problems(noise, site, site.input_deviation)
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
        yield from _layer_problems(noise, site, site.layer)
    elif site is not None and not (site.scales == 1).all():
        what = "noise at the input has other scales than 1, for which nothing is proven here"
        yield Problem(noise.file, what, f"smallest scale {site.scales.min()!r}", "1")


def _layer_problems(noise: Noise, site: NoiseSite, layer: nn.Module) -> Iterator[Problem]:
    """The operator norm from both sides, what float64 errs, and whether layer and noise add up exactly in the network."""
    target, claimed = ("l2" if noise.law == GAUSSIAN else "l1"), noise.bound == PUBLISHED
    try:
        least = _claimed_norm(noise.norm, site, layer) if claimed else _proven_norm(noise.norm, target, site, layer)
        reached = 0.0 if claimed else reached_norm(layer, site.shape, site.scales, noise.norm, target)
        largest = largest_output(layer, site.shape, site.scales)
        erring = layer_error(noise.law, math.prod(site.shape), row_sums(layer, site.shape, site.scales))
    except _REFUSALS as error:
        yield _unknown(_words(error))
        return
    for truth, where in ((least, "the weights of the first layer allow"), (reached, "an input reaches")):
        if not noise.operator_norm >= truth * (1 - FLOAT_SLACK):
            what = f"operator_norm is below what {where}"
            yield Problem(noise.file, what, repr(noise.operator_norm), f"at least {truth!r}")
    yield from share_problems(noise, smallest_slack(noise), erring)
    yield from exactness_problems(noise, largest)


def _two_noises_problems(noise: Noise, site: NoiseSite, input_scale: float) -> Iterator[Problem]:
    """Noise on the input and behind the layer, both of Laplace's law."""
    if (noise.law, noise.place, site.law) != (LAPLACE, BOTH, LAPLACE) or not (
        is_usable(input_scale) and is_usable(site.deviation)
    ):
        what = "two noises are certified together where both are Laplace's, and equal on the input"
        yield Problem(noise.file, what, f"{noise.law}, {noise.place}", f"{LAPLACE}, {BOTH}")
        return
    layer = site.layer
    if layer is None:
        yield _unknown("noise at two places without a layer between them")
        return
    try:
        columns = column_sums(layer, site.shape, site.scales)
        hidden = _proven_norm(noise.norm, "l1", site, layer)
    except _REFUSALS as error:
        yield _unknown(_words(error))
        return
    drawn = TwoNoises(input_scale, site.deviation, hidden, columns, len(site.scales), site.stated)
    yield from two_noises_problems(noise, drawn)


def _proven_norm(norm: str, target: str, site: NoiseSite, layer: nn.Module) -> float:
    from twinproof.privacy.sensitivity.operator_norm import operator_norm

    if (norm, target) not in site.known:
        site.known[norm, target] = operator_norm(layer, site.shape, source=norm, target=target, scale=site.scales).value
    return site.known[norm, target]


def _claimed_norm(norm: str, site: NoiseSite, layer: nn.Module) -> float:
    """What the papers put in the norm's place, where they have something of their own."""
    from torch.nn import Linear

    from twinproof.privacy.sensitivity.paper_bounds import paper_reshaped_kernel, paper_row_norm, paper_single_feature_map

    convolution = not isinstance(layer, Linear)
    if norm == "linf":
        claim = paper_single_feature_map if convolution else paper_row_norm
        return claim(layer, site.shape, site.scales)
    if norm == "l2" and convolution and bool((site.scales == 1).all()):
        return paper_reshaped_kernel(layer)
    return _proven_norm(norm, "l2", site, layer)

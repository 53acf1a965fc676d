"""The robustness promise of a certified run, in words, with its numbers, its theorem and its assumptions."""

from __future__ import annotations

from twinproof.certification.bounds import RobustnessBound, TightGaussian
from twinproof.certification.catalogue import bound_plugin, find_bound, status_of
from twinproof.certification.confidence import RunnerUp, find_confidence
from twinproof.certification.method import PLAIN, CertificateSettings, Statistic
from twinproof.extensions import ASSUMED_REASON
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.layers.noise import Law, Place
from twinproof.layers.noise_placement import BOTH_PLACES, UNEQUAL_INPUT

_GRID = "noise on a power-of-two grid, so that float32 addition is exact"
_PLAIN = "Randomized smoothing (Cohen, Rosenfeld and Kolter 2019, theorem 1) with a one-sided Clopper-Pearson bound"
_LOOKS = "; looks at fixed numbers of draws share alpha, so that all their bounds hold at once (union bound)"
_UNION = "; one lower and classes - 1 upper bounds at alpha / classes each (union bound)"
_LAYER = (
    "; the noise is added to the whitened first layer, whose movement is bounded by an operator norm of the final weights and "
    "by what rounding it to the grid can add"
)
_BOTH = (
    "; noise is added to the input and to the whitened first layer in the same pass: what a change costs is that of the best "
    "split of it between the two, or with the bound 'composition' the sum of both, and what rounding the layer can add"
)
_UNEQUAL = (
    "; the noise at the input has a scale of its own in every coordinate: it is added to the input divided by these scales, "
    "whose movement is the exact norm of that division and what rounding to the grid can add"
)
_ASSUMPTIONS = (
    "The answer is that of the smoothed classifier with exactly these weights and this noise, not of the bare network.",
    "Each certificate alone fails with probability at most alpha; they do not hold jointly with that probability.",
    "The network runs in the form and precision, and on the kind of device, that the certificate settings name.",
    "The pseudo-random generator behaves like ideal random bits; the certification key was not chosen by trying several.",
)
_SCORES = "The smoothed classifier is the class with the largest mean score: the softmax, floored to multiples of 2^-20."
_LAYER_ARITHMETIC = (
    "The layer before the noise is computed in float64 with the rounding errors of the standard model (sums of products)."
)
_SHARED = (
    "Inputs were certified with the same noise: what holds for each alone still does, but certificates may fail together.",
    "The weights of the first layer are rounded to multiples of a power of two, so that it is exactly linear.",
)

# What the values of a promise name where it is not as in plain smoothing.
_UNUSUAL: dict[str, float | str] = {
    "law": str(Law.GAUSSIAN),
    "place": str(Place.INPUT),
    "bound": TightGaussian.name,
    "statistic": str(PLAIN.statistic),
    "confidence": PLAIN.confidence,
    "runner_up": str(PLAIN.runner_up),
    "operator_norm": 1.0,
}


def certified_promise(settings: CertificateSettings) -> Guarantee:
    """What a complete certification promises: as much as its bound does.

    Guarantees
        The status is ``proven`` only where the bound's is and the bound is the library's own. A bound that is refuted promises
        nothing, and the reason says why.
    """
    method, noise, sampling = settings.method, settings.noise, settings.sampling
    bound = find_bound(method.bound, Law(noise.law))
    status, plugin = status_of(bound), bound_plugin(bound)
    promising = status in (Status.PROVEN, Status.ASSUMED)
    outside = () if plugin is None else (plugin.assumption,)
    return Guarantee(
        Kind.ROBUSTNESS,
        status,
        _promise(settings) if promising else "Nothing is promised: these radii are what a paper claims, to be compared.",
        theorem=_theorem(settings, bound) if promising else bound.theorem,
        assumptions=_assumptions(settings) + outside if promising else (),
        reason=bound.reason or (ASSUMED_REASON if status is Status.ASSUMED else ""),
        values=(
            ("sigma", noise.sigma),
            ("alpha", sampling.alpha),
            ("n", sampling.n),
            ("largest_radius", settings.largest_radius),
            ("norm", str(method.norm)),
            *((("target_radius", sampling.target_radius),) if sampling.target_radius is not None else ()),
            *((name, value) for name, value in _named(settings).items() if value != _UNUSUAL[name]),
        ),
    )


def _named(settings: CertificateSettings) -> dict[str, float | str]:
    everything = {**vars(settings.method), **vars(settings.noise)}
    return {name: everything[name] for name in _UNUSUAL}


def _promise(settings: CertificateSettings) -> str:
    return (
        f"For each certified input, except with probability {settings.sampling.alpha!r}: no change smaller than its radius "
        f"({settings.method.norm}, inputs in [0, 1]) changes the smoothed classifier's answer."
    )


def _theorem(settings: CertificateSettings, bound: RobustnessBound) -> str:
    method = settings.method
    confidence = find_confidence(method.confidence).theorem
    usual = (settings.noise.law, method.bound, method.statistic, method.confidence) == (
        Law.GAUSSIAN,
        TightGaussian.name,
        PLAIN.statistic,
        PLAIN.confidence,
    )
    parts = f"{_PLAIN}; {_GRID}" if usual else f"{bound.theorem}; confidence: {confidence}; {_GRID}"
    union = _UNION if method.runner_up == RunnerUp.UNION else ""
    layer = {str(Place.FIRST_LAYER): _LAYER, BOTH_PLACES: _BOTH, UNEQUAL_INPUT: _UNEQUAL}.get(settings.noise.place, "")
    return parts + layer + union + (_LOOKS if settings.sampling.target_radius is not None else "")


def _assumptions(settings: CertificateSettings) -> tuple[str, ...]:
    norm = settings.method.norm
    distance = f"The {norm} distance is measured in input units ([0, 1] per coordinate), between inputs that can be stored."
    return (
        distance,
        *_ASSUMPTIONS,
        *((_SCORES,) if settings.method.statistic == Statistic.SCORES else ()),
        *((_LAYER_ARITHMETIC,) if settings.noise.place != Place.INPUT else ()),
        *(_SHARED if settings.sampling.shared_noise else ()),
    )

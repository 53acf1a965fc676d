"""The robustness promise of a certified run, in words, with its numbers, its theorem and its assumptions."""

from __future__ import annotations

from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.runs.certificates import CertificateSettings

_THEOREM = (
    "Randomized smoothing (Cohen, Rosenfeld and Kolter 2019, theorem 1) with a one-sided Clopper-Pearson bound; "
    "noise on a power-of-two grid, so that float32 addition is exact"
)
_LOOKS = "; looks at fixed numbers of draws share alpha, so that all their bounds hold at once (union bound)"
_ASSUMPTIONS = (
    "The l2 distance is measured in input units ([0, 1] per coordinate), between inputs that can be stored.",
    "The answer is that of the smoothed classifier with exactly these weights and this noise, not of the bare network.",
    "Each certificate alone fails with probability at most alpha; they do not hold jointly with that probability.",
    "The network runs in the form and precision, and on the kind of device, that the certificate settings name.",
    "The pseudo-random generator behaves like ideal random bits; the certification key was not chosen by trying several.",
)


_SHARED = (
    "Inputs were certified with the same noise: what holds for each alone still does, but certificates may fail together.",
    "The weights of the first layer are rounded to multiples of a power of two, so that it is exactly linear.",
)


def certified_promise(settings: CertificateSettings) -> Guarantee:
    """What a complete certification promises."""
    sequential = settings.target_radius is not None
    return Guarantee(
        Kind.ROBUSTNESS,
        Status.PROVEN,
        f"For each certified input, except with probability {settings.alpha!r}: no change smaller than its radius "
        f"(l2, inputs in [0, 1]) changes the smoothed classifier's answer.",
        theorem=_THEOREM + (_LOOKS if sequential else ""),
        assumptions=_ASSUMPTIONS + (_SHARED if settings.shared_noise else ()),
        values=(
            ("sigma", settings.sigma),
            ("alpha", settings.alpha),
            ("n", settings.n),
            ("largest_radius", settings.largest_radius),
            ("norm", settings.norm),
            *((("target_radius", settings.target_radius),) if settings.target_radius is not None else ()),
        ),
    )


def unfinished_promise(settings: CertificateSettings) -> Guarantee:
    """What a certification promises while it is being made: nothing."""
    return Guarantee(
        Kind.ROBUSTNESS,
        Status.NONE,
        "No prediction has been certified yet.",
        reason="the certification is not finished; run `twinproof certify` again to go on",
        values=(("sigma", settings.sigma),),
    )

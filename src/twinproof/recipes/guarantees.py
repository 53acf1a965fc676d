"""The privacy promise of a run, in words, with its numbers, its theorem and its assumptions."""

from __future__ import annotations

from twinproof.data.record import Dataset
from twinproof.guarantee import Guarantee, Kind, Status
from twinproof.privacy.accounting import Spending
from twinproof.recipes.config import TrainConfig
from twinproof.rounding import format_up

_THEOREM = (
    "Poisson-subsampled Gaussian mechanism, composed over all steps by privacy loss distributions "
    "(Abadi et al. 2016; Doroshenko et al. 2022); cross-checked by Renyi accounting (Mironov 2017)"
)
_ASSUMPTIONS = (
    "Neighbours differ by one added or removed training record; if a person has several records, the promise is weaker.",
    "The number of training records, the class names, the input's shape and the test set are public.",
    "The noise key came from the operating system's entropy, was kept secret and was deleted when training ended.",
    "Only the files outside private/ are released; training time and memory use are not observed by the adversary.",
    "Not counted: what was spent by choosing settings or initial weights by looking at these records, or by other runs.",
    "Secret bits come from SHAKE-256, on a GPU from ChaCha20 under keys from it; both are taken as pseudorandom functions.",
    "Gaussian draws are made in float64 by inversion and rounded to a grid; their law is taken as exactly Gaussian.",
    "A record's gradient is computed alike in every row of a pass: bit for bit on a CPU, up to float rounding on a GPU.",
)


def privacy_guarantee(config: TrainConfig, dataset: Dataset, spent: Spending | None) -> Guarantee:
    """What the run promises about its training records.

    Guarantees
        Status ``proven`` is given only to a private recipe whose noise nobody can reproduce. A known seed, or no privacy
        mechanism at all, gives ``none`` with the reason.
    """
    if spent is None:
        reason = "the recipe trains without a privacy mechanism"
        return Guarantee(Kind.PRIVACY, Status.NONE, "Nothing is promised about the training records.", reason=reason)
    if config.seed is not None:
        return Guarantee(
            Kind.PRIVACY,
            Status.NONE,
            "Nothing is promised about the training records.",
            reason="noise is reproducible from a known seed",
        )
    promise = (
        f"Whoever sees this model learns almost the same about any one training record as if it had not been there: "
        f"({format_up(spent.epsilon, 4)}, {spent.delta:g})-differential privacy, add-or-remove-one."
    )
    scaling = () if dataset.scaling is None else (_scaling_assumption(dataset.scaling.source),)
    return Guarantee(
        Kind.PRIVACY,
        Status.PROVEN,
        promise,
        theorem=_THEOREM,
        assumptions=(*_ASSUMPTIONS, *scaling),
        values=(("epsilon", spent.epsilon), ("epsilon_rdp", spent.epsilon_rdp), ("delta", spent.delta)),
    )


def _scaling_assumption(source: str) -> str:
    return {
        "declared": "The declared feature ranges were not chosen by looking at the training records.",
        "test": "The feature ranges come from the test set, which is public.",
        "private": "The feature ranges were estimated from the training records privately; the ledger counts it.",
    }[source]


def not_yet_certified(sigma: float) -> Guarantee:
    """The robustness promise before certification: none."""
    return Guarantee(
        Kind.ROBUSTNESS,
        Status.NONE,
        "No prediction has been certified yet.",
        reason="run `twinproof certify` on this run",
        values=(("sigma", sigma),),
    )

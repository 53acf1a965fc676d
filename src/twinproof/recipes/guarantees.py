"""The privacy guarantee of a run: its words, numbers, theorem and assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from twinproof.data.record import Dataset
from twinproof.extensions import ASSUMED_REASON, Plugin, permitted
from twinproof.guarantee import Guarantee, Kind, Status, format_up, guessing_words
from twinproof.layers.noise_placement import RedistributionKind
from twinproof.privacy.accounting import Spending
from twinproof.recipes.config import TrainConfig
from twinproof.recipes.noise_layer import NoiseLayerConfig
from twinproof.recipes.registry import privacy_status

_THEOREM = (
    "Poisson-subsampled Gaussian mechanism, composed over all steps by privacy loss distributions "
    "(Abadi et al. 2016; Doroshenko et al. 2022); cross-checked by Renyi accounting (Mironov 2017)"
)
_ASSUMPTIONS = (
    "Neighbours differ in one training record, which one of them replaces by nothing: the number of records is public. If a "
    "person has several records, the promise is weaker.",
    "The number of training records, the class names, the input's shape and the test set are public.",
    "The noise key came from the operating system's entropy, was kept secret and was deleted when training ended.",
    "Only the files outside private/ are released; training time and memory use are not observed by the adversary.",
    "Not counted: what was spent by choosing settings or initial weights by looking at these records, or by other runs.",
    "Secret bits come from SHAKE-256, on a GPU from ChaCha20 under keys from it; both are taken as pseudorandom functions.",
    "Gaussian draws are made in float64 by inversion and rounded to a grid; their law is taken as exactly Gaussian.",
    "A record's gradient is computed alike in every row of a pass: bit for bit on a CPU, up to float rounding on a GPU.",
    # It belongs to rows of a pass, so that a record less moves it from record to record: known noise would not be covered.
    "Noise on copies of a record and inside the network comes from torch's generators, in states that the key decides for each "
    "pass; it is taken as truly random and unknown to the adversary.",
)

_OWN_NETWORK = (
    "The network is the owner's own: its code was not read. That it treats every record alone was tried at the run's pass "
    "size, before and during training."
)
OWN_NETWORK_ASSUMPTIONS = {
    "gpu-rounding": (
        "On the GPU the gradient of one record was the same in every row only up to float rounding. That this rounding says "
        "nothing about another record is assumed."
    ),
    "kept-state": (
        "The network keeps values in Python between passes. That they act on no later gradient was tried at some steps and is "
        "assumed for the others."
    ),
}
"""What could not be shown about an owner's own network, by the codes in ``run.json["own_network"]["assumptions"]``."""

_ASSUMED_REASON = "the network is the owner's own, and not everything about it could be shown: see the last assumptions"
_PUBLISHED_REASON = "the recipe was carried out by its paper's formulas; only the sound variant is called proven"
_NOTHING = "Nothing is promised about the training records."
_REFUTED_PROMISE = "Nothing is promised about the training records: the published variant does not keep its own promise."
_REFUTED_REASON = (
    "the redistribution vector r is a deterministic function of the training records, it is part of the released model, and "
    "no noise was added to it: two data sets that differ in one record give different r, which tells them apart with certainty"
)


def privacy_guarantee(
    config: TrainConfig,
    dataset: Dataset,
    spent: Spending | None,
    own_network: Sequence[str] | None = None,
    plugins: Sequence[Plugin] = (),
) -> Guarantee:
    """What the run promises about its training records.

    ``own_network`` holds the codes of what could not be shown about an owner's own network; None for a built-in one.
    ``plugins`` is what the run uses from outside of this package.

    Guarantees
        Status ``proven`` is given only to a private recipe whose noise nobody can reproduce and whose redistribution vector
        is public or paid for. A known seed, or no privacy mechanism at all, gives ``none`` with the reason; a redistribution
        vector that nothing pays for, or steps that no plan can count, give ``refuted``, and no epsilon. Any other published
        variant gives ``published``. A code of ``own_network``, or one of ``plugins``, turns ``proven`` into ``assumed``.
    """
    variant = config.spec.variant(config.variant)
    claimed = privacy_status(config.spec) if variant is None else permitted(variant.status)
    if variant is not None and variant.refutation:
        return Guarantee(Kind.PRIVACY, Status.REFUTED, _REFUTED_PROMISE, reason=variant.refutation)
    if spent is None:
        return Guarantee(Kind.PRIVACY, Status.NONE, _NOTHING, reason="the recipe trains without a privacy mechanism")
    if takes_r_unpaid(config):
        return Guarantee(Kind.PRIVACY, Status.REFUTED, _REFUTED_PROMISE, reason=_REFUTED_REASON)
    if config.seed is not None:
        return Guarantee(Kind.PRIVACY, Status.NONE, _NOTHING, reason="noise is reproducible from a known seed")
    if claimed in (Status.REFUTED, Status.NONE):
        return Guarantee(Kind.PRIVACY, claimed, _NOTHING, reason="the recipe itself promises nothing")
    promise = (
        f"({format_up(spent.epsilon, 4)}, {spent.delta!r})-differential privacy, for one training record replaced by nothing. "
        f"{guessing_words(spent.epsilon, spent.delta)}"
    )
    scaling = () if dataset.scaling is None else (_scaling_assumption(dataset.scaling.source),)
    shares = () if config.noise_layer is None else (_redistribution_assumption(config.noise_layer),)
    own = () if own_network is None else (_OWN_NETWORK, *(OWN_NETWORK_ASSUMPTIONS[code] for code in own_network))
    status = permitted(claimed) if own_network or plugins else claimed
    outside = tuple(plugin.assumption for plugin in plugins) if status is Status.ASSUMED else ()
    assumed = ASSUMED_REASON if outside else _ASSUMED_REASON
    reason = {Status.PUBLISHED: _PUBLISHED_REASON, Status.ASSUMED: assumed}.get(status, "")
    return Guarantee(
        Kind.PRIVACY,
        status,
        promise,
        theorem=_THEOREM,
        assumptions=(*_ASSUMPTIONS, *scaling, *shares, *own, *outside),
        reason=reason,
        values=(("epsilon", spent.epsilon), ("epsilon_rdp", spent.epsilon_rdp), ("delta", spent.delta)),
    )


def takes_r_unpaid(config: TrainConfig) -> bool:
    """Whether r is computed from the training records and no privacy budget pays for it."""
    noise = config.noise_layer
    training = noise is not None and noise.redistribution is RedistributionKind.TRAINING
    variant = config.spec.variant(config.variant)
    return training and variant is not None and variant.unpaid_shares


def _redistribution_assumption(noise: NoiseLayerConfig) -> str:
    if noise.redistribution is RedistributionKind.PUBLIC and noise.public_data is None:
        return (
            "The layer noise's redistribution r comes from the test set, which is public, and random weights; the accuracy on "
            "the test set is therefore slightly optimistic."
        )
    return {
        RedistributionKind.UNIFORM: "The layer noise has equal shares r: nothing about the records enters it.",
        RedistributionKind.RANDOM: "The layer noise's redistribution r is drawn at random, independently of the records.",
        RedistributionKind.PUBLIC: (
            "The layer noise's redistribution r comes from other, public data, none of which is a training record, and random "
            "weights."
        ),
        RedistributionKind.TRAINING: (
            "The layer noise's redistribution r was estimated from the training records privately, at random weights; "
            "the ledger counts it."
        ),
        RedistributionKind.LEARNED: "The layer noise's redistribution r is a weight: the same private steps trained it.",
    }[noise.redistribution]


def _scaling_assumption(source: str) -> str:
    return {
        "declared": "The declared feature ranges were not chosen by looking at the training records.",
        "test": "The feature ranges come from the test set, which is public.",
        "private": "The feature ranges were estimated from the training records privately; the ledger counts it.",
    }[source]


def not_yet_certified(sigma: float) -> Guarantee:
    """The robustness promise of a run of format 1 or 2 before certification: none."""
    return Guarantee(
        Kind.ROBUSTNESS,
        Status.NONE,
        "No prediction has been certified yet.",
        reason="run `twinproof certify` on this run",
        values=(("sigma", sigma),),
    )

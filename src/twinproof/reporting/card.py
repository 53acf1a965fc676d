"""The guarantee card: what is promised, to whom, how far it may be trusted, and what it does not say."""

from __future__ import annotations

from dataclasses import dataclass

from twinproof.evaluation.certified import radius_at_accuracy
from twinproof.guarantee import Guarantee, Status, guessing_words
from twinproof.reporting import numbers
from twinproof.reporting.evidence import Certification
from twinproof.reporting.facts import Privacy, RunFacts, number
from twinproof.reporting.words import Undone, bound_text, noise_text, voting_text

SHARES = (0.9, 0.75, 0.5, 0.25)
Rows = list[tuple[str, str]]

_WEAK = "weak"
_STATUSES = {
    Status.PROVEN: ("✓", "a theorem, and tests that could refute it"),
    Status.PUBLISHED: ("?", "a paper's claim, not proven here"),
    Status.ASSUMED: ("!", "holds if the named assumptions do, which could not be checked"),
    Status.REFUTED: ("✗", "shown to be false"),
    Status.NONE: ("–", "nothing is promised"),
}
_UNDONE = {
    Undone.CHECK_FAILED: "the run failed its verification",
    Undone.CONTRADICTED: "an attack contradicts the certificates",
    Undone.MISSING: "the certificates that the promise rests on are missing",
}
_UNDONE_SENTENCES = {
    Undone.CHECK_FAILED: "This run failed its verification: the promise recorded with it may not be relied on.",
    Undone.CONTRADICTED: (
        "An attack contradicts the certificates of this run (see below): a certificate or the attack is broken. Until it is "
        "known which, no radius may be relied on."
    ),
    Undone.MISSING: (
        "The evidence is missing: run.json records a promise of robustness, but the certificates that it rests on are not in "
        "the run. No radius is promised."
    ),
}
_QUALIFIED = {
    Status.PUBLISHED: "A paper claims the following; it is not proven here. ",
    Status.ASSUMED: "This holds if the last assumptions below do; they could not be checked. ",
}
_PRIVACY_LIMITS = (
    "Nothing about what can be inferred from the population as a whole: a pattern that holds without a person's record may "
    "still be learned, and may still concern that person.",
    "Nothing if the training was repeated, or its settings were tuned, on the same records outside this run's ledger: every "
    "look spends.",
    "One record is protected at a time: who contributed several has a weaker promise. The test set and the number of training "
    "records have none; they are public.",
)
_ROBUSTNESS_LIMITS = (
    "Only changes measured in the {norm} norm, smaller than the radius; nothing about larger changes or about changes of "
    "meaning (a rotation, another background, another writer).",
    "It speaks of the smoothed classifier, which {votes}, not of the network asked once; and it says that the answer stays, "
    "not that it is right.",
    "Each certificate holds with probability at least 1\u00a0−\u00a0{alpha} over the noise drawn for it; they do not hold "
    "jointly.",
)
_INTERVAL_LIMITS = (
    _ROBUSTNESS_LIMITS[0],
    "It speaks of the network itself, run in float32 or float64 by sums of products (TF32, bfloat16, Winograd and Fourier "
    "transforms are not covered); and it says that the answer stays, not that it is right.",
)
_SHARED_NOISE = (
    "All inputs met the same noise: each certificate alone holds as it says, but certificates may fail together, and shares of "
    "certified inputs vary more than those of independent ones."
)


@dataclass(frozen=True)
class Badge:
    """A status as a sign and a word in its colour: the colour is never the only cue."""

    sign: str
    word: str
    meaning: str
    colour: str


@dataclass(frozen=True)
class CardHalf:
    """One half of the card; its ``numbers`` and ``limits`` are those of a promise, and are shown only where one is made."""

    title: str
    guarantee: Guarantee
    badge: Badge
    sentence: str
    promised: bool
    whom: str
    numbers: Rows
    limits: tuple[str, ...]


def badge(status: Status, undone: Undone | None = None, *, weak: bool = False) -> Badge:
    """The badge of a promise. A proof of one that says next to nothing (``weak``) does not get the colour of proofs."""
    if undone is not None and (status is not Status.REFUTED or undone is Undone.CHECK_FAILED):
        return Badge("✗", str(undone), _UNDONE[undone], str(Status.REFUTED))
    sign, meaning = _STATUSES[status]
    if weak:
        return Badge("!", f"{status}, {_WEAK}", f"{meaning}, but epsilon is too large to mean much", _WEAK)
    return Badge(sign, str(status), meaning, str(status))


def privacy_badge(privacy: Privacy) -> Badge:
    return badge(privacy.guarantee.status, privacy.undone, weak=privacy.weak)


def robustness_badge(certification: Certification) -> Badge:
    return badge(certification.guarantee.status, certification.undone)


def privacy_sentence(privacy: Privacy) -> str:
    """The privacy promise in plain words; never one that the status does not carry."""
    status, epsilon = privacy.guarantee.status, privacy.epsilon
    if status is Status.REFUTED:
        return "The claim made for this way of training has been shown to be false. Treat the model as not private."
    if status is Status.NONE:
        return "No privacy is promised: whoever sees the model may learn about single training records."
    if privacy.undone:
        return _UNDONE_SENTENCES[privacy.undone]
    if epsilon is None or privacy.delta is None:
        return privacy.guarantee.promise or "A promise is recorded, but not its numbers."
    return (
        f"{_QUALIFIED.get(status, '')}Replacing any one person's record by nothing changes the probability of any result of "
        f"this training by at most a factor of {numbers.factor(epsilon)}, plus {numbers.probability(privacy.delta)}. "
        f"{guessing_words(epsilon, privacy.delta)}"
    )


def robustness_sentence(certification: Certification) -> str:
    """The robustness promise in plain words; without certificates there is none."""
    status = certification.guarantee.status
    if status is Status.REFUTED:
        claimed = " Radii on this page are what was claimed, and no promise." if certification.certificates else ""
        return f"The claim made for these certificates has been shown to be false. Treat the model as not robust.{claimed}"
    if status is Status.NONE:
        return "No robustness is promised: a small change of the input may change the answer."
    if certification.undone:
        return _UNDONE_SENTENCES[certification.undone]
    if certification.bounded:
        return (
            "For each certified input, no change of up to its radius (linf norm, within [0, 1]) can change the answer of the "
            "network. This is certain: nothing was drawn."
        )
    return (
        f"{_QUALIFIED.get(status, '')}For each certified input, no change smaller than its radius ({certification.words.norm} "
        "norm) can change the answer of the smoothed classifier."
    )


def guarantee_card(facts: RunFacts) -> list[CardHalf]:
    """The privacy half, and one half for each certification."""
    several = len(facts.certifications) > 1
    return [_privacy_half(facts), *(_robust_half(one, several=several) for one in facts.certifications)]


def _privacy_half(facts: RunFacts) -> CardHalf:
    privacy, records = facts.privacy, facts.data.get("records")
    declared = f" ({numbers.setting(records)} records, as declared)" if isinstance(records, int) else ""
    return CardHalf(
        title="Private",
        guarantee=privacy.guarantee,
        badge=privacy_badge(privacy),
        sentence=privacy_sentence(privacy),
        promised=privacy.promised,
        whom=f"Each person whose record is in the training set{declared}.",
        numbers=_privacy_numbers(privacy),
        limits=_PRIVACY_LIMITS,
    )


def _robust_half(certification: Certification, *, several: bool) -> CardHalf:
    settings = certification.settings
    tested = f" ({len(certification.certificates):,} test inputs)" if certification.certificates else ""
    filled = {
        "norm": certification.words.norm,
        "votes": voting_text(settings),
        "alpha": numbers.probability(settings.sampling.alpha) if settings else "alpha",
    }
    texts = _INTERVAL_LIMITS if certification.bounded else _ROBUSTNESS_LIMITS
    limits = tuple(text.format(**filled) for text in texts)
    return CardHalf(
        title=f"Robust: {certification.name}" if several else "Robust",
        guarantee=certification.guarantee,
        badge=robustness_badge(certification),
        sentence=robustness_sentence(certification),
        promised=certification.promised,
        whom=f"Each certified input{tested}.",
        numbers=_robust_numbers(certification),
        limits=(*limits, _SHARED_NOISE) if certification.shared_noise else limits,
    )


def _privacy_numbers(privacy: Privacy) -> Rows:
    if privacy.epsilon is None:
        return []
    label = {Status.PUBLISHED: "epsilon, as claimed", Status.ASSUMED: "epsilon, under assumptions"}
    rows = [(label.get(privacy.guarantee.status, "epsilon"), f"≤ {numbers.up(privacy.epsilon)}")]
    rows.append(("delta", numbers.probability(privacy.delta)))
    multiplier = number(privacy.numbers.get("noise_multiplier"))
    if multiplier is not None:
        rows.append(("noise multiplier", numbers.down(multiplier, 4)))
    settings = {"sample_rate": "sampling rate", "steps": "steps", "clip_norm": "clipping norm"}
    shown = ((name, privacy.numbers.get(key)) for key, name in settings.items())
    return rows + [(name, numbers.setting(value)) for name, value in shown if value is not None]


def _robust_numbers(certification: Certification) -> Rows:
    settings = certification.settings
    if not certification.certificates:
        return []
    rows = []
    for share in SHARES:
        radius = radius_at_accuracy(certification.certificates, share)
        held = "not reached" if radius is None else f"≥ {numbers.down(radius)}"
        rows.append((f"radius held by {numbers.percent_down(share, 0)}{certification.words.suffix}", held))
    if settings is None:
        bounds = [("norm of the radii", certification.words.norm), ("bound", "interval bounds, outward")]
        return [*rows, *bounds, ("alpha for each input", "none: certain")]
    asked = settings.sampling
    rows += [
        ("norm of the radii", settings.method.norm),
        ("bound", bound_text(settings)),
        ("noise", noise_text(settings)),
        ("sigma of the noise", numbers.setting(settings.noise.sigma)),
        ("draws for each input" + (", at most" if certification.target is not None else ""), numbers.setting(asked.n)),
        ("alpha for each input", numbers.probability(asked.alpha)),
    ]
    return rows + ([("draws of the noise", "shared by all inputs")] if asked.shared_noise else [])

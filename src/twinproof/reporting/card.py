"""The guarantee card: what is promised, to whom, how far it may be trusted, and what it does not say."""

from __future__ import annotations

from twinproof.evaluation.certified import radius_at_accuracy
from twinproof.guarantee import Guarantee, Kind, Status, guessing_words
from twinproof.reporting.facts import RunFacts, number, section
from twinproof.reporting.markup import Markup, definitions, element, join, listing
from twinproof.reporting.numbers import epsilon_text, factor_text, probability_text, radius_text, setting_text, share_text
from twinproof.reporting.radius_words import bound_text, noise_text, voting_text

SHARES = (0.9, 0.75, 0.5, 0.25)

_BADGES = {
    Status.PROVEN: ("✓", "proven", "a theorem, and tests that could refute it"),
    Status.PUBLISHED: ("?", "published", "a paper's claim, not proven here"),
    Status.ASSUMED: ("!", "assumed", "holds if the named assumptions do, which could not be checked"),
    Status.REFUTED: ("✗", "refuted", "shown to be false"),
    Status.NONE: ("–", "none", "nothing is promised"),
}
_REFUSED = "This run failed its verification: the promise recorded with it may not be relied on."
_CONTRADICTED = (
    "An attack contradicts the certificates of this run (see below): a certificate or the attack is broken. Until it is known "
    "which, no radius may be relied on."
)
_SHARED_NOISE = (
    "All inputs met the same noise: each certificate alone holds as it says, but certificates may fail together, and shares of "
    "certified inputs vary more than those of independent ones."
)
_QUALIFIED = {
    Status.PUBLISHED: "A paper claims the following; it is not proven here. ",
    Status.ASSUMED: "This holds if the last assumptions below do; they could not be checked. ",
}
_WEAK = "weak"
# Words of a run of format 1, which a verification does not compare with anything.
_UNCHECKED = " (words not checked)"
_PRIVACY_SILENCE = (
    "Nothing about what can be inferred from the population as a whole: a pattern that holds without a person's record may "
    "still be learned, and may still concern that person.",
    "Nothing if the training was repeated, or its settings were tuned, on the same records outside this run's ledger: every "
    "look spends.",
    "One record is protected at a time: who contributed several has a weaker promise. The test set and the number of training "
    "records have none; they are public.",
)
_ROBUST_SILENCE = (
    "Only changes measured in the {norm} norm, smaller than the radius; nothing about larger changes or about changes of "
    "meaning (a rotation, another background, another writer).",
    "It speaks of the smoothed classifier, which {votes}, not of the network asked once; and it says that the answer stays, "
    "not that it is right.",
)


def guarantee_card(facts: RunFacts) -> Markup:
    """Both halves side by side."""
    halves = element("div", _private_half(facts), _robust_half(facts), class_="card")
    return element("section", element("h2", "What is guaranteed"), halves, id="guarantee")


def badge(status: Status, *, refused: bool = False, contradicted: bool = False, weak: bool = False) -> Markup:
    """The status as a sign and a word in its colour: the colour is never the only cue.

    A proof of a promise that says next to nothing (``weak``) is not shown in the colour of proofs.
    """
    sign, word, meaning = _BADGES[status]
    if weak:
        sign, word, meaning = "!", f"{word}, {_WEAK}", f"{meaning}, but epsilon is too large to mean much"
    if refused:
        sign, word, meaning = "✗", "check failed", "the run failed its verification"
    elif contradicted and status is not Status.REFUTED:
        sign, word, meaning = "✗", "contradicted", "an attack stands against the certificates"
    colour = Status.REFUTED if refused or contradicted else _WEAK if weak else status
    return element(
        "span", element("span", sign, aria_hidden="true", class_="sign"), word, class_=f"badge {colour}", title=meaning
    )


def privacy_sentence(facts: RunFacts) -> str:
    """The privacy promise in plain words; never one that the status does not carry."""
    status, epsilon = facts.privacy.status, facts.epsilon
    if status is Status.REFUTED:
        return "The claim made for this way of training has been shown to be false. Treat the model as not private."
    if status is Status.NONE:
        return "No privacy is promised: whoever sees the model may learn about single training records."
    if facts.refused:
        return _REFUSED
    if epsilon is None or facts.delta is None:
        return facts.privacy.promise or "A promise is recorded, but not its numbers."
    promise = (
        "Replacing any one person's record by nothing changes the probability of any result of this training by at most a "
        f"factor of {factor_text(epsilon)}, plus {probability_text(facts.delta)}. {guessing_words(epsilon, facts.delta)}"
    )
    return f"{_QUALIFIED.get(status, '')}{promise}"


def robustness_sentence(facts: RunFacts) -> str:
    """The robustness promise in plain words; without certificates there is none yet."""
    status = facts.robustness.status
    if status is Status.REFUTED:
        claimed = " Radii on this page are what was claimed, and no promise." if facts.certificates else ""
        return f"The claim made for these certificates has been shown to be false. Treat the model as not robust.{claimed}"
    if status is Status.NONE:
        return "No robustness is promised: a small change of the input may change the answer."
    if facts.refused:
        return _REFUSED
    if facts.contradicted:
        return _CONTRADICTED
    if facts.settings is None or not facts.certificates:
        return "No input has been certified yet, so no radius is promised."
    promise = (
        f"For each certified input, no change smaller than its radius ({facts.settings.method.norm} norm) can change the "
        "answer of the smoothed classifier."
    )
    return f"{_QUALIFIED.get(status, '')}{promise}"


def _private_half(facts: RunFacts) -> Markup:
    records = facts.data.get("records")
    declared = f" ({setting_text(records)} records, as declared)" if isinstance(records, int) else ""
    whom = f"Each person whose record is in the training set{declared}."
    return _half("Private", facts, facts.privacy, privacy_sentence(facts), whom, _privacy_numbers(facts), _PRIVACY_SILENCE)


def _robust_half(facts: RunFacts) -> Markup:
    tested = f" ({len(facts.certificates):,} test inputs)" if facts.certificates else ""
    alpha = probability_text(facts.settings.sampling.alpha) if facts.settings else "alpha"
    separate = (
        f"Each certificate holds with probability at least 1\u00a0−\u00a0{alpha} over the noise drawn for it; they do not hold "
        "jointly."
    )
    whom = f"Each certified input{tested}."
    shared = facts.settings is not None and facts.settings.sampling.shared_noise
    limits = (text.format(norm=facts.words.norm, votes=voting_text(facts.settings)) for text in _ROBUST_SILENCE)
    silence = (*limits, separate, *((_SHARED_NOISE,) if shared else ()))
    return _half("Robust", facts, facts.robustness, robustness_sentence(facts), whom, _robust_numbers(facts), silence)


def _half(
    title: str, facts: RunFacts, promise: Guarantee, sentence: str, whom: str, numbers: Markup, silence: tuple[str, ...]
) -> Markup:
    """One half of the card; where nothing is promised it says so to nobody and needs no list of limits."""
    promised = facts.promises(promise)
    contradicted = promise.kind is Kind.ROBUSTNESS and facts.contradicted
    weak = promise.kind is Kind.PRIVACY and facts.says_little
    shown = badge(promise.status, refused=facts.refused, contradicted=contradicted, weak=weak)
    rows: list[tuple[object, object]] = [("To whom", whom if promised else "Nobody.")]
    unchecked = _UNCHECKED if facts.words_unchecked else ""
    if promise.reason:
        rows.append((f"Why this status{unchecked}", promise.reason))
    if promise.theorem:
        rows.append((f"By which theorem{unchecked}", promise.theorem))
    if promise.assumptions:
        rows.append((f"Assuming{unchecked}", listing(promise.assumptions)))
    if promised:
        rows.append(("It does not say", listing(silence)))
    if promise.promise and promise.promise != sentence:
        rows.append((f"{'As recorded' if promised else 'Claim as recorded'}{unchecked}", promise.promise))
    return element(
        "article",
        element("header", element("h3", title), shown),
        element("p", sentence.replace("e-", "e\u2060-\u2060"), class_="promise"),  # no line break inside 1e-5
        numbers if promised else Markup(),
        definitions(rows, "terms"),
        class_=f"half {Status.REFUTED if facts.refused or contradicted else _WEAK if weak else promise.status}",
    )


def _privacy_numbers(facts: RunFacts) -> Markup:
    privacy = section(facts.run, "privacy")
    if facts.promised_epsilon is None:
        return Markup()
    label = {Status.PUBLISHED: "epsilon, as claimed", Status.ASSUMED: "epsilon, under assumptions"}.get(
        facts.privacy.status, "epsilon"
    )
    rows: list[tuple[object, object]] = [(label, f"≤ {epsilon_text(facts.promised_epsilon)}")]
    rows.append(("delta", probability_text(facts.delta)))
    multiplier = number(privacy.get("noise_multiplier"))
    if multiplier is not None:
        rows.append(("noise multiplier", radius_text(multiplier, 4)))
    for key, name in (("sample_rate", "sampling rate"), ("steps", "steps"), ("clip_norm", "clipping norm")):
        if privacy.get(key) is not None:
            rows.append((name, setting_text(privacy[key])))
    return definitions(rows, "numbers")


def _robust_numbers(facts: RunFacts) -> Markup:
    settings = facts.settings
    if settings is None or not facts.certificates:
        return Markup()
    radii = [(share, radius_at_accuracy(facts.certificates, share)) for share in SHARES]
    held: list[tuple[object, object]] = [
        (
            f"radius held by {share_text(share, 0)}{facts.words.suffix}",
            "not reached" if radius is None else f"≥ {radius_text(radius)}",
        )
        for share, radius in radii
    ]
    rows: list[tuple[object, object]] = [
        ("norm of the radii", settings.method.norm),
        ("bound", bound_text(settings)),
        ("noise", noise_text(settings)),
        ("sigma of the noise", setting_text(settings.noise.sigma)),
        (
            "draws for each input" + (", at most" if settings.sampling.target_radius is not None else ""),
            setting_text(settings.sampling.n),
        ),
        ("alpha for each input", probability_text(settings.sampling.alpha)),
    ]
    if settings.sampling.shared_noise:
        rows.append(("draws of the noise", "shared by all inputs"))
    note = element(
        "p",
        join(
            ["“Held by 75 %” means: 75 % of the test inputs are answered correctly with at least that radius. ", _unit(facts)]
        ),
        class_="note",
    )
    return join([definitions(held + rows, "numbers"), note])


def _unit(facts: RunFacts) -> str:
    if facts.data.get("kind") == "image":
        return "Radii are in pixel values from 0 to 1: a single pixel that turns from black to white is a change of 1."
    return "Radii are in features scaled to 0 to 1 between their declared bounds."

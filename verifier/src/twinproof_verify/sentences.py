"""Both promises once more: every word and number that follows from the settings of a run, compared with what is written.

The sentences are this verifier's own, so that neither they nor the code that writes promises can change alone. Runs of format 1
have other words; their numbers are checked elsewhere, and their words with nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from twinproof_verify.bounds import CLOPPER_PEARSON, COMPLEMENT, GAUSSIAN, PUBLISHED
from twinproof_verify.certificates import BOTH, FIRST_LAYER, INPUT, SCORES, UNEQUAL_INPUT, VOTES, CertificateSettings
from twinproof_verify.evidence import digest_of, shown
from twinproof_verify.files import RUN_JSON
from twinproof_verify.findings import Problem
from twinproof_verify.models import block, number, sound
from twinproof_verify.run_json import (
    as_printed,
    foreign_training,
    is_published,
    known_seed,
    layer_of,
    privacy_block,
    takes_unpaid,
)

NOTHING = "Nothing is promised about the training records."
NOTHING_PUBLISHED = "Nothing is promised about the training records: the published variant does not keep its own promise."
PRINTED_REASONS = {
    "stobatch": (
        "one draw of noise is added to every record, so that differences of records have none; labels are read again at each "
        "step under one draw that all classes share; and in Algorithm 1 a record enters two batches. Without attacks "
        "neighbours are told apart with certainty from one update of the first layer: less the true records' part it has rank 2"
    ),
    "adlm": (
        "one draw of noise serves all steps, each of which reads the records again: differences of steps are free of it, and "
        "the gradients of all layers but the last get none; and relevance from the training records is released as it is, so "
        "that two data sets that differ in one record are told apart with certainty"
    ),
}
UNPAID = (
    "the redistribution vector r is a deterministic function of the training records, it is part of the released model, and no "
    "noise was added to it: two data sets that differ in one record give different r, which tells them apart with certainty"
)
AS_PUBLISHED = "the recipe was carried out by its paper's formulas; only the sound variant is called proven"
NOT_SHOWN = "the network is the owner's own, and not everything about it could be shown: see the last assumptions"
COUNTED = (
    "Poisson-subsampled Gaussian mechanism, composed over all steps by privacy loss distributions (Abadi et al. 2016; "
    "Doroshenko et al. 2022); cross-checked by Renyi accounting (Mironov 2017)"
)
PRIVACY_ASSUMPTIONS = (
    "Neighbours differ in one training record, which one of them replaces by nothing: the number of records is public. If a "
    "person has several records, the promise is weaker.",
    "The number of training records, the class names, the input's shape and the test set are public.",
    "The noise key came from the operating system's entropy, was kept secret and was deleted when training ended.",
    "Only the files outside private/ are released; training time and memory use are not observed by the adversary.",
    "Not counted: what was spent by choosing settings or initial weights by looking at these records, or by other runs.",
    "Secret bits come from SHAKE-256, on a GPU from ChaCha20 under keys from it; both are taken as pseudorandom functions.",
    "Gaussian draws are made in float64 by inversion and rounded to a grid; their law is taken as exactly Gaussian.",
    "A record's gradient is computed alike in every row of a pass: bit for bit on a CPU, up to float rounding on a GPU.",
    "Noise on copies of a record and inside the network comes from torch's generators, in states that the key decides for each "
    "pass; it is taken as truly random and unknown to the adversary.",
)
SCALINGS = {
    "declared": "The declared feature ranges were not chosen by looking at the training records.",
    "test": "The feature ranges come from the test set, which is public.",
    "private": "The feature ranges were estimated from the training records privately; the ledger counts it.",
}
FROM_TEST_SET = "test set"
SHARES = {
    "uniform": "The layer noise has equal shares r: nothing about the records enters it.",
    "random": "The layer noise's redistribution r is drawn at random, independently of the records.",
    FROM_TEST_SET: (
        "The layer noise's redistribution r comes from the test set, which is public, and random weights; the accuracy on the "
        "test set is therefore slightly optimistic."
    ),
    "public": (
        "The layer noise's redistribution r comes from other, public data, none of which is a training record, and random "
        "weights."
    ),
    "training": (
        "The layer noise's redistribution r was estimated from the training records privately, at random weights; the ledger "
        "counts it."
    ),
    "learned": "The layer noise's redistribution r is a weight: the same private steps trained it.",
}
OWN_NETWORK = (
    "The network is the owner's own: its code was not read. That it treats every record alone was tried at the run's pass "
    "size, before and during training."
)
OWN_NETWORK_CODES = {
    "gpu-rounding": (
        "On the GPU the gradient of one record was the same in every row only up to float rounding. That this rounding says "
        "nothing about another record is assumed."
    ),
    "kept-state": (
        "The network keeps values in Python between passes. That they act on no later gradient was tried at some steps and is "
        "assumed for the others."
    ),
}
FEDERATION = (
    "The coordinator is trusted: it sees the clipped sum of every party in every round, adds the noise and keeps the key; "
    "there is no secure aggregation.",
    "Every party follows the plan for its own records: what a party reveals about them by itself, nobody else's noise covers.",
    "Each party has a secret key of its own; the names of the parties and the declared numbers of their records are public.",
    "A record is held by one party; one that two parties hold counts as two records of one person.",
    "Whether a party answers in time does not depend on any one record.",
)
NOT_CERTIFIED = "No prediction has been certified yet."
ONLY_CLAIMED = "Nothing is promised: these radii are what a paper claims, to be compared."
BOUNDS = {
    ("gaussian", "tight"): "Cohen, Rosenfeld and Kolter 2019, Theorem 1 (Neyman-Pearson), in the whitened layer; tight",
    ("laplace", "best"): (
        "the longest radius by three trade-offs of Laplace noise: within e^s under a shift of l1 length s; at worst "
        "sqrt(pi/2) s-Gaussian under one of l2 length s; exact where every coordinate of the input moves alike (linf)"
    ),
    ("laplace", "tight"): "Laplace noise keeps a score and its complement within e^s under a shift of l1 length s",
    ("laplace", "pure-epsilon"): "Laplace noise keeps a score and its complement within e^s under a shift of l1 length s",
    ("gaussian", "hgm"): "Phan et al. 2019, Eq. 4 and Theorem 3 (in the whitened layer: Theorem 2)",
    ("gaussian", "hgm-complement"): (
        "Phan et al. 2019, Theorem 3, with Eq. 4 or its form for the complement, whichever reaches farther"
    ),
    ("gaussian", "pixeldp"): "Lecuyer et al. 2019, Proposition 1, with Dwork and Roth 2014, Theorem A.1 (epsilon <= 1)",
    ("laplace", "pixeldp"): "Lecuyer et al. 2019, Proposition 1, with the Laplace mechanism (delta = 0)",
    ("laplace", "composition"): "Phan et al. 2020, Theorem 5 and Corollary 1 (delta = 0): epsilons of the mechanisms add up",
    ("gaussian", "published"): "none: Phan et al. 2019, Eq. 10 as printed",
    ("laplace", "published"): "none: Phan et al. 2020, Corollary 1 with the noise stated in Appendix N",
}
REFUTED_BOUNDS = {
    "gaussian": (
        "Eq. 10 divides by epsilon twice; a halfspace with scores 0.9999 and 0.0001 changes its answer inside the radius"
    ),
    "laplace": (
        "Appendix N computes with noise that is psi times larger than what is drawn, which proves nothing: scores 0.9 and 0.1 "
        "under one noise of scale 1 claim 1.0986, and at psi = 2 a half-space with these scores changes its answer at 0.8047 "
        "(its score at the claim is 0.2778). Proven of two noises in one pass are the bounds 'tight' and 'composition', for "
        "the noise that is drawn"
    ),
}
CONFIDENCES = {
    "clopper-pearson": "Clopper and Pearson 1934 (exact binomial tail)",
    "hoeffding": "Hoeffding 1963, Theorem 2",
    "empirical-bernstein": "Maurer and Pontil 2009, Theorem 4 (empirical Bernstein)",
}
PLAIN_SMOOTHING = "Randomized smoothing (Cohen, Rosenfeld and Kolter 2019, theorem 1) with a one-sided Clopper-Pearson bound"
GRID = "; noise on a power-of-two grid, so that float32 addition is exact"
PLACES = {
    INPUT: "",
    UNEQUAL_INPUT: (
        "; the noise at the input has a scale of its own in every coordinate: it is added to the input divided by these "
        "scales, whose movement is the exact norm of that division and what rounding to the grid can add"
    ),
    FIRST_LAYER: (
        "; the noise is added to the whitened first layer, whose movement is bounded by an operator norm of the final weights "
        "and by what rounding it to the grid can add"
    ),
    BOTH: (
        "; noise is added to the input and to the whitened first layer in the same pass: what a change costs is that of the "
        "best split of it between the two, or with the bound 'composition' the sum of both, and what rounding the layer can add"
    ),
}
UNION = "; one lower and classes - 1 upper bounds at alpha / classes each (union bound)"
LOOKS = "; looks at fixed numbers of draws share alpha, so that all their bounds hold at once (union bound)"
ROBUSTNESS_ASSUMPTIONS = (
    "The answer is that of the smoothed classifier with exactly these weights and this noise, not of the bare network.",
    "Each certificate alone fails with probability at most alpha; they do not hold jointly with that probability.",
    "The network runs in the form and precision, and on the kind of device, that the certificate settings name.",
    "The pseudo-random generator behaves like ideal random bits; the certification key was not chosen by trying several.",
)
MEAN_SCORES = "The smoothed classifier is the class with the largest mean score: the softmax, floored to multiples of 2^-20."
LAYER_ARITHMETIC = (
    "The layer before the noise is computed in float64 with the rounding errors of the standard model (sums of products)."
)
SHARED_NOISE = (
    "Inputs were certified with the same noise: what holds for each alone still does, but certificates may fail together.",
    "The weights of the first layer are rounded to multiples of a power of two, so that it is exactly linear.",
)
INTERVAL = "interval"
INTERVALS = "intervals"
"""The section of an audit of such certificates."""
INTERVAL_PROOF = (
    "Interval bound propagation (Gowal et al. 2018) with outward rounding, which includes what the network's own sums err in "
    "float32 (Higham 2002, chapters 3 and 4)"
)
INTERVAL_ASSUMPTIONS = [
    "The linf distance is measured in input units ([0, 1] per coordinate), and the changed input lies in [0, 1] itself.",
    "The answer is that of the network alone with exactly these weights, without any noise.",
    "The network runs in float32 or float64, its layers as sums of products in any order; Winograd and Fourier transforms, "
    "TF32, bfloat16 and float16 are not covered.",
]
ALWAYS_REPEATED = ("sigma", "alpha", "n", "largest_radius", "norm")
# What a promise names only where it is not as in plain smoothing.
REPEATED_IF_UNUSUAL = {
    "target_radius": None,
    "law": GAUSSIAN,
    "place": INPUT,
    "bound": "tight",
    "statistic": VOTES,
    "confidence": CLOPPER_PEARSON,
    "runner_up": COMPLEMENT,
    "operator_norm": 1.0,
}
WEAK_FROM = 8
CERTAIN_FROM = 100
REFUTED_BELOW = 1e-3
"""The probability below which chance is no explanation for the flips of an audit."""
_EXACT = Context(prec=80)
_ANY_SIZE = Context(prec=400)  # a file may say an epsilon of 1e308


def privacy_words(run: dict[str, Any]) -> Iterator[Problem]:
    stated, wanted = block(run, "guarantees").get("privacy"), privacy_promise(run)
    if isinstance(stated, dict) and wanted is not None:
        yield from _differences("guarantees.privacy", stated, {"kind": "privacy", **wanted})


def robustness_words(
    where: str,
    stated: dict[str, Any],
    run: dict[str, Any],
    certificates: dict[str, Any],
    audits: list[tuple[str, dict[str, Any]]],
) -> Iterator[Problem]:
    """Every part of the promise at ``where`` that does not follow from its certificates and its audits (file and verdict).

    Where several audits refute it, it names any one of them.
    """
    against: list[Any] = [one for one in audits if one[1].get("refuted") is True]
    found: list[Problem] = []
    for audit in against or [None]:
        wanted = robustness_promise(run, certificates, audit)
        found = [] if wanted is None else list(_differences(where, stated, {"kind": "robustness", **wanted}))
        if not found:
            return
    yield from found


def _differences(where: str, stated: dict[str, Any], wanted: dict[str, Any]) -> Iterator[Problem]:
    for name, value in wanted.items():
        if digest_of(stated.get(name)) != digest_of(value):
            yield _difference(f"{where}.{name}", stated.get(name), value)


def _difference(where: str, stated: object, wanted: object) -> Problem:
    what = f"{where} does not follow from the settings of the run"
    if isinstance(stated, list) and isinstance(wanted, list):
        missing = [one for one in wanted if one not in stated]
        strange = [one for one in stated if one not in wanted]
        got = f"without {missing[0]!r}" if missing else strange[0] if strange else "another order"
        return Problem(RUN_JSON, what, shown(got), f"{len(wanted)} entries, each in its place")
    return Problem(RUN_JSON, what, shown(stated), shown(wanted))


def _promise(status: str, promise: str, **others: Any) -> dict[str, Any]:
    return {"status": status, "promise": promise, "theorem": "", "assumptions": [], "reason": "", "values": {}, **others}


def privacy_promise(run: dict[str, Any]) -> dict[str, Any] | None:
    """What the settings allow to be said about the training records; None where they cannot be read."""
    config, data, spent = run.get("config"), run.get("data"), privacy_block(run)
    if not isinstance(config, dict) or not isinstance(data, dict) or foreign_training(run):
        return None
    if as_printed(run):
        return _promise("refuted", NOTHING_PUBLISHED, reason=PRINTED_REASONS[config["recipe"]])
    if spent is None:
        return _promise("none", NOTHING, reason="the recipe trains without a privacy mechanism")
    if takes_unpaid(run):
        return _promise("refuted", NOTHING_PUBLISHED, reason=UNPAID)
    if known_seed(run):
        return _promise("none", NOTHING, reason="noise is reproducible from a known seed")
    epsilon, delta = number(spent.get("epsilon")), number(spent.get("delta"))
    shares, codes = _shares(run), own_network_codes(run)
    if epsilon is None or delta is None or shares is None or not set(codes or ()) <= set(OWN_NETWORK_CODES):
        return None
    source = SCALINGS.get(str(block(data, "scaling").get("source")))
    assumptions = [*PRIVACY_ASSUMPTIONS, *((source,) if source else ()), *shares]
    if codes is not None:
        assumptions += [OWN_NETWORK, *(OWN_NETWORK_CODES[code] for code in codes)]
    if "federation" in run:
        assumptions += FEDERATION
    status, reason = "proven", ""
    if is_published(run):
        status, reason = "published", AS_PUBLISHED
    elif codes:
        status, reason = "assumed", NOT_SHOWN
    return _promise(
        status,
        f"({_up(Decimal(repr(epsilon)), '0.0001')}, {delta!r})-differential privacy, for one training record replaced by "
        f"nothing. {meaning(epsilon, delta)}",
        theorem=COUNTED,
        assumptions=assumptions,
        reason=reason,
        values={name: spent.get(name) for name in ("epsilon", "epsilon_rdp", "delta")},
    )


def own_network_codes(run: dict[str, Any]) -> list[str] | None:
    """What could not be shown about the owner's network; None for a built-in one."""
    codes = block(run, "own_network").get("assumptions")
    return [str(code) for code in codes] if isinstance(codes, list) else None


def _shares(run: dict[str, Any]) -> list[str] | None:
    layer = layer_of(run)
    if not layer:
        return []
    kind = layer.get("redistribution")
    words = SHARES.get(FROM_TEST_SET if kind == "public" and layer.get("public_data") is None else str(kind))
    return None if words is None else [words]


def meaning(epsilon: float, delta: float) -> str:
    """What (epsilon, delta) says of one record: a guess is right at most (e^epsilon + delta) / (1 + e^epsilon) of the time."""
    words = "The bound on how often somebody can tell whether a given record was used rounds to 100 %: it says nothing."
    if epsilon < CERTAIN_FROM:
        grown = _EXACT.exp(Decimal(epsilon))
        percent = _EXACT.divide(100 * (grown + Decimal(delta)), grown + 1)
        found = [_up(percent, step) for step in ("0.1", "0.01") if Decimal(_up(percent, step)) < 100]
        if found:
            words = (
                "Somebody who would guess right half of the time whether a given record was used is right at most "
                f"{found[0]} % of the time after seeing the model."
            )
    return f"{words} This is weak protection: epsilon is {WEAK_FROM} or more." if epsilon >= WEAK_FROM else words


def _up(value: Decimal, step: str) -> str:
    return str(value.quantize(Decimal(step), rounding=ROUND_CEILING, context=_ANY_SIZE))


def repeated(certificates: dict[str, Any]) -> dict[str, Any]:
    every = {**certificates, **block(certificates, "sampling"), **block(certificates, "noise"), **block(certificates, "method")}
    return {name: every.get(name) for name in (*ALWAYS_REPEATED, *REPEATED_IF_UNUSUAL)}


def robustness_promise(
    run: dict[str, Any], certificates: dict[str, Any], audit: tuple[str, dict[str, Any]] | None = None
) -> dict[str, Any] | None:
    """What the certificates allow to be said, and an ``audit`` (file and verdict) that refutes them.

    None where the settings cannot be read.
    """
    if not certificates:
        sigma = block(run, "config").get("sigma")
        return _promise("none", NOT_CERTIFIED, reason="run `twinproof certify` on this run", values={"sigma": sigma})
    if block(certificates, "method").get("bound") == INTERVAL:
        return _interval_promise(certificates, audit)
    settings = sound(CertificateSettings, certificates)
    theorem = None if settings is None else BOUNDS.get((settings.noise.law, settings.method.bound))
    if settings is None or theorem is None:
        return None
    found = repeated(certificates)
    values = {name: value for name, value in found.items() if name in ALWAYS_REPEATED or value != REPEATED_IF_UNUSUAL[name]}
    if settings.method.bound == PUBLISHED:
        reason = REFUTED_BOUNDS[settings.noise.law]
        promised = _promise("refuted", ONLY_CLAIMED, theorem=theorem, reason=reason, values=values)
    else:
        words = (
            f"For each certified input, except with probability {settings.sampling.alpha!r}: no change smaller than its "
            f"radius ({settings.method.norm}, inputs in [0, 1]) changes the smoothed classifier's answer."
        )
        proof = _proof(settings, theorem)
        promised = _promise("proven", words, theorem=proof, assumptions=_assumptions(settings), values=values)
    file, verdict = audit or ("", {})
    if verdict.get("refuted") is not True:
        return promised
    words = (
        f"attacks changed {shown(verdict.get('flips'))} certified answers of {shown(verdict.get('inputs'))} inputs inside "
        f"their radii; chance explains that with probability below {REFUTED_BELOW:g} ({file})"
    )
    known = promised["reason"]
    return promised | {"status": "refuted", "reason": f"{known}; as expected, {words}" if known else words}


def _interval_promise(certificates: dict[str, Any], audit: tuple[str, dict[str, Any]] | None) -> dict[str, Any]:
    words = (
        "For each certified input, with certainty: no change of up to its radius (linf, inputs in [0, 1]) changes the "
        "network's answer."
    )
    values = {"largest_radius": certificates.get("largest_radius"), "norm": "linf", "bound": INTERVAL}
    promised = _promise("proven", words, theorem=INTERVAL_PROOF, assumptions=INTERVAL_ASSUMPTIONS, values=values)
    file, verdict = audit or ("", {})
    if verdict.get("refuted") is not True:
        return promised
    reason = (
        f"attacks changed {shown(verdict.get('flips'))} certified answers of {shown(verdict.get('inputs'))} inputs inside "
        f"their radii, which interval bounds exclude with certainty ({file})"
    )
    return promised | {"status": "refuted", "reason": reason}


def _proof(settings: CertificateSettings, theorem: str) -> str:
    method, noise = settings.method, settings.noise
    usual = (noise.law, method.bound, method.statistic, method.confidence) == (GAUSSIAN, "tight", VOTES, CLOPPER_PEARSON)
    core = PLAIN_SMOOTHING if usual else f"{theorem}; confidence: {CONFIDENCES[method.confidence]}"
    union = "" if method.runner_up == COMPLEMENT else UNION
    return core + GRID + PLACES[noise.place] + union + ("" if settings.sampling.target_radius is None else LOOKS)


def _assumptions(settings: CertificateSettings) -> list[str]:
    return [
        f"The {settings.method.norm} distance is measured in input units ([0, 1] per coordinate), between inputs that can be "
        "stored.",
        *ROBUSTNESS_ASSUMPTIONS,
        *((MEAN_SCORES,) if settings.method.statistic == SCORES else ()),
        *((LAYER_ARITHMETIC,) if settings.noise.place != INPUT else ()),
        *(SHARED_NOISE if settings.sampling.shared_noise else ()),
    ]

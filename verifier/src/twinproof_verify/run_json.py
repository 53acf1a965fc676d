"""run.json: its models, its config against the ledger's digest, and its numbers against the ledger and its own counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

from twinproof_verify import models
from twinproof_verify.bounds import clopper_pearson
from twinproof_verify.evidence import digest_of, shown
from twinproof_verify.files import LEDGER, RUN_JSON
from twinproof_verify.findings import Problem
from twinproof_verify.ledger import NEIGHBOURS, Ledger
from twinproof_verify.models import Record, block, is_former, number, read, sound

# What mechanisms on all records were used for, besides feature ranges.
OTHER_PURPOSES = {"redistribution"}
INTERVAL_SLACK = 1e-3
STATUSES = ("proven", "published", "assumed", "refuted", "none")
# Recipes whose published variant takes steps that no plan can count.
PRINTED = ("adlm", "stobatch")
FROM_TRAINING = "training"


CONFIG = {
    "": (
        "data recipe epsilon delta noise_multiplier clip_norm clip_rule clip_r batch_size records epochs steps learning_rate "
        "momentum schedule averaging sigma copies originals regulariser noise_layer trainers interval variant model width "
        "prior seed performance"
    ),
    "data": "source test test_fraction public_fraction label classes ranges ranges_noise",
    "regulariser": "weight eta beta macer_gamma radius attack_steps warm_up_epochs xi attack_size attack_stride",
    "noise_layer": (
        "place law norm attack_bound epsilon_r delta_r mechanism weights redistribution beta floor width public_data "
        "hidden_share r_clip r_noise_multiplier"
    ),
    "trainers": "count per_step",
    "interval": "size share ramp start",
    "performance": "device physical_batch path checkpoint_every report_every",
}
"""Every setting that config can have, by the section it stands in."""


class NoiseLayer(BaseModel):
    """What ``config.noise_layer`` says of the noise inside the network; its other keys are not needed here."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    place: Literal["input", "first-layer", "input-and-first-layer"]
    law: Literal["gaussian", "laplace"]
    redistribution: Literal["uniform", "random", "learned", "public", "training"]
    floor: models.Probability
    width: models.Probability


Numbers = Annotated[list[float], FailFast()]


OPTIONAL: Any = Field(default=None)
"""Of a key that may be missing, but not null."""


class Scaling(Record):
    """``data.scaling``: the ranges of features, and where they came from."""

    low: Numbers
    high: Numbers
    source: Literal["declared", "test", "private"]
    noise_multiplier: models.Positive = OPTIONAL


class Data(Record):
    """``data``: the public description of the data set."""

    name: models.Text
    kind: Literal["image", "features"]
    shape: Annotated[list[models.PositiveCount], Field(min_length=1, max_length=8)]
    classes: Annotated[list[str], FailFast(), Field(min_length=1)]
    levels: models.PositiveCount
    test_records: models.PositiveCount
    records: models.PositiveCount
    feature_names: Annotated[list[str], FailFast()]
    scaling: Scaling | None


class Promise(Record):
    """One of the two promises in ``guarantees``."""

    kind: Literal["privacy", "robustness"]
    status: Literal["proven", "published", "assumed", "refuted", "none"]
    promise: str
    theorem: str
    assumptions: list[str]
    reason: str
    values: dict[str, Any]


class Guarantees(Record):
    """``guarantees``: the promise of privacy, and those of robustness by the names of certifications."""

    privacy: Promise
    robustness: dict[models.Name, Promise]


class FormerGuarantees(Record):
    """``guarantees`` before format 3."""

    privacy: Promise
    robustness: Promise


class Privacy(Record):
    """``privacy``: what the ledger spends, and by which mechanism."""

    epsilon: models.NotNegative
    epsilon_rdp: models.NotNegative
    delta: models.OpenProbability
    noise_multiplier: models.Positive
    sample_rate: models.Rate
    steps: models.PositiveCount
    clip_norm: models.Positive
    divisor: models.Positive


class Accuracy(Record):
    """``accuracy``: on the test set, with a Clopper-Pearson interval."""

    value: models.Probability
    low: models.Probability
    high: models.Probability
    confidence: models.OpenProbability
    correct: models.Count
    total: models.PositiveCount


class Party(Record):
    """One party of a federation."""

    name: models.Text
    records: models.PositiveCount


class Federation(Record):
    """``federation``: the parties and what they agreed on."""

    agreement_sha256: models.Digest
    parties: Annotated[list[Party], Field(min_length=1)]


class Plugin(Record):
    """Something of another package that the run uses."""

    kind: Literal["recipe", "variant", "bound", "attack", "layer_rule"]
    name: models.Text
    package: models.Text
    version: models.Text


class Asked(Record):
    """What was run, known before the first step."""

    config: dict[str, Any]
    recipe: models.Text
    data: Data
    prior: dict[str, Any] = OPTIONAL
    own_network: dict[str, Any] = OPTIONAL
    federation: Federation = OPTIONAL
    plugins: list[Plugin] = OPTIONAL


class RunJson(Asked):
    """run.json."""

    format: models.Format
    state: Literal["complete"]
    created: models.UtcTime
    guarantees: Guarantees
    privacy: Privacy | None
    accuracy: Accuracy
    versions: dict[str, str]
    device: models.Text
    files: dict[str, Any]
    # What runs of earlier versions say besides.
    finished: models.UtcTime = OPTIONAL
    seconds: models.NotNegative = OPTIONAL


class FormerRunJson(RunJson):
    """run.json before format 3."""

    guarantees: FormerGuarantees  # type: ignore[assignment]


@dataclass(frozen=True)
class PublicData:
    """What certificates must agree with; None where run.json does not say it."""

    classes: int | None = None
    dimension: int | None = None
    levels: int | None = None
    test_records: int | None = None


def public_data(run: dict[str, Any]) -> PublicData:
    data = sound(Data, run.get("data"))
    if data is None:
        return PublicData()
    return PublicData(len(data.classes), math.prod(data.shape), data.levels, data.test_records)


def privacy_block(run: dict[str, Any]) -> dict[str, Any] | None:
    found = run.get("privacy")
    return found if isinstance(found, dict) else None


def known_seed(run: dict[str, Any]) -> bool:
    """Whether the noise can be drawn again by others; a config that does not say so is not believed."""
    return block(run, "config").get("seed", 0) is not None


def is_own(run: dict[str, Any]) -> bool:
    """Whether the network is its owner's, so that its tensors are not known here."""
    return str(block(run, "config").get("model")).startswith("own:")


def is_published(run: dict[str, Any]) -> bool:
    """Whether the recipe was carried out by the formulas of its paper, which do not keep its promise."""
    return block(run, "config").get("variant") == "published"


def as_printed(run: dict[str, Any]) -> bool:
    """Whether the steps were those of a paper that no plan can count."""
    return is_published(run) and block(run, "config").get("recipe") in PRINTED


def layer_of(run: dict[str, Any]) -> dict[str, Any]:
    return block(block(run, "config"), "noise_layer")


def takes_unpaid(run: dict[str, Any]) -> bool:
    """Whether shares were taken from the training records without a noise: that gives records away with certainty."""
    return is_published(run) and layer_of(run).get("redistribution") == FROM_TRAINING


def plugin_names(run: dict[str, Any], kind: str) -> tuple[str, ...]:
    """What the run uses of other packages, of one kind, by name."""
    stated = run.get("plugins")
    found = [sound(Plugin, one) for one in stated] if isinstance(stated, list) else []
    return tuple(one.name for one in found if one is not None and one.kind == kind)


def is_foreign(run: dict[str, Any]) -> bool:
    """Whether the run's recipe, or its variant of it, comes from another package; ``published`` variants are known here."""
    config = block(run, "config")
    variant = config.get("variant")
    named = f"{config.get('recipe')}.{variant}" in plugin_names(run, "variant") and variant != "published"
    return named or config.get("recipe") in plugin_names(run, "recipe")


def foreign_training(run: dict[str, Any]) -> bool:
    """Whether code of another package took part in training: the recipe, its variant, or a rule of per-example gradients."""
    return is_foreign(run) or bool(plugin_names(run, "layer_rule"))


def top_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """The form of run.json; settings of a recipe from another package are its own."""
    yield from read(FormerRunJson if is_former(run) else RunJson, run, RUN_JSON)[1]
    config = block(run, "config")
    for section, names in () if is_foreign(run) else CONFIG.items():
        for name in sorted(set(block(config, section) if section else config) - set(names.split())):
            where = f"config.{section}" if section else "config"
            yield Problem(RUN_JSON, f"{where} has a setting that does not exist", shown(name), names)


def federation_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """Parties whose records are those of the run, and the digest of what they agreed on."""
    federation = sound(Federation, run.get("federation"))
    if federation is None:
        return
    records, said = sum(party.records for party in federation.parties), block(run, "data").get("records")
    if said != records:
        yield Problem(RUN_JSON, "the parties' records are not those of data", str(records), shown(said))
    settings = {name: value for name, value in block(run, "config").items() if name not in ("data", "performance")}
    digest = digest_of({"settings": settings, "parties": block(run, "federation")["parties"]})
    if federation.agreement_sha256 != digest:
        what = "federation.agreement_sha256 is not the digest of settings and parties"
        yield Problem(RUN_JSON, what, federation.agreement_sha256, digest or "settings with a digest")


def config_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """Format and config are those that opened the ledger; config names the same recipe, numbers and steps as the rest."""
    config, privacy = block(run, "config"), block(run, "privacy")
    if ledger is not None and ledger.opening is not None:
        opened = ledger.opening
        if run.get("format") not in {1: (1,), 2: (2, 3)}[opened.format]:
            got = shown(run.get("format"))
            yield Problem(RUN_JSON, "format is not the one of the ledger", got, f"that of format {opened.format} (ledger)")
        if opened.neighbours != NEIGHBOURS[opened.format]:
            what = f"neighbours are called otherwise in format {opened.format}"
            yield Problem(LEDGER, what, opened.neighbours, NEIGHBOURS[opened.format])
        digest = digest_of(config)
        if digest != opened.config_sha256:
            got, wanted = digest or "no canonical form", f"{opened.config_sha256} (ledger)"
            yield Problem(RUN_JSON, "config is not the one that the ledger binds", got, wanted)
    if config.get("recipe") != run.get("recipe"):
        yield Problem(RUN_JSON, "recipe and config.recipe differ", shown(config.get("recipe")), shown(run.get("recipe")))
    for name in Privacy.model_fields:
        asked, said = number(config.get(name)), number(privacy.get(name))
        if not name.startswith("epsilon") and asked is not None and said is not None and asked != said:
            yield Problem(RUN_JSON, f"privacy.{name} is not the one of config", repr(said), repr(asked))
    steps = number(config.get("steps"))
    if ledger is not None and ledger.spendings and steps is not None and ledger.steps != steps:
        yield Problem(LEDGER, "the ledger does not hold the steps of config", str(ledger.steps), f"{steps:.0f} (config)")


def spending_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """The privacy block says what the ledger says: delta, and noise, rate and number of all steps."""
    privacy = privacy_block(run)
    if ledger is None:
        return
    if privacy is None:
        if ledger.spendings:
            got = f"{len(ledger.spendings)} spending events in the ledger"
            yield Problem(RUN_JSON, "the ledger spends privacy, but run.json has no privacy block", got, "a privacy block")
        return
    if not ledger.spendings:
        what = "run.json has a privacy block, but the ledger spends nothing"
        yield Problem(RUN_JSON, what, "open and close only", "privacy null")
    for name, truths in (
        ("delta", {ledger.delta}),
        ("steps", {ledger.steps}),
        ("noise_multiplier", {spending.noise_multiplier for spending in ledger.blocks}),
        ("sample_rate", {spending.sample_rate for spending in ledger.blocks}),
    ):
        said = number(privacy.get(name))
        if said is not None and truths != {said}:
            wanted = ", ".join(sorted(repr(truth) for truth in truths)[:5]) or "no such event"
            yield Problem(RUN_JSON, f"privacy.{name} is not what the ledger says", repr(said), f"{wanted} (ledger)")


def paid_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """What was taken from the training records is paid for: feature ranges, and the shares of the noise.

    A published variant does not pay for its shares; that it is called refuted is checked with the promises. Public shares must
    not come from the data that the run was trained on.
    """
    layer, private = layer_of(run), privacy_block(run) is not None
    named = layer.get("public_data")
    if private and isinstance(named, str) and named == block(block(run, "config"), "data").get("source"):
        what = "the noise was redistributed by the training data under the name of public ones"
        yield Problem(RUN_JSON, what, shown(named), "other data")
    if not private or ledger is None:
        return
    scaling = sound(Scaling, block(run, "data").get("scaling"))
    if scaling is not None and scaling.source == "private":
        # One event cannot pay for two uses of the records: any purpose but those that are checked by themselves.
        uses = {spending.purpose for spending in ledger.spendings if not spending.sampled} - OTHER_PURPOSES
        paid = {multiplier for purpose in uses for multiplier in ledger.paid_for(purpose)}
        if scaling.noise_multiplier not in paid:
            what = "feature ranges were estimated from the training records, but no event of the ledger pays for it"
            wanted = f"gaussian with noise_multiplier {scaling.noise_multiplier} (data.scaling)"
            yield Problem(LEDGER, what, shown(sorted(paid)), wanted)
    if layer.get("redistribution") == FROM_TRAINING and not is_published(run):
        noise, shares = number(layer.get("r_noise_multiplier")), ledger.paid_for("redistribution")
        if noise is None or noise not in shares:
            what = "the noise was redistributed by the training records, but no event of the ledger pays for it"
            wanted = f"gaussian with purpose redistribution and noise_multiplier {shown(noise)} (config.noise_layer)"
            yield Problem(LEDGER, what, shown(sorted(shares)), wanted)


def accuracy_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """The accuracy follows from its counts, its interval is the two-sided Clopper-Pearson interval."""
    said = sound(Accuracy, run.get("accuracy"))
    if said is None:
        return
    records = public_data(run).test_records
    if said.correct > said.total or (records is not None and said.total > records):
        got = f"{said.correct} of {said.total}"
        yield Problem(RUN_JSON, "accuracy: the counts are impossible", got, f"at most {records} test records")
        return
    low, high = clopper_pearson(said.correct, said.total, said.confidence)
    for name, stated, truth in (
        ("value", said.value, said.correct / said.total),
        ("low", said.low, low),
        ("high", said.high, high),
    ):
        if not abs(stated - truth) <= INTERVAL_SLACK:
            yield Problem(RUN_JSON, f"accuracy.{name} does not follow from the counts", repr(stated), f"{truth:.6f}")

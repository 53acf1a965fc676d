"""run.json: its fields, its config against the ledger's digest, its accuracy, and its promises against what was spent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twinproof.auditing.evidence import digest_of, shown
from twinproof.auditing.fields import (
    FORMAT,
    Field,
    exactly,
    field_problems,
    is_count,
    is_digest,
    is_not_negative,
    is_number,
    is_object,
    is_open_probability,
    is_positive,
    is_positive_count,
    is_probability,
    is_rate,
    is_text,
    is_text_map,
    is_texts,
    is_utc_time,
    number,
    or_null,
    whole,
)
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_ledger import FILE as LEDGER
from twinproof.auditing.verify_ledger import NEIGHBOURS, Ledger

FILE = "run.json"
# What mechanisms on all records were used for, besides feature ranges.
OTHER_PURPOSES = {"redistribution"}
INTERVAL_SLACK = 1e-3


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 8 and all(map(is_positive_count, value))


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


TOP = (
    FORMAT,
    Field("state", exactly("complete"), "complete"),
    Field("created", is_utc_time, "a UTC time"),
    Field("config", is_object, "an object"),
    Field("recipe", is_text, "the name of a recipe"),
    Field("data", is_object, "an object"),
    Field("guarantees", is_object, "an object"),
    Field("privacy", or_null(is_object), "an object, or null without privacy"),
    Field("accuracy", is_object, "an object"),
    Field("versions", is_text_map, "software versions by package name"),
    Field("device", is_text, "a description"),
    Field("files", is_object, "an object"),
    Field("prior", is_object, "an object", optional=True),
    Field("own_network", is_object, "an object", optional=True),
    Field("federation", is_object, "an object", optional=True),
    Field("plugins", lambda value: isinstance(value, list), "a list of plug-ins", optional=True),
    # What runs of earlier versions say besides.
    Field("finished", is_utc_time, "a UTC time", optional=True),
    Field("seconds", is_not_negative, "a number from 0", optional=True),
)
DATA = (
    Field("name", is_text, "the name of the data set"),
    Field("kind", lambda value: value in ("image", "features"), "image or features"),
    Field("shape", _is_shape, "one to eight sizes from 1"),
    Field("classes", lambda value: is_texts(value) and bool(value), "the names of the classes"),
    Field("levels", is_positive_count, "an integer from 1"),
    Field("test_records", is_positive_count, "an integer from 1"),
    Field("records", is_positive_count, "the declared number of training records"),
    Field("feature_names", is_texts, "a list of names"),
    Field("scaling", or_null(is_object), "an object, or null"),
)
SCALING = (
    Field("low", _is_numbers, "a list of numbers"),
    Field("high", _is_numbers, "a list of numbers"),
    Field("source", lambda value: value in ("declared", "test", "private"), "declared, test or private"),
    Field("noise_multiplier", is_positive, "a positive number", optional=True),
)
FEDERATION = (
    Field("agreement_sha256", is_digest, "64 lower-case hexadecimal digits"),
    Field("parties", lambda value: isinstance(value, list) and bool(value), "a list of parties"),
)
PARTY = (Field("name", is_text, "a name"), Field("records", is_positive_count, "an integer from 1"))
CONFIG = {
    "": (
        *(
            "data",
            "recipe",
            "epsilon",
            "delta",
            "noise_multiplier",
            "clip_norm",
            "clip_rule",
            "clip_r",
            "batch_size",
            "records",
        ),
        *("epochs", "steps", "learning_rate", "momentum", "schedule", "averaging", "sigma", "copies", "originals"),
        *("regulariser", "noise_layer", "trainers", "variant", "model", "width", "prior", "seed", "performance"),
    ),
    "data": ("source", "test", "test_fraction", "public_fraction", "label", "classes", "ranges", "ranges_noise"),
    "regulariser": (
        *("weight", "eta", "beta", "macer_gamma", "radius", "attack_steps", "warm_up_epochs", "xi", "attack_size"),
        "attack_stride",
    ),
    "noise_layer": (
        *("place", "law", "norm", "attack_bound", "epsilon_r", "delta_r", "mechanism", "weights", "redistribution", "beta"),
        *("floor", "width", "public_data", "hidden_share", "r_clip", "r_noise_multiplier"),
    ),
    "trainers": ("count", "per_step"),
    "performance": ("device", "physical_batch", "path", "checkpoint_every", "report_every"),
}
"""Every setting that config can have, by the section it stands in."""
ACCURACY = (
    Field("value", is_probability, "a number from 0 to 1"),
    Field("low", is_probability, "a number from 0 to 1"),
    Field("high", is_probability, "a number from 0 to 1"),
    Field("confidence", is_open_probability, "a number between 0 and 1"),
    Field("correct", is_count, "an integer from 0"),
    Field("total", is_positive_count, "an integer from 1"),
)
PRIVACY = (
    Field("epsilon", is_not_negative, "a finite number from 0"),
    Field("epsilon_rdp", is_not_negative, "a finite number from 0"),
    Field("delta", is_open_probability, "a number between 0 and 1"),
    Field("noise_multiplier", is_positive, "a positive number"),
    Field("sample_rate", is_rate, "above 0 and at most 1"),
    Field("steps", is_positive_count, "an integer from 1"),
    Field("clip_norm", is_positive, "a positive number"),
    Field("divisor", is_positive, "a positive number"),
)
# Settings that the privacy block repeats; where config has them under the same name they cannot differ.
SETTINGS = ("delta", "noise_multiplier", "sample_rate", "steps", "clip_norm", "divisor")


@dataclass(frozen=True)
class PublicData:
    """What certificates must agree with; None where run.json does not say it."""

    classes: int | None
    dimension: int | None
    levels: int | None
    test_records: int | None


def public_data(run: dict[str, Any]) -> PublicData:
    """The sizes of the data set, as far as run.json states them soundly."""
    data = run.get("data")
    sound = {f.name: data[f.name] for f in DATA if f.name in data and f.accepts(data[f.name])} if isinstance(data, dict) else {}
    return PublicData(
        classes=len(sound["classes"]) if "classes" in sound else None,
        dimension=math.prod(sound["shape"]) if "shape" in sound else None,
        levels=sound.get("levels"),
        test_records=sound.get("test_records"),
    )


def privacy_block(run: dict[str, Any]) -> dict[str, Any] | None:
    """The privacy block, or None for a recipe without privacy."""
    block = run.get("privacy")
    return block if isinstance(block, dict) else None


def top_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """The fields of run.json, of its settings, of its description of the data and of a federation."""
    yield from field_problems(FILE, run, TOP, closed=True)
    if isinstance(run.get("data"), dict):
        yield from field_problems(FILE, run["data"], DATA, where="data.", closed=True)
    if isinstance(run.get("config"), dict):
        yield from _unknown_settings(run["config"])
    if isinstance(run.get("federation"), dict):
        yield from _federation_problems(run, run["federation"])


def _unknown_settings(config: dict[str, Any]) -> Iterator[Problem]:
    for section, names in CONFIG.items():
        values = config.get(section) if section else config
        unknown = sorted(set(values) - set(names)) if isinstance(values, dict) else ()
        for name in unknown:
            where = f"config.{section}" if section else "config"
            yield Problem(FILE, f"{where} has a setting that does not exist", shown(name), ", ".join(names))


def _federation_problems(run: dict[str, Any], federation: dict[str, Any]) -> Iterator[Problem]:
    """Parties whose records are those of the run, and the digest of what they agreed on."""
    faults = list(field_problems(FILE, federation, FEDERATION, where="federation.", closed=True))
    parties = federation.get("parties")
    for at, party in enumerate(parties if isinstance(parties, list) else ()):
        where = f"federation.parties[{at}]"
        if isinstance(party, dict):
            faults += field_problems(FILE, party, PARTY, where=f"{where}.", closed=True)
        else:
            faults.append(Problem(FILE, f"{where} is not an object", shown(party), "name and records"))
    yield from faults
    config, data = run.get("config"), run.get("data")
    if faults or not isinstance(config, dict) or not isinstance(data, dict):
        return
    records = sum(party["records"] for party in federation["parties"])
    if data.get("records") != records:
        yield Problem(FILE, "the parties' records are not those of data", str(records), shown(data.get("records")))
    settings = {name: value for name, value in config.items() if name not in ("data", "performance")}
    digest = digest_of({"settings": settings, "parties": federation["parties"]})
    if federation["agreement_sha256"] != digest:
        what = "federation.agreement_sha256 is not the digest of settings and parties"
        yield Problem(FILE, what, federation["agreement_sha256"], digest or "settings with a digest")


def format_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """The format is the one that the ledger was opened with, and calls neighbours by its own name."""
    if ledger is None or not ledger.opening:
        return
    opened = ledger.opening["format"]
    if run.get("format") != opened:
        yield Problem(FILE, "format is not the one of the ledger", shown(run.get("format")), f"{opened} (ledger)")
    if ledger.opening["neighbours"] != NEIGHBOURS[opened]:
        what = f"neighbours are called otherwise in format {opened}"
        yield Problem(LEDGER, what, shown(ledger.opening["neighbours"]), NEIGHBOURS[opened])


def config_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """The configuration is the one whose digest opened the ledger, and names the same recipe and settings as the rest."""
    config = run.get("config")
    if not isinstance(config, dict):
        return
    if ledger is not None and ledger.opening:
        digest = digest_of(config)
        if digest != ledger.opening["config_sha256"]:
            wanted = f"{ledger.opening['config_sha256']} (ledger)"
            yield Problem(FILE, "config is not the one that the ledger binds", digest or "no canonical form", wanted)
    if config.get("recipe") != run.get("recipe"):
        yield Problem(FILE, "recipe and config.recipe differ", shown(config.get("recipe")), shown(run.get("recipe")))
    block = privacy_block(run) or {}
    for name in SETTINGS:
        set_value, said = number(config.get(name)), number(block.get(name))
        if set_value is not None and said is not None and set_value != said:
            yield Problem(FILE, f"privacy.{name} is not the one of config", repr(said), repr(set_value))


def spending_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """The privacy block says what the ledger says: delta, and noise, rate and number of all steps."""
    block = privacy_block(run)
    if block is not None:
        yield from field_problems(FILE, block, PRIVACY, where="privacy.", closed=True)
    if ledger is None:
        return
    if block is None:
        if ledger.spendings:
            got = f"{len(ledger.spendings)} spending events in the ledger"
            yield Problem(FILE, "the ledger spends privacy, but run.json has no privacy block", got, "a privacy block")
        return
    if not ledger.spendings:
        yield Problem(
            FILE, "run.json has a privacy block, but the ledger spends nothing", "open and close only", "privacy null"
        )
    for name, truths in (
        ("delta", {ledger.delta}),
        ("steps", {ledger.steps}),
        ("noise_multiplier", {spending.noise_multiplier for spending in ledger.blocks}),
        ("sample_rate", {spending.sample_rate for spending in ledger.blocks}),
    ):
        said = number(block.get(name))
        if said is not None and truths != {said}:
            wanted = ", ".join(sorted(repr(truth) for truth in truths)[:5]) or "no such event"
            yield Problem(FILE, f"privacy.{name} is not what the ledger says", repr(said), f"{wanted} (ledger)")


def scaling_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """Feature ranges: from a known source, and paid for in the ledger where they came from the training records."""
    data = run.get("data")
    scaling = data.get("scaling") if isinstance(data, dict) else None
    if not isinstance(scaling, dict):
        return
    faults = list(field_problems(FILE, scaling, SCALING, where="data.scaling.", closed=True))
    yield from faults
    if faults or scaling["source"] != "private" or privacy_block(run) is None or ledger is None:
        return
    noise = number(scaling.get("noise_multiplier"))
    # One event cannot pay for two uses of the records: any purpose but those that have a check of their own.
    uses = {spending.purpose for spending in ledger.spendings if not spending.sampled} - OTHER_PURPOSES
    paid = {multiplier for purpose in uses for multiplier in ledger.paid_for(purpose)}
    if noise not in paid:
        what = "feature ranges were estimated from the training records, but no event of the ledger pays for it"
        yield Problem(LEDGER, what, shown(sorted(paid)), f"gaussian with noise_multiplier {shown(noise)} (data.scaling)")


def accuracy_problems(run: dict[str, Any]) -> Iterator[Problem]:
    """The accuracy follows from its counts, its interval is the two-sided Clopper-Pearson interval."""
    block = run.get("accuracy")
    if not isinstance(block, dict):
        return
    faults = list(field_problems(FILE, block, ACCURACY, where="accuracy.", closed=True))
    yield from faults
    if faults:
        return
    correct, total = block["correct"], block["total"]
    records = public_data(run).test_records
    if correct > total or (records is not None and total > records):
        yield Problem(FILE, "accuracy: the counts are impossible", f"{correct} of {total}", f"at most {records} test records")
        return
    low, high = clopper_pearson(correct, total, float(block["confidence"]))
    for name, truth in (("value", correct / total), ("low", low), ("high", high)):
        if not abs(block[name] - truth) <= INTERVAL_SLACK:
            yield Problem(FILE, f"accuracy.{name} does not follow from the counts", repr(block[name]), f"{truth:.6f}")


def clopper_pearson(correct: int, total: int, confidence: float) -> tuple[float, float]:
    """Both ends of the two-sided interval for a probability, unrounded."""
    from scipy.special import betaincinv

    tail = (1.0 - confidence) / 2
    low = float(betaincinv(correct, total - correct + 1, tail)) if correct else 0.0
    high = float(betaincinv(correct + 1, total - correct, 1 - tail)) if correct < total else 1.0
    return low, high


def known_seed(run: dict[str, Any]) -> bool:
    """Whether the noise can be drawn again by others; a config that does not say so is not believed."""
    config = run.get("config")
    return not isinstance(config, dict) or config.get("seed", 0) is not None


def steps_problems(run: dict[str, Any], ledger: Ledger | None) -> Iterator[Problem]:
    """A private run took as many steps as its configuration says, where it says so: none fewer, none hidden."""
    config = run.get("config")
    wanted = whole(config.get("steps")) if isinstance(config, dict) else None
    if ledger is not None and ledger.spendings and wanted is not None and ledger.steps != wanted:
        yield Problem(LEDGER, "the ledger does not hold the steps of config", str(ledger.steps), f"{wanted} (config)")

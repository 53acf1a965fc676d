"""From records as read to the data set record: split, classes, levels."""

from __future__ import annotations

import numpy as np

from twinproof.data.classes import classes_of_test, to_indices
from twinproof.data.config import DataConfig, refuse_settings
from twinproof.data.parts import Parts, Records
from twinproof.data.private_ranges import private_scaling
from twinproof.data.record import Dataset, Scaling, Split
from twinproof.data.scaling import (
    FEATURE_LEVELS,
    check_finite,
    check_fits,
    declared_scaling,
    ranges_needed,
    scaling_of_test,
    to_levels,
)
from twinproof.data.split import split_by_content
from twinproof.errors import ConfigError
from twinproof.randomness import Key

GIVEN_AWAY = (
    "the test records have no privacy; their raw values and labels may appear in certificates.csv, attacks.safetensors and the "
    "report, and with data.ranges=test their smallest and largest values in run.json"
)
"""What it means for records to be the test part, in words for the user."""


def assemble(parts: Parts, config: DataConfig, *, key: Key | None = None, scaling: Scaling | None = None) -> Dataset:
    """The finished data set; with ``scaling`` given, its bounds are used and nothing is estimated.

    Guarantees
        Classes and bounds come from ``config``, from constants of the source, from the test records, or from the private
        estimate that ``Dataset.scaling.spending`` names: never for free from the training records.
    """
    if parts.levels is None:
        for records in (parts.train, *([] if parts.test is None else [parts.test])):
            check_finite(records, parts.feature_names)
    train, test = _train_and_test(parts, config)
    classes = config.classes or parts.classes or classes_of_test(test)
    levels, used = parts.levels, None
    if levels is None:
        levels = FEATURE_LEVELS
        used = scaling if scaling is not None else _resolve_scaling(parts, config, train, test, key)
        check_fits(used, parts.feature_names)
    else:
        _refuse_scaling(config, scaling)
    return Dataset(
        name=parts.name,
        kind=parts.kind,
        train=_split(train, classes, used),
        test=_split(test, classes, used),
        classes=classes,
        levels=levels,
        feature_names=parts.feature_names,
        scaling=used,
        public=parts.public,
    )


def _train_and_test(parts: Parts, config: DataConfig) -> tuple[Records, Records]:
    """The private and the public records: as they lie apart, or divided by the share that somebody decided on.

    Guarantees
        No record of a user becomes public without a word from the user: a test part, or ``public_fraction``.
    """
    if parts.test is not None:
        if config.public_fraction is not None:
            raise ConfigError(
                "there are two test parts",
                where="data.public_fraction",
                got=f"public_fraction = {config.public_fraction}, and {len(parts.test)} test records in {parts.test.where}",
                wanted="one test part",
                fix="leave out public_fraction",
            )
        return parts.train, parts.test
    fraction = parts.public_fraction if config.public_fraction is None else config.public_fraction
    if fraction is None:
        raise ConfigError(
            "these data have no test part, and nobody said which records may become public",
            where="data.test, data.public_fraction",
            got=f"{parts.name}: {len(parts.train)} records, all private",
            wanted="public test records: accuracies, certificates and attacks are released for them",
            fix="name a file of public records (--test FILE, data.test), or give a share of these records away "
            f"(--public-fraction 0.2, data.public_fraction): {GIVEN_AWAY}",
        )
    return split_by_content(parts.train, fraction)


def _resolve_scaling(parts: Parts, config: DataConfig, train: Records, test: Records, key: Key | None) -> Scaling:
    ranges = config.ranges if config.ranges is not None else parts.bounds
    if ranges is None:
        raise ranges_needed(parts.name, parts.feature_names)
    if ranges == "test":
        return scaling_of_test(test.inputs)
    if ranges == "private":
        secret = Key.from_system() if key is None else key
        return private_scaling(train.inputs, parts.feature_names, config.ranges_noise, secret)
    return declared_scaling(dict(ranges), parts.feature_names)


def _refuse_scaling(config: DataConfig, scaling: Scaling | None) -> None:
    refuse_settings(config, ("ranges",), "no ranges: images are stored as levels already")
    if scaling is not None:
        raise ConfigError(
            "images are stored as levels and are not scaled",
            where="scaling",
            got=f"bounds of {len(scaling.low)} features",
            wanted="no scaling",
            fix="load the data that the bounds were made for",
        )


def _split(records: Records, classes: tuple[str, ...], scaling: Scaling | None) -> Split:
    inputs = records.inputs if scaling is None else to_levels(records.inputs, scaling)
    # Arrays over a file's bytes are read-only; torch wants memory of its own.
    inputs = np.require(inputs, requirements=["C", "W", "O"])
    return Split(inputs=inputs, labels=to_indices(records, classes))

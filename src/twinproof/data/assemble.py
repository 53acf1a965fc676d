"""From records as read to the data set record: split, classes, levels."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from twinproof.data.limits import listed
from twinproof.data.record import DataConfig, Dataset, Parts, Records, Scaling, Split, refuse_second_test_part, refuse_settings
from twinproof.data.scaling import (
    FEATURE_LEVELS,
    check_finite,
    check_fits,
    declared_scaling,
    private_scaling,
    ranges_needed,
    scaling_of_test,
    to_levels,
)
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key

_SALT = b"twinproof split 1"


def belongs_to_test(stored: bytes, label: str, fraction: float) -> bool:
    """Whether the record with these stored bytes and this label is a test record: its digest lies below the fraction."""
    name = label.encode()
    digest = hashlib.sha256(_SALT + len(name).to_bytes(8, "little") + name + stored).digest()
    return int.from_bytes(digest[:8], "big") < int(fraction * 2.0**64)


def split_by_content(records: Records, fraction: float) -> tuple[Records, Records]:
    """Training and test records, each in the order of the file.

    The side of a record is a function of that record and ``fraction`` alone. So one record more or less changes the training
    set by that record or not at all, which is what "neighbouring data sets" means to the accountant; a split by a shuffled
    order would move other records across. Equal records stay on one side, so that no test record was trained on.
    """
    chosen = _test_rows(records, fraction)
    train, test = records.take(~chosen), records.take(chosen)
    if len(train) == 0 or len(test) == 0:
        raise DataError(
            "the split leaves one side without records",
            where=records.where,
            got=f"{len(records)} records, public_fraction {fraction}",
            wanted="records for training and for testing",
            fix="give more records, another public_fraction, or a separate test part",
        )
    return train, test


def _test_rows(records: Records, fraction: float) -> NDArray[np.bool_]:
    inputs = records.inputs
    if inputs.dtype.kind == "f":
        inputs = inputs + 0.0  # -0.0 and 0.0 are the same number and must be the same record
    inputs = np.ascontiguousarray(inputs, dtype=inputs.dtype.newbyteorder("<"))
    sides = [
        belongs_to_test(row.tobytes(), str(label), fraction) for row, label in zip(inputs, records.labels.tolist(), strict=True)
    ]
    return np.array(sides, dtype=np.bool_)


def classes_of_test(test: Records) -> tuple[str, ...]:
    """The different labels of the test records: numbers in numeric order, otherwise text in alphabetical order.

    Names taken from the training records would tell whether a class that only one person has was there.
    """
    names = [str(label) for label in np.unique(test.labels).tolist()]
    return tuple(sorted(names, key=int) if all(map(_is_whole, names)) else sorted(names))


def to_indices(records: Records, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Labels as numbers of their classes; a label that names no class ends in an error.

    A label is a class name, or, where no class name is itself a whole number, the number of a class counted from 0. The rule
    looks at one label and the declared names only, so that no record decides what another one's label means.
    """
    values, inverse = np.unique(records.labels, return_inverse=True)
    numbers = {name: index for index, name in enumerate(classes)}
    if not any(_is_whole(name) for name in classes):
        numbers |= {str(index): index for index in range(len(classes))}
    found = [numbers.get(str(value), -1) for value in values.tolist()]
    if -1 in found:
        position = found.index(-1)
        raise DataError(
            "a label does not fit the classes",
            where=f"{records.where}, record {records.row(int(np.flatnonzero(inverse == position)[0]))}",
            got=repr(values.tolist()[position]),
            wanted=listed(classes, len(classes), "classes"),
            fix="correct the label, or declare all class names under `classes` (without it they come from the test records)",
        )
    return np.array(found, dtype=np.int64)[inverse.reshape(-1)]


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


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
        refuse_settings(config, ("ranges",), "no ranges: images are stored as levels already")
        if scaling is not None:
            raise ConfigError(
                "images are stored as levels and are not scaled",
                where="scaling",
                got=f"bounds of {len(scaling.low)} features",
                wanted="no scaling",
                fix="load the data that the bounds were made for",
            )
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
    """The private and the public records.

    Guarantees
        No record of a user becomes public without the user's word: a test part, or ``public_fraction``.
    """
    if parts.test is not None:
        found = f"{len(parts.test)} test records in {parts.test.where}"
        refuse_second_test_part("data.public_fraction", config.public_fraction, found)
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


def _split(records: Records, classes: tuple[str, ...], scaling: Scaling | None) -> Split:
    inputs = records.inputs if scaling is None else to_levels(records.inputs, scaling)
    # Arrays over a file's bytes are read-only; torch wants memory of its own.
    inputs = np.require(inputs, requirements=["C", "W", "O"])
    return Split(inputs=inputs, labels=to_indices(records, classes))

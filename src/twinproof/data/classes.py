"""Class names, and labels as their numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinproof.data.parts import Records
from twinproof.errors import DataError

_SHOWN = 20


def classes_of_test(test: Records) -> tuple[str, ...]:
    """The different labels of the test records: numbers in numeric order, otherwise text in alphabetical order.

    Guarantees
        Only test records are read. Names taken from the training records would tell whether a class that a single person
        has was there.
    """
    names = [str(label) for label in np.unique(test.labels).tolist()]
    if all(_is_whole(name) for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


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
            wanted=_choices(classes),
            fix="correct the label, or declare all class names under `classes` (without it they come from the test records)",
        )
    return np.array(found, dtype=np.int64)[inverse.reshape(-1)]


def _choices(classes: tuple[str, ...]) -> str:
    shown = ", ".join(classes[:_SHOWN])
    return shown if len(classes) <= _SHOWN else f"{shown}, ... ({len(classes)} classes)"


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()

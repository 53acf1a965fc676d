"""The test set, where whoever verifies has it: then distances are measured from the inputs themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_certificate_lines import Lines, wrong
from twinproof.auditing.verify_run_json import FILE, PublicData


@dataclass(frozen=True)
class Originals:
    """The inputs of the test set as they are stored, (records, ...) in levels, and their classes."""

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Inputs as rows of coordinates."""
        some = self.inputs[first:last]
        return some.reshape(len(some), -1).astype(np.int64)


def originals_problems(originals: Originals | None, data: PublicData) -> Iterator[Problem]:
    """Whether the given test set is of the form that run.json describes; one of another form is not used."""
    if originals is None:
        return
    count = len(originals.inputs)
    dimension = originals.inputs[:1].size
    got = f"{count} inputs of {dimension} coordinates, {len(originals.labels)} labels"
    wanted = f"{data.test_records} inputs of {data.dimension} coordinates on {data.levels} levels"
    known = None not in (data.test_records, data.dimension, data.levels)
    fits = (count, dimension, len(originals.labels)) == (data.test_records, data.dimension, data.test_records)
    if not known or not fits or int(originals.inputs.max(initial=0)) > (data.levels or 0):
        yield Problem(FILE, "the test set that was given is not the one that data describes", got, wanted)


def label_problems(lines: Lines, originals: Originals) -> Iterator[Problem]:
    """Labels of certificates.csv against the test set; indices are checked where the lines are."""
    known = (lines.index >= 0) & (lines.index < len(originals.labels))
    truth = np.full(len(lines.index), -1, dtype=np.int64)
    truth[known] = originals.labels[lines.index[known]]
    yield from wrong(
        lines, lines.label != truth, "label is not that of the test record", lines.label, lambda at: str(truth[at])
    )

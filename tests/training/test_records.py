"""Passes of one fixed size: every drawn record once, and rows that only fill the pass carry nobody's record."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from training_problems import CPU, LEVELS, training_split

from twinproof.data.record import Split
from twinproof.training.passes import DeviceRecords, Pass

CASES = [(0, 4), (1, 4), (3, 4), (4, 4), (5, 4), (40, 7), (40, 64), (40, 1)]


def problems(records: DeviceRecords, indices: list[int], size: int, passes: Iterable[Pass]) -> list[str]:
    """What is wrong with these passes over ``indices``."""
    found, rows, labels = [], [torch.zeros(0, 5)], [torch.zeros(0, dtype=torch.int64)]
    for batch in passes:
        if not len(batch.inputs) == len(batch.labels) == len(batch.present) == size:
            found.append("a pass is not of the fixed size")
        if bool(batch.inputs[~batch.present].any()) or bool(batch.labels[~batch.present].any()):
            found.append("a filling row carries a record")
        rows.append(batch.inputs[batch.present])
        labels.append(batch.labels[batch.present])
    wanted = torch.tensor(indices, dtype=torch.int64)
    if not torch.equal(torch.cat(rows), records.inputs(wanted)) or not torch.equal(torch.cat(labels), records.labels[wanted]):
        found.append("the present rows are not the drawn records")
    return found


def _records() -> DeviceRecords:
    split = training_split()
    return DeviceRecords(Split(np.maximum(split.inputs, 1), split.labels), LEVELS, CPU)  # no record is all zeros


def _indices(count: int) -> list[int]:
    return sorted(np.random.default_rng(count).permutation(40)[:count].tolist())


@pytest.mark.parametrize(("count", "size"), CASES)
def test_every_drawn_record_is_in_one_full_size_pass(count: int, size: int) -> None:
    records, indices = _records(), _indices(count)
    passes = list(records.passes(torch.tensor(indices, dtype=torch.int64), size))
    assert len(passes) == -(-count // size)
    assert problems(records, indices, size, passes) == []


def test_planted_passes_are_caught() -> None:
    records, indices = _records(), _indices(5)
    whole = list(records.passes(torch.tensor(indices), 4))
    first = records.inputs(slice(0, 4))
    carries = [
        whole[0],
        Pass(torch.where(whole[1].present[:, None], whole[1].inputs, first), whole[1].labels, whole[1].present),
    ]
    short = [whole[0], Pass(whole[1].inputs[:1], whole[1].labels[:1], whole[1].present[:1])]
    unmasked = [whole[0], Pass(whole[1].inputs, whole[1].labels, torch.ones(4, dtype=torch.bool))]
    for planted, message in (
        (carries, "a filling row carries a record"),
        (short, "a pass is not of the fixed size"),
        (unmasked, "the present rows are not the drawn records"),
        (whole[:1], "the present rows are not the drawn records"),
    ):
        assert problems(records, indices, 4, planted) == [message]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_inputs_are_levels_over_levels(dtype: type[np.generic]) -> None:
    levels = int(np.iinfo(dtype).max)  # type: ignore[type-var]
    split = Split(np.array([[0, levels], [levels, 1]], dtype=dtype), np.array([0, 1]))
    records = DeviceRecords(split, levels, CPU, torch.float64)
    assert records.inputs(slice(None)).tolist() == [[0.0, 1.0], [1.0, 1 / levels]]

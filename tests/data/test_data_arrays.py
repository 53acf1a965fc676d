"""Data sets from arrays in memory and from torch data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from twinproof.data import InputKind, from_arrays, from_torch
from twinproof.errors import ConfigError, DataError


def images(count: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        "x_train": generator.integers(0, 256, (count, 5, 6), dtype=np.uint8),
        "y_train": np.arange(count) % 3,
        "x_test": generator.integers(0, 256, (9, 5, 6), dtype=np.uint8),
        "y_test": np.arange(9) % 3,
    }


def test_images_keep_their_pixels() -> None:
    arrays = images(12)
    dataset = from_arrays("scans", arrays)
    assert (dataset.name, dataset.kind, dataset.levels, dataset.shape) == ("scans", InputKind.IMAGE, 255, (1, 5, 6))
    assert np.array_equal(dataset.train.inputs[:, 0], arrays["x_train"])
    assert np.array_equal(dataset.test.labels, arrays["y_test"])


def test_features_need_ranges_and_take_declared_ones() -> None:
    arrays = {"x": np.random.default_rng(1).normal(size=(80, 2)), "y": np.arange(80) % 2}
    with pytest.raises(ConfigError, match="features need bounds"):
        from_arrays("lab", arrays, public_fraction=0.2)
    dataset = from_arrays("lab", arrays, public_fraction=0.2, ranges={"*": (-4.0, 4.0)}, classes=("no", "yes"))
    assert dataset.classes == ("no", "yes")
    assert dataset.scaling is not None
    assert dataset.scaling.source == "declared"


def test_a_torch_data_set_equals_its_arrays() -> None:
    arrays = images(12)
    parts = [
        TensorDataset(torch.from_numpy(arrays[f"x_{part}"]), torch.from_numpy(arrays[f"y_{part}"]))
        for part in ("train", "test")
    ]
    dataset, expected = from_torch("scans", parts[0], parts[1]), from_arrays("scans", arrays)
    assert np.array_equal(dataset.train.inputs, expected.train.inputs)
    assert np.array_equal(dataset.train.labels, expected.train.labels)
    assert np.array_equal(dataset.test.inputs, expected.test.inputs)


class Ragged(TorchDataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        if index >= 3:
            raise IndexError
        return torch.zeros(1, 4, 4 + index, dtype=torch.uint8), index


class NoLength(TorchDataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1, 4, 4), 0


@pytest.mark.parametrize("broken", [Ragged(), NoLength()])
def test_records_that_do_not_fit_are_one_error(broken: TorchDataset[Any]) -> None:
    whole = TensorDataset(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.arange(3))
    with pytest.raises(DataError, match="train part"):
        from_torch("scans", broken, whole)
    with pytest.raises(DataError, match="test part"):
        from_torch("scans", whole, broken)


@pytest.mark.parametrize("missing", ["x_train", "y_test"])
def test_a_missing_array_is_named(missing: str) -> None:
    arrays = images(12)
    del arrays[missing]
    with pytest.raises(DataError, match="an array is missing"):
        from_arrays("scans", arrays)

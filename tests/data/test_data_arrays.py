"""Arrays in memory, in .npz files, and from torch data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import write_npz
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from twinproof.data import DataConfig, Dataset, InputKind, from_arrays, from_torch, load
from twinproof.errors import ConfigError, DataError

LABELS = np.array([0, 1, 0, 1])
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 6), dtype=np.uint8)
COLOURS = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)


def four(x: NDArray[Any], y: NDArray[Any] = LABELS) -> dict[str, NDArray[Any]]:
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


def load_npz(path: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source=str(path), **settings))


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (IMAGES, IMAGES[:, np.newaxis]),
        (IMAGES[:, np.newaxis], IMAGES[:, np.newaxis]),
        (COLOURS, COLOURS.transpose(0, 3, 1, 2)),
        (COLOURS.transpose(0, 3, 1, 2), COLOURS.transpose(0, 3, 1, 2)),
    ],
)
def test_uint8_images_in_every_layout(tmp_path: Path, images: NDArray[np.uint8], expected: NDArray[np.uint8]) -> None:
    data = load_npz(write_npz(tmp_path / "scans.npz", **four(images)))
    assert (data.name, data.kind, data.levels, data.classes) == ("scans.npz", InputKind.IMAGE, 255, ("0", "1"))
    np.testing.assert_array_equal(data.train.inputs, expected)
    assert data.train.inputs.flags.c_contiguous
    assert data.train.inputs.flags.writeable


def test_float_images(tmp_path: Path) -> None:
    data = load_npz(write_npz(tmp_path / "a.npz", **four(IMAGES.astype(np.float32) / 255)))
    assert data.levels == 65535
    np.testing.assert_array_equal(data.train.inputs[:, 0], IMAGES.astype(np.uint16) * 257)


@pytest.mark.parametrize(
    ("kind", "value", "match"),
    [
        ("pixels", 1.001, "outside"),
        ("pixels", -0.001, "outside"),
        ("pixels", np.nan, "outside"),
        ("features", np.nan, "record 2, feature 'x1'"),
        ("features", np.inf, "record 2, feature 'x1'"),
    ],
)
def test_values_out_of_range_name_their_record(tmp_path: Path, kind: str, value: float, match: str) -> None:
    values = np.zeros((4, 5, 6) if kind == "pixels" else (4, 3))
    values[2, 1] = value
    with pytest.raises(DataError, match=match) as caught:
        load_npz(write_npz(tmp_path / "a.npz", **four(values)), **({"ranges": {"*": (0, 1)}} if kind == "features" else {}))
    assert "record 2" in caught.value.where


def test_features_need_ranges_and_get_them(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", **four(np.arange(12).reshape(4, 3), np.array(["no", "yes", "no", "yes"])))
    with pytest.raises(ConfigError, match="features need bounds"):
        load_npz(path)
    data = load_npz(path, ranges={"*": (0, 11)})
    assert (data.kind, data.feature_names, data.classes) == (InputKind.FEATURES, ("x0", "x1", "x2"), ("no", "yes"))
    assert data.train.inputs[3, 2] == 65535
    assert data.train.inputs[1, 0] == round(3 / 11 * 65535)


def test_x_and_y_are_split_or_tested_elsewhere(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (200, 4, 4), dtype=np.uint8)
    path = write_npz(tmp_path / "a.npz", x=images, y=np.arange(200) % 2)
    data = load_npz(path, public_fraction=0.25)
    assert len(data.train) + len(data.test) == 200
    assert 20 < len(data.test) < 80
    for name, arrays in (
        ("b", {"x": images[:6], "y": np.arange(6) % 2}),
        ("c", {"x_test": images[:6], "y_test": np.arange(6) % 2}),
    ):
        data = load_npz(path, test=str(write_npz(tmp_path / f"{name}.npz", **arrays)))
        assert (len(data.train), len(data.test)) == (200, 6)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x_train": IMAGES}, "x_train and y_train or x and y"),
        ({"x": IMAGES, "y": LABELS[:3]}, "4 inputs, 3 labels"),
        ({**four(IMAGES), "x_test": IMAGES[:, :4]}, "differ in shape or type"),
        ({**four(IMAGES), "x_test": IMAGES / 255}, "differ in shape or type"),
        ({"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES}, "x_test and y_test"),
        (four(IMAGES.astype(np.int64)), "neither images nor features"),
        (four(IMAGES[:, 0, 0]), "neither images nor features"),
        (four(np.zeros((4, 5, 6, 2), dtype=np.uint8)), "channels cannot be told"),
        (four(np.zeros((4, 3, 6, 3), dtype=np.uint8)), "channels cannot be told"),
        (four(IMAGES, LABELS / 1.0), "neither integers nor text"),
        (four(IMAGES, LABELS[:, np.newaxis]), "neither integers nor text"),
        (four(IMAGES, np.array([None, {}, 1, 2], dtype=object)), "pickled objects are refused"),
        ({**four(IMAGES), "y_train": np.array([0, 1, 2, 0])}, "does not fit the classes"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        load_npz(write_npz(tmp_path / "a.npz", **arrays))


def test_broken_files(tmp_path: Path) -> None:
    whole = write_npz(tmp_path / "a.npz", **four(IMAGES)).read_bytes()
    array = tmp_path / "array.npz"
    with open(array, "wb") as handle:
        np.save(handle, IMAGES)
    for name, content in (("cut", whole[:-30]), ("text", b"hello"), ("empty", b""), ("array", array.read_bytes())):
        path = tmp_path / f"{name}.npz"
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read") as caught:
            load_npz(path)
        assert caught.value.where == str(path)


def test_settings_that_do_not_apply(tmp_path: Path) -> None:
    path, other = (write_npz(tmp_path / name, **four(IMAGES)) for name in ("a.npz", "b.npz"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"test": str(other)}, "two test parts"),
        ({"public_fraction": 0.2}, "two test parts"),
        ({"label": "y"}, "does not apply"),
        ({"ranges": "test"}, "does not apply"),
    ]
    for settings, match in cases:
        with pytest.raises(ConfigError, match=match):
            load_npz(path, **settings)


def test_features_need_ranges_and_take_declared_ones() -> None:
    arrays = {"x": np.random.default_rng(1).normal(size=(80, 2)), "y": np.arange(80) % 2}
    with pytest.raises(ConfigError, match="features need bounds"):
        from_arrays("lab", arrays, public_fraction=0.2)
    dataset = from_arrays("lab", arrays, public_fraction=0.2, ranges={"*": (-4.0, 4.0)}, classes=("no", "yes"))
    assert dataset.classes == ("no", "yes")
    assert dataset.scaling is not None
    assert dataset.scaling.source == "declared"


def test_a_torch_data_set_equals_its_arrays() -> None:
    arrays = four(IMAGES)
    part = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    dataset, expected = from_torch("scans", part, part), from_arrays("scans", arrays)
    assert np.array_equal(dataset.train.inputs, expected.train.inputs)
    assert np.array_equal(dataset.test.labels, expected.test.labels)
    assert np.array_equal(dataset.test.inputs[:, 0], IMAGES)
    for missing in ("x_train", "y_test"):
        with pytest.raises(DataError, match="an array is missing"):
            from_arrays("scans", {name: array for name, array in arrays.items() if name != missing})


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

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import write_npz
from numpy.typing import NDArray

from twinproof.data.config import DataConfig
from twinproof.data.load import load
from twinproof.data.record import Dataset, InputKind
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


@pytest.mark.parametrize("value", [1.001, -0.001, np.nan])
def test_float_pixels_outside_the_unit_interval(tmp_path: Path, value: float) -> None:
    images = np.zeros((4, 5, 6))
    images[2, 1, 1] = value
    with pytest.raises(DataError, match="outside") as caught:
        load_npz(write_npz(tmp_path / "a.npz", **four(images)))
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
    path = write_npz(tmp_path / "a.npz", **four(IMAGES))
    with pytest.raises(ConfigError, match="two test parts"):
        load_npz(path, test=str(write_npz(tmp_path / "b.npz", **four(IMAGES))))
    with pytest.raises(ConfigError, match="two test parts"):
        load_npz(path, public_fraction=0.2)
    with pytest.raises(ConfigError, match="does not apply"):
        load_npz(path, label="y")
    with pytest.raises(ConfigError, match="does not apply"):
        load_npz(path, ranges="test")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite(tmp_path: Path, value: float) -> None:
    features = np.zeros((4, 3))
    features[2, 1] = value
    with pytest.raises(DataError, match="record 2, feature 'x1'"):
        load_npz(write_npz(tmp_path / "a.npz", **four(features)), ranges={"*": (0, 1)})

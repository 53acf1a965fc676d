from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import write_image, write_image_folder
from PIL import Image

from twinproof.data.config import DataConfig
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, DataError


def load_folder(root: Path, **settings: Any) -> Dataset:
    return load(DataConfig(source=str(root), **settings))


def two_parts(root: Path, **settings: Any) -> None:
    write_image_folder(root / "train", **settings)
    write_image_folder(root / "test", **settings)


@pytest.mark.parametrize("channels", [1, 3])
def test_train_and_test_folders(tmp_path: Path, channels: int) -> None:
    root = tmp_path / "pets"
    two_parts(root, channels=channels)
    (root / "train" / "cat" / ".DS_Store").write_bytes(b"left by a file manager")
    data = load_folder(root)
    assert (data.name, data.shape, data.levels, data.classes) == ("pets", (channels, 5, 6), 255, ("cat", "dog"))
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    pixels = np.asarray(Image.open(root / "train" / "dog" / "1.png"))
    expected = pixels[np.newaxis] if channels == 1 else pixels.transpose(2, 0, 1)
    np.testing.assert_array_equal(data.train.inputs[4], expected)


def test_class_folders_split_by_content_or_tested_elsewhere(tmp_path: Path) -> None:
    write_image_folder(tmp_path / "all", count=30)
    data = load_folder(tmp_path / "all", public_fraction=0.3)
    assert len(data.train) + len(data.test) == 60
    write_image_folder(tmp_path / "held", count=2)
    data = load_folder(tmp_path / "all", test=str(tmp_path / "held"))
    assert (len(data.train), len(data.test)) == (60, 4)


def test_classes_come_from_the_test_part(tmp_path: Path) -> None:
    two_parts(tmp_path)
    write_image_folder(tmp_path / "train", ("yak",))
    with pytest.raises(DataError, match="does not fit the classes") as caught:
        load_folder(tmp_path)
    assert caught.value.got == "'yak'"


def test_declared_classes_give_the_order(tmp_path: Path) -> None:
    two_parts(tmp_path)
    assert load_folder(tmp_path, classes=("dog", "cat")).test.labels.tolist() == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("pixels", "got"),
    [
        (np.zeros((5, 7, 3), dtype=np.uint8), "6x5 RGB and 7x5 RGB"),
        (np.zeros((5, 6), dtype=np.uint8), "6x5 RGB and 6x5 grey"),
    ],
)
def test_mixed_images_name_two_files(tmp_path: Path, pixels: Any, got: str) -> None:
    two_parts(tmp_path)
    odd = tmp_path / "train" / "dog" / "odd.png"
    write_image(odd, pixels)
    with pytest.raises(DataError, match="one kind and size") as caught:
        load_folder(tmp_path)
    assert caught.value.got == got
    assert caught.value.where == f"{tmp_path / 'test' / 'cat' / '0.png'} and {odd}"


@pytest.mark.parametrize("mode", ["RGBA", "P", "1", "I;16"])
def test_other_kinds_of_pixels(tmp_path: Path, mode: str) -> None:
    two_parts(tmp_path)
    path = tmp_path / "train" / "cat" / "a.png"
    Image.new(mode, (6, 5)).save(path)
    with pytest.raises(DataError, match="neither grey nor RGB") as caught:
        load_folder(tmp_path)
    assert caught.value.where == str(path)


def test_several_frames(tmp_path: Path) -> None:
    two_parts(tmp_path)
    frames = [Image.new("RGB", (6, 5)), Image.new("RGB", (6, 5), "red")]
    frames[0].save(tmp_path / "train" / "cat" / "a.tiff", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match="several frames"):
        load_folder(tmp_path)


def test_truncated_image(tmp_path: Path) -> None:
    two_parts(tmp_path)
    path = tmp_path / "train" / "dog" / "2.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot be read") as caught:
        load_folder(tmp_path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize("name", ["notes.txt", "more/0.png", "data.pkl"])
def test_things_that_are_not_images(tmp_path: Path, name: str) -> None:
    two_parts(tmp_path)
    path = tmp_path / "train" / "dog" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"?")
    with pytest.raises(DataError, match="not an image"):
        load_folder(tmp_path)


def test_folders_without_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="no images"):
        load_folder(tmp_path)
    write_image_folder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        load_folder(tmp_path, test=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("settings", "where"), [({"test": "elsewhere"}, "test"), ({"label": "y"}, "label"), ({"ranges": "test"}, "ranges")]
)
def test_settings_that_do_not_apply(tmp_path: Path, settings: dict[str, str], where: str) -> None:
    two_parts(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_folder(tmp_path, **settings)
    assert caught.value.where == where

"""Files of images: IDX (MNIST), CIFAR-10's binary form, folders by class."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import idx_bytes, write_cifar10, write_image, write_image_folder, write_mnist
from PIL import Image

from twinproof.data.images import (
    CIFAR10_CLASSES,
    missing_cifar10_files,
    missing_idx_files,
    read_cifar10,
    read_idx,
    read_idx_folder,
)
from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset
from twinproof.errors import ConfigError, DataError


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dot", [True, False])
def test_all_four_spellings_give_the_written_arrays(tmp_path: Path, zipped: bool, dot: bool) -> None:
    written = write_mnist(tmp_path, zipped=zipped, dot=dot)
    assert missing_idx_files(tmp_path) == ()
    parts = read_idx_folder(tmp_path, "sample", None)
    assert parts.test is not None
    for records, stem in ((parts.train, "train"), (parts.test, "t10k")):
        np.testing.assert_array_equal(records.inputs[:, 0], written[f"{stem}-images"])
        np.testing.assert_array_equal(records.labels, written[f"{stem}-labels"])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda content: content[:-1], "is cut off\n"),
        (lambda content: content + b"\0", "longer than its header"),
        (lambda content: b"\0\0\x09\x03" + content[4:], "not of the IDX kind"),
        (lambda content: content[:9], "inside its header"),
        (lambda content: b"", "not of the IDX kind"),
        (lambda content: gzip.compress(content)[:-20], "cannot be read"),
        (lambda content: gzip.compress(content)[:30] + b"\xff" * 40, "cannot be read"),
        (lambda content: b"\x1f\x8b", "cannot be read"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, change: Callable[[bytes], bytes], match: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(idx_bytes(np.arange(2 * 5 * 5, dtype=np.uint8).reshape(2, 5, 5))))
    with pytest.raises(DataError, match=match) as caught:
        read_idx(path, 3)
    assert caught.value.where == str(path)


def test_idx_files_that_do_not_belong_together(tmp_path: Path) -> None:
    def broken(change: Callable[[Path], object], match: str, shape: tuple[int, ...] | None = None) -> str:
        folder = tmp_path / match.split()[0]
        write_mnist(folder, side=27, zipped=False)
        change(folder)
        with pytest.raises(DataError, match=match) as caught:
            read_idx_folder(folder, "sample", None, shape)
        return caught.value.where

    labels = idx_bytes(np.zeros(19, dtype=np.uint8))
    broken(lambda folder: (folder / "train-images-idx3-ubyte").write_bytes(labels), "train-images")
    where = broken(lambda folder: (folder / "t10k-labels-idx1-ubyte").write_bytes(labels), "20 inputs, 19 labels")
    assert "t10k-labels" in where
    broken(lambda folder: (folder / "t10k-labels-idx1-ubyte").unlink(), r"no t10k-labels-idx1-ubyte.gz")
    broken(lambda folder: None, "size of this data set", (1, 28, 28))


def test_cifar10_comes_back_in_the_official_order(tmp_path: Path) -> None:
    written = write_cifar10(tmp_path)
    parts = read_cifar10(tmp_path, records=10)
    assert parts.test is not None
    assert parts.classes == CIFAR10_CLASSES
    assert parts.train.inputs.shape == (50, 3, 32, 32)
    np.testing.assert_array_equal(parts.train.labels, written[:5, :, 0].reshape(-1))
    np.testing.assert_array_equal(parts.train.inputs[23].reshape(-1), written[2, 3, 1:])
    # The official record is one byte of label, then the red, green and blue planes, each row by row.
    assert parts.test.inputs[4, 2, 5, 6] == written[5, 4, 1 + 2 * 1024 + 5 * 32 + 6]


@pytest.mark.parametrize(
    ("size", "match"), [(30_729, "is cut off"), (30_731, "longer than"), (27_657, "is cut off"), (0, "is cut off")]
)
def test_cifar10_files_of_the_wrong_size(tmp_path: Path, size: int, match: str) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes((path.read_bytes() + b"\0")[:size])
    with pytest.raises(DataError, match=match) as caught:
        read_cifar10(tmp_path, records=10)
    assert caught.value.where == str(path)


def test_cifar10_has_six_files_of_the_official_size(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    with pytest.raises(DataError, match="30730000 bytes"):
        read_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    assert missing_cifar10_files(tmp_path) == ("test_batch.bin",)
    with pytest.raises(DataError, match=r"no test_batch\.bin"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize("name", ["data_batch_1", "cifar-10-batches-py/data_batch_1"])
def test_pickled_form_is_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DataError, match="pickled form") as caught:
        read_cifar10(tmp_path)
    assert "runs whatever code" in caught.value.fix


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


def test_classes_come_from_the_test_part_or_a_declaration(tmp_path: Path) -> None:
    two_parts(tmp_path)
    assert load_folder(tmp_path, classes=("dog", "cat")).test.labels.tolist() == [1, 1, 1, 0, 0, 0]
    write_image_folder(tmp_path / "train", ("yak",))
    with pytest.raises(DataError, match="does not fit the classes") as caught:
        load_folder(tmp_path)
    assert caught.value.got == "'yak'"


@pytest.mark.parametrize(
    ("pixels", "got"),
    [(np.zeros((5, 7, 3), dtype=np.uint8), "6x5 RGB and 7x5 RGB"), (np.zeros((5, 6), dtype=np.uint8), "6x5 RGB and 6x5 grey")],
)
def test_mixed_images_name_two_files(tmp_path: Path, pixels: Any, got: str) -> None:
    two_parts(tmp_path)
    odd = tmp_path / "train" / "dog" / "odd.png"
    write_image(odd, pixels)
    with pytest.raises(DataError, match="one kind and size") as caught:
        load_folder(tmp_path)
    assert caught.value.got == got
    assert caught.value.where == f"{tmp_path / 'test' / 'cat' / '0.png'} and {odd}"


def palette(path: Path, mode: str) -> None:
    Image.new(mode, (6, 5)).save(path)


def frames(path: Path) -> None:
    Image.new("RGB", (6, 5)).save(path, save_all=True, append_images=[Image.new("RGB", (6, 5), "red")])


@pytest.mark.parametrize(
    ("name", "write", "match"),
    [
        *((f"{mode}.png", partial(palette, mode=mode), "neither grey nor RGB") for mode in ("RGBA", "P", "1", "I;16")),
        ("a.tiff", frames, "several frames"),
        ("2.png", lambda path: path.write_bytes(path.read_bytes()[:60]), "cannot be read"),
        ("notes.txt", lambda path: path.write_bytes(b"?"), "not an image"),
        ("data.pkl", lambda path: path.write_bytes(b"?"), "not an image"),
        ("more", Path.mkdir, "not an image"),
    ],
)
def test_files_that_are_not_plain_images(tmp_path: Path, name: str, write: Callable[[Path], object], match: str) -> None:
    two_parts(tmp_path)
    path = tmp_path / "train" / "dog" / name.replace(";", "")
    write(path)
    with pytest.raises(DataError, match=match) as caught:
        load_folder(tmp_path)
    assert caught.value.where == str(path)


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

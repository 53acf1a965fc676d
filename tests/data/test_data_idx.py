from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_samples import idx_bytes, write_mnist

from twinproof.data.images import missing_idx_files, read_idx, read_idx_folder
from twinproof.errors import DataError


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


def cut(content: bytes) -> bytes:
    return content[:-1]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (cut, "is cut off\n"),
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


def test_labels_file_in_place_of_images(tmp_path: Path) -> None:
    write_mnist(tmp_path, zipped=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.rename(tmp_path / "train-images-idx3-ubyte")
    path.write_bytes(idx_bytes(np.zeros(40, dtype=np.uint8)))
    with pytest.raises(DataError, match="train-images"):
        read_idx_folder(tmp_path, "sample", None)


def test_counts_that_differ(tmp_path: Path) -> None:
    write_mnist(tmp_path, zipped=False)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(19, dtype=np.uint8)))
    with pytest.raises(DataError, match="20 inputs, 19 labels") as caught:
        read_idx_folder(tmp_path, "sample", None)
    assert "t10k-labels" in caught.value.where


def test_a_missing_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"no t10k-labels-idx1-ubyte.gz"):
        read_idx_folder(tmp_path, "sample", None)


def test_images_of_another_size(tmp_path: Path) -> None:
    write_mnist(tmp_path, side=27)
    with pytest.raises(DataError, match="size of this data set"):
        read_idx_folder(tmp_path, "mnist", None, (1, 28, 28))

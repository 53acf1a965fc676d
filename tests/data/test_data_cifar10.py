from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_samples import write_cifar10

from twinproof.data.images import CIFAR10_CLASSES, missing_cifar10_files, read_cifar10
from twinproof.errors import DataError


def test_pixels_and_labels_come_back_in_the_official_order(tmp_path: Path) -> None:
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
def test_files_of_the_wrong_size(tmp_path: Path, size: int, match: str) -> None:
    write_cifar10(tmp_path)
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes((path.read_bytes() + b"\0")[:size])
    with pytest.raises(DataError, match=match) as caught:
        read_cifar10(tmp_path, records=10)
    assert caught.value.where == str(path)


def test_official_size_is_the_default(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    with pytest.raises(DataError, match="30730000 bytes"):
        read_cifar10(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
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

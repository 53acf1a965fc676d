"""Small files in every form that the data room reads, written by the tests themselves."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

IDX_NAMES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "t10k-images": "t10k-images-idx3-ubyte",
    "t10k-labels": "t10k-labels-idx1-ubyte",
}


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_mnist(folder: Path, *, side: int = 28, zipped: bool = True, dot: bool = False) -> dict[str, NDArray[np.uint8]]:
    """Forty training and twenty test images under the official names, each class in both."""
    generator = np.random.default_rng(1)
    arrays = {
        "train-images": generator.integers(0, 256, (40, side, side), dtype=np.uint8),
        "train-labels": np.arange(40, dtype=np.uint8) % 10,
        "t10k-images": generator.integers(0, 256, (20, side, side), dtype=np.uint8),
        "t10k-labels": np.arange(20, dtype=np.uint8) % 10,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in arrays.items():
        name = IDX_NAMES[stem].replace("-idx", ".idx") if dot else IDX_NAMES[stem]
        content = idx_bytes(array)
        (folder / (name + (".gz" if zipped else ""))).write_bytes(gzip.compress(content) if zipped else content)
    return arrays


def write_cifar10(folder: Path, records: int = 10) -> NDArray[np.uint8]:
    """Six binary files of ``records`` images; returns them as (file, record, byte)."""
    content = np.random.default_rng(2).integers(0, 256, (6, records, 3073), dtype=np.uint8)
    content[:, :, 0] = np.arange(records) % 10
    folder.mkdir(parents=True, exist_ok=True)
    for batch, name in zip(content, [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], strict=True):
        (folder / f"{name}.bin").write_bytes(batch.tobytes())
    return content


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_image_folder(root: Path, classes: tuple[str, ...] = ("cat", "dog"), *, count: int = 3, channels: int = 3) -> None:
    """``count`` images of 6x5 (width x height) in every class folder of ``root``."""
    generator = np.random.default_rng(3)
    shape = (5, 6) if channels == 1 else (5, 6, channels)
    for name in classes:
        for number in range(count):
            write_image(root / name / f"{number}.png", generator.integers(0, 256, shape, dtype=np.uint8))


def write_csv(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path

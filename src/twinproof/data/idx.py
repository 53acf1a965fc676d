"""Reading IDX files, the form of MNIST and Fashion-MNIST: gzipped or plain."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinproof.data.limits import RECORD_BYTES, check_unpacked, file_size, open_regular, read_exactly, reading
from twinproof.data.parts import Parts, Records
from twinproof.data.record import InputKind
from twinproof.errors import DataError

IDX_CLASSES_MNIST = tuple(str(digit) for digit in range(10))
IDX_CLASSES_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
PIXEL_LEVELS = 255

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
_FIX = "fetch the file again and compare its checksum"
_FILES = {
    "train": (("train-images", 3), ("train-labels", 1)),
    "test": (("t10k-images", 3), ("t10k-labels", 1)),
}


def missing_idx_files(folder: Path) -> tuple[str, ...]:
    """Which of the four files are not in ``folder``, by their official names."""
    wanted = [pair for part in _FILES.values() for pair in part]
    return tuple(f"{stem}-idx{axes}-ubyte.gz" for stem, axes in wanted if _find(folder, stem, axes) is None)


def read_idx_folder(folder: Path, name: str, classes: tuple[str, ...] | None, shape: tuple[int, ...] | None = None) -> Parts:
    """The four files of ``folder``; ``shape`` is what one image must have, where the set prescribes it."""
    missing = missing_idx_files(folder)
    if missing:
        raise DataError(
            "files of the data set are missing",
            where=str(folder),
            got=f"no {', '.join(missing)}",
            wanted="images and labels for training and testing, gzipped or plain",
            fix="put the four official files into the folder",
        )
    train, test = (_read_part(folder, part, shape) for part in ("train", "test"))
    return Parts(name=name, kind=InputKind.IMAGE, train=train, test=test, levels=PIXEL_LEVELS, classes=classes)


def read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in one file, which must have ``axes`` axes."""
    with open_regular(path) as handle, reading(path, "a whole IDX file, gzipped or plain", _FIX):
        zipped = handle.read(2) == _GZIP_MAGIC
        handle.seek(0)
        stream: gzip.GzipFile | BinaryIO = gzip.GzipFile(fileobj=handle) if zipped else handle
        sizes = _sizes(stream, axes, path)
        count = math.prod(sizes)
        check_unpacked(count + sizes[0] * RECORD_BYTES, file_size(handle), path, "unpack the file, and put it in its place")
        content, found = read_exactly(stream, count)
        if found != count:
            what = "the file is cut off" if found < count else "the file is longer than its header says"
            got = f"{found if found < count else 'more'} values"
            raise _broken(what, path, got, f"{count} values ({' x '.join(map(str, sizes))}), as its header says")
    return content.reshape(sizes)


def _sizes(stream: gzip.GzipFile | BinaryIO, axes: int, path: Path) -> list[int]:
    magic = bytes([0, 0, _UNSIGNED_BYTE, axes])
    header = stream.read(4 + 4 * axes)
    if header[:4] != magic:
        raise _broken("the file is not of the IDX kind that was expected", path, header[:4].hex(" "), magic.hex(" "))
    if len(header) < 4 + 4 * axes:
        raise _broken("the file is cut off inside its header", path, f"{len(header)} bytes", f"at least {4 + 4 * axes} bytes")
    return [int.from_bytes(header[start : start + 4], "big") for start in range(4, len(header), 4)]


def _read_part(folder: Path, part: str, shape: tuple[int, ...] | None) -> Records:
    paths = [_find(folder, stem, axes) or folder / stem for stem, axes in _FILES[part]]
    images = read_idx(paths[0], 3)[:, np.newaxis]
    if shape is not None and images.shape[1:] != shape:
        raise _broken("the images do not have the size of this data set", paths[0], images.shape[1:], str(shape))
    labels: NDArray[Any] = read_idx(paths[1], 1)
    return Records(images, labels, f"{paths[0]} and {paths[1].name}")


def _find(folder: Path, stem: str, axes: int) -> Path | None:
    for separator in "-.":
        for ending in (".gz", ""):
            path = folder / f"{stem}{separator}idx{axes}-ubyte{ending}"
            if path.is_file():
                return path
    return None


def _broken(what: str, path: Path, got: object, wanted: str) -> DataError:
    return DataError(what, where=str(path), got=got, wanted=wanted, fix=_FIX)

"""Files of images: folders by class, IDX (MNIST, Fashion-MNIST) and CIFAR-10's binary form."""

from __future__ import annotations

import gzip
import math
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinproof.data.limits import (
    DECODER_ERRORS,
    IMAGE_PIXELS,
    RECORD_BYTES,
    check_names,
    check_unpacked,
    file_size,
    open_regular,
    read_exactly,
    reading,
)
from twinproof.data.record import DataConfig, InputKind, Parts, Records, refuse_second_test_part, refuse_settings
from twinproof.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
PIXEL_LEVELS = 255

_MODES = ("L", "RGB")
_CONVERT = "resize or convert the image before loading"
# Pillow looks at the content, not at the suffix, and some of its other decoders start programs.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")


def read_image_folder(folder: Path, name: str, config: DataConfig) -> Parts:
    """Images in ``train/<class>/`` and ``test/<class>/``, or in ``<class>/`` with the test part elsewhere or split off.

    Every file must be grey or RGB, all of one kind and one size: pixels are taken as stored, nothing is resized or converted.
    """
    refuse_settings(config, ("label",), "no label column: the folders name the classes")
    train_folder, test_folder = _parts_of(folder, config)
    files = _class_files(train_folder)
    tests = [] if test_folder is None else _class_files(test_folder)
    first = (tests or files)[0][1]
    sample = _read_image(first)
    train = _read_records(files, train_folder, first, sample)
    test = None if test_folder is None else _read_records(tests, test_folder, first, sample)
    return Parts(name=name, kind=InputKind.IMAGE, train=train, test=test, levels=PIXEL_LEVELS)


def _parts_of(folder: Path, config: DataConfig) -> tuple[Path, Path | None]:
    given = None if config.test is None else Path(config.test).expanduser()
    if not (folder / "train").is_dir():
        return folder, given
    if not (folder / "test").is_dir():
        return folder / "train", given
    refuse_second_test_part("test", config.test, "a folder 'test' beside 'train'")
    return folder / "train", folder / "test"


def _class_files(folder: Path) -> list[tuple[str, Path]]:
    """(class, file) in a fixed order: classes by name, files by name."""
    wanted = f"one folder for each class, with image files in it ({', '.join(SUFFIXES)})"
    if not folder.is_dir():
        raise DataError("there is no such folder of images", where=str(folder), got="no folder", wanted=wanted)
    found: list[tuple[str, Path]] = []
    for class_folder in filter(Path.is_dir, _visible(folder)):
        check_names([class_folder.name], class_folder, "the name of a class folder")
        for path in _visible(class_folder):
            if path.suffix.lower() not in SUFFIXES or path.is_dir():
                got = "a folder" if path.is_dir() else f"suffix {path.suffix!r}"
                what = "something in a class folder is not an image"
                raise DataError(what, where=str(path), got=got, wanted=wanted, fix="move it elsewhere")
            found.append((class_folder.name, path))
    if not found:
        raise DataError("there are no images", where=str(folder), got="no class folder with an image in it", wanted=wanted)
    return found


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _read_records(files: list[tuple[str, Path]], folder: Path, first: Path, sample: NDArray[np.uint8]) -> Records:
    needed = len(files) * (sample.size + RECORD_BYTES)
    check_unpacked(needed, sum(path.stat().st_size for _, path in files), folder, "store the images without compression")
    inputs = np.empty((len(files), *sample.shape), dtype=np.uint8)
    for row, (_, path) in zip(inputs, files, strict=True):
        image = _read_image(path)
        if image.shape != sample.shape:
            raise DataError(
                "the images are not all of one kind and size",
                where=f"{first} and {path}",
                got=f"{_words(sample)} and {_words(image)}",
                wanted="one size, and all grey or all RGB",
                fix=_CONVERT,
            )
        row[:] = image
    return Records(inputs, np.array([label for label, _ in files]), str(folder))


def _read_image(path: Path) -> NDArray[np.uint8]:
    """Pixels (channels, height, width) of one file."""
    from PIL import Image  # here, because only image folders need it

    errors = (*DECODER_ERRORS, Image.DecompressionBombError)
    with (
        open_regular(path) as handle,
        reading(path, "a whole image file", "mend or remove the file", errors),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Pillow warns of what it can read all the same
        with Image.open(handle, formats=_FORMATS) as image:
            width, height = image.size
            if not 0 < width * height <= IMAGE_PIXELS:
                got, wanted = f"{width}x{height} pixels", f"1 to {IMAGE_PIXELS} pixels"
                raise DataError("an image has an unusable size", where=str(path), got=got, wanted=wanted, fix=_CONVERT)
            several, mode = getattr(image, "is_animated", False), image.mode
            pixels = np.asarray(image)
    if mode not in _MODES or several:
        raise DataError(
            "an image is neither grey nor RGB with 8 bits a channel",
            where=str(path),
            got="several frames" if several else f"mode {mode!r}",
            wanted="one frame in mode 'L' (grey) or 'RGB'",
            fix=_CONVERT,
        )
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _words(image: NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"


MNIST_CLASSES = tuple(str(digit) for digit in range(10))
FASHION_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 8
_FIX = "fetch the file again and compare its checksum"
_FILES = {"train": (("train-images", 3), ("train-labels", 1)), "test": (("t10k-images", 3), ("t10k-labels", 1))}


def missing_idx_files(folder: Path) -> tuple[str, ...]:
    """Which of the four files are not in ``folder``, by their official names."""
    wanted = [pair for part in _FILES.values() for pair in part]
    return tuple(f"{stem}-idx{axes}-ubyte.gz" for stem, axes in wanted if _find(folder, stem, axes) is None)


def read_idx_folder(folder: Path, name: str, classes: tuple[str, ...] | None, shape: tuple[int, ...] | None = None) -> Parts:
    """The four files of ``folder``; ``shape`` is what one image must have, where the set prescribes it."""
    _refuse_missing(folder, missing_idx_files(folder), "images and labels for training and testing, gzipped or plain")
    train, test = (_read_part(folder, part, shape) for part in ("train", "test"))
    return Parts(name=name, kind=InputKind.IMAGE, train=train, test=test, levels=PIXEL_LEVELS, classes=classes)


def _refuse_missing(folder: Path, missing: tuple[str, ...], wanted: str) -> None:
    if missing:
        got, fix = f"no {', '.join(missing)}", "put the official files into the folder"
        raise DataError("files of the data set are missing", where=str(folder), got=got, wanted=wanted, fix=fix)


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


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_SHAPE = (3, 32, 32)
RECORDS_IN_A_FILE = 10_000

_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
_RECORD_BYTES = 1 + 3 * 32 * 32
_OFFICIAL = "the official binary form: data_batch_1.bin to data_batch_5.bin and test_batch.bin"


def missing_cifar10_files(folder: Path) -> tuple[str, ...]:
    """Which of the six binary files are not in ``folder``."""
    return tuple(name for name in _TRAIN + _TEST if not (folder / name).is_file())


def read_cifar10(folder: Path, name: str = "cifar10", *, records: int = RECORDS_IN_A_FILE) -> Parts:
    """The six binary files of ``folder``, each with exactly ``records`` images."""
    missing = missing_cifar10_files(folder)
    if missing:
        _refuse_pickles(folder)
    _refuse_missing(folder, missing, _OFFICIAL)
    train, test = (_read_files(folder, names, records) for names in (_TRAIN, _TEST))
    return Parts(name=name, kind=InputKind.IMAGE, train=train, test=test, levels=PIXEL_LEVELS, classes=CIFAR10_CLASSES)


def _read_files(folder: Path, names: tuple[str, ...], records: int) -> Records:
    wanted = records * _RECORD_BYTES
    content = np.empty((len(names), wanted), dtype=np.uint8)
    for row, name in zip(content, names, strict=True):
        path = folder / name
        with open_regular(path) as handle, reading(path, _OFFICIAL, _FIX):
            size = file_size(handle)
            if size == wanted:
                row[:] = np.frombuffer(handle.read(wanted), dtype=np.uint8)
        if size != wanted:
            what = "the file is cut off" if size < wanted else "the file is longer than it should be"
            raise _broken(what, path, f"{size} bytes", f"{wanted} bytes ({records} images of {_RECORD_BYTES} bytes)")
    table = content.reshape(-1, _RECORD_BYTES)
    where = str(folder / names[0]) if len(names) == 1 else f"{folder / names[0]} to {names[-1]}"
    return Records(np.ascontiguousarray(table[:, 1:]).reshape(-1, *CIFAR10_SHAPE), table[:, 0], where)


def _refuse_pickles(folder: Path) -> None:
    pickled = [path for path in (folder / "data_batch_1", folder / "cifar-10-batches-py") if path.exists()]
    if pickled:
        raise DataError(
            "the pickled form of CIFAR-10 is not read",
            where=str(pickled[0]),
            got="pickled batches",
            wanted=_OFFICIAL,
            fix="use cifar-10-binary.tar.gz of the same source; unpickling a file runs whatever code it contains",
        )

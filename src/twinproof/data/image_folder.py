"""The user's own images: one folder for each class."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinproof.data.config import DataConfig, refuse_settings
from twinproof.data.limits import (
    DECODER_ERRORS,
    IMAGE_PIXELS,
    RECORD_BYTES,
    check_names,
    check_unpacked,
    open_regular,
    reading,
)
from twinproof.data.parts import Parts, Records
from twinproof.data.record import InputKind
from twinproof.errors import ConfigError, DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
PIXEL_LEVELS = 255

_MODES = ("L", "RGB")
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
    own = folder / "test" if (folder / "test").is_dir() else None
    if own is not None and given is not None:
        raise ConfigError(
            "there are two test parts",
            where="test",
            got=f"{config.test}, and a folder 'test' beside 'train'",
            wanted="one test part",
            fix="leave out `test`, or point `source` at the train folder itself",
        )
    return folder / "train", own or given


def _class_files(folder: Path) -> list[tuple[str, Path]]:
    """(class, file) in a fixed order: classes by name, files by name."""
    if not folder.is_dir():
        raise DataError(
            "there is no such folder of images", where=str(folder), got="no folder", wanted="one folder for each class"
        )
    found: list[tuple[str, Path]] = []
    for class_folder in _visible(folder):
        if not class_folder.is_dir():
            continue
        check_names([class_folder.name], class_folder, "the name of a class folder")
        for path in _visible(class_folder):
            if path.suffix.lower() not in SUFFIXES or path.is_dir():
                raise DataError(
                    "something in a class folder is not an image",
                    where=str(path),
                    got="a folder" if path.is_dir() else f"suffix {path.suffix!r}",
                    wanted=f"image files ({', '.join(SUFFIXES)})",
                    fix="move it elsewhere",
                )
            found.append((class_folder.name, path))
    if not found:
        raise DataError(
            "there are no images",
            where=str(folder),
            got="no class folder with an image in it",
            wanted="one folder for each class, with image files in it",
        )
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
                fix="resize or convert them before loading",
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
                raise DataError(
                    "an image has an unusable size",
                    where=str(path),
                    got=f"{width}x{height} pixels",
                    wanted=f"1 to {IMAGE_PIXELS} pixels",
                    fix="resize the image before loading",
                )
            several, mode = getattr(image, "is_animated", False), image.mode
            pixels = np.asarray(image)
    if mode not in _MODES or several:
        raise DataError(
            "an image is neither grey nor RGB with 8 bits a channel",
            where=str(path),
            got="several frames" if several else f"mode {mode!r}",
            wanted="one frame in mode 'L' (grey) or 'RGB'",
            fix="convert the image before loading",
        )
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _words(image: NDArray[np.uint8]) -> str:
    channels, height, width = image.shape
    return f"{width}x{height} {'grey' if channels == 1 else 'RGB'}"

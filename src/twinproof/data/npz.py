"""The user's own arrays: NumPy's ``.npz``."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.data.config import DataConfig, refuse_settings
from twinproof.data.parts import Parts, Records
from twinproof.data.record import InputKind
from twinproof.data.scaling import FEATURE_LEVELS
from twinproof.errors import ConfigError, DataError

PIXEL_LEVELS = 255
CHANNELS = (1, 3)

_Arrays = dict[str, NDArray[Any]]


def read_npz(path: Path, name: str, config: DataConfig) -> Parts:
    """Arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``x`` and ``y`` with the test part elsewhere or split off.

    Inputs are uint8 images (N,H,W), (N,H,W,C) or (N,C,H,W); images of floats in [0, 1]; or features (N,d) of any number type.
    """
    refuse_settings(config, ("label",), "no label column: the array y holds the labels")
    arrays = _read_arrays(path)
    train = _records(arrays, ("_train", ""), path)
    test = _records(arrays, ("_test",), path) if "x_test" in arrays or "y_test" in arrays else None
    if config.test is not None:
        if test is not None:
            got = f"{config.test}, and x_test in {path}"
            raise ConfigError("there are two test parts", where="test", got=got, wanted="one test part", fix="leave out `test`")
        test_path = Path(config.test).expanduser()
        test = _records(_read_arrays(test_path), ("_test", ""), test_path)
    if test is not None:
        _check_alike(train, test)
    if train.inputs.ndim == 2:
        names = tuple(f"x{column}" for column in range(train.inputs.shape[1]))
        return Parts(name=name, kind=InputKind.FEATURES, train=train, test=test, levels=None, feature_names=names)
    levels = PIXEL_LEVELS if train.inputs.dtype == np.uint8 else FEATURE_LEVELS
    return Parts(name=name, kind=InputKind.IMAGE, train=train, test=test, levels=levels)


def _read_arrays(path: Path) -> _Arrays:
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("a single array, not an archive of named arrays")
        with archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            "the file cannot be read",
            where=str(path),
            got=error,
            wanted="a whole .npz file of numbers and text; pickled objects are refused, because unpickling runs code",
            fix="write it with numpy.savez_compressed(path, x=..., y=...)",
        ) from error


def _records(arrays: _Arrays, endings: tuple[str, ...], path: Path) -> Records:
    for ending in endings:
        if f"x{ending}" in arrays and f"y{ending}" in arrays:
            labels = _labels(arrays[f"y{ending}"], f"{path}, array y{ending}")
            return Records(
                _inputs(arrays[f"x{ending}"], f"{path}, array x{ending}"), labels, f"{path}, x{ending} and y{ending}"
            )
    raise DataError(
        "an array is missing",
        where=str(path),
        got=f"arrays {', '.join(arrays) or 'none'}",
        wanted=" or ".join(f"x{ending} and y{ending}" for ending in endings),
        fix="rename the arrays: x_train, y_train, x_test, y_test, or x and y",
    )


def _inputs(values: NDArray[Any], where: str) -> NDArray[Any]:
    if values.ndim == 2 and values.dtype.kind in "buif":
        return values.astype(np.float64)
    if values.ndim in (3, 4) and values.dtype == np.uint8:
        return _channels_first(values, where)
    if values.ndim in (3, 4) and values.dtype.kind == "f":
        return _channels_first(_float_pixels(values, where), where)
    raise DataError(
        "an array holds neither images nor features",
        where=where,
        got=f"{values.dtype} of shape {values.shape}",
        wanted="images (N,H,W), (N,H,W,C) or (N,C,H,W) as uint8 or as floats in [0, 1], or features (N,d) as numbers",
    )


def _float_pixels(values: NDArray[Any], where: str) -> NDArray[np.uint16]:
    """Pixels in [0, 1] on 65,536 levels. The comparison is written so that NaN counts as outside."""
    outside = np.argwhere(~((values >= 0) & (values <= 1)))
    if len(outside):
        position = tuple(int(index) for index in outside[0])
        raise DataError(
            "a pixel lies outside [0, 1]",
            where=f"{where}, record {position[0]}",
            got=values[position],
            wanted="floats in [0, 1], or uint8 pixels",
            fix="divide by the largest possible pixel value (a known constant, not the largest one found)",
        )
    return np.rint(values.astype(np.float64) * FEATURE_LEVELS).astype(np.uint16)


def _channels_first(images: NDArray[Any], where: str) -> NDArray[Any]:
    if images.ndim == 3:
        return images[:, np.newaxis]
    first, last = images.shape[1] in CHANNELS, images.shape[3] in CHANNELS
    if first == last:
        raise DataError(
            "the axis of the channels cannot be told",
            where=where,
            got=f"shape {images.shape}",
            wanted="1 or 3 channels, on exactly one of the second and the last axis",
        )
    return images if first else images.transpose(0, 3, 1, 2)


def _labels(values: NDArray[Any], where: str) -> NDArray[Any]:
    if values.ndim == 1 and values.dtype.kind in "iu":
        return values.astype(np.int64)
    if values.ndim == 1 and values.dtype.kind == "U":
        return values
    raise DataError(
        "the labels are neither integers nor text",
        where=where,
        got=f"{values.dtype} of shape {values.shape}",
        wanted="one integer or text for each record, shape (N,)",
        fix="store class numbers or class names",
    )


def _check_alike(train: Records, test: Records) -> None:
    shapes = [records.inputs.shape[1:] for records in (train, test)]
    types = [records.inputs.dtype for records in (train, test)]
    if shapes[0] != shapes[1] or types[0] != types[1]:
        raise DataError(
            "training and test inputs differ in shape or type",
            where=f"{train.where}; {test.where}",
            got=f"{types[0]} {shapes[0]} and {types[1]} {shapes[1]}",
            wanted="one shape and type for all records",
            fix="prepare both parts in the same way",
        )

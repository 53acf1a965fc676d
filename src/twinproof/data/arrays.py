"""Arrays: the user's own in memory or in an ``.npz`` file, and any torch ``Dataset``.

Inputs are uint8 images (N,H,W), (N,H,W,C) or (N,C,H,W); images of floats in [0, 1]; or features (N,d) of any number type.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from twinproof.data.assemble import assemble
from twinproof.data.limits import (
    HEADER_BYTES,
    NAME_CHARACTERS,
    RECORD_BYTES,
    check_unpacked,
    file_size,
    listed,
    open_regular,
    read_exactly,
    reading,
)
from twinproof.data.record import (
    DataConfig,
    Dataset,
    InputKind,
    Parts,
    Ranges,
    Records,
    check_alike,
    parse_data_config,
    refuse_second_test_part,
    refuse_settings,
)
from twinproof.data.scaling import FEATURE_LEVELS
from twinproof.errors import DataError
from twinproof.keys import Key

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset


PIXEL_LEVELS = 255
CHANNELS = (1, 3)
ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test", "x", "y")
_RENAME = "rename the arrays: x_train, y_train, x_test, y_test, or x and y"

_AT_A_TIME = 1024  # records whose copies are in memory together

Arrays = Mapping[str, NDArray[Any]]


def from_arrays(
    name: str,
    arrays: Arrays,
    *,
    classes: tuple[str, ...] | None = None,
    ranges: Ranges | None = None,
    public_fraction: float | None = None,
    key: Key | None = None,
) -> Dataset:
    """A data set from ``x_train``, ``y_train``, ``x_test``, ``y_test``; or from ``x``, ``y`` and a ``public_fraction``.

    The test part is public: its values and labels may appear in released files. Without ``x_test`` you have to say which
    share of the records becomes public. ``classes`` and ``ranges`` are as in :class:`DataConfig`: names come from the
    declaration or the test records, feature bounds from a declaration, the test records or a private estimate, which the
    ledger of a run will count.
    """
    config = parse_data_config({"source": name, "classes": classes, "ranges": ranges, "public_fraction": public_fraction})
    return assemble(parts_of_arrays(name, *_both_parts(arrays, name)), config, key=key)


def from_torch(
    name: str,
    train: TorchDataset[Any],
    test: TorchDataset[Any],
    *,
    classes: tuple[str, ...] | None = None,
    ranges: Ranges | None = None,
    key: Key | None = None,
) -> Dataset:
    """A data set from two torch ``Dataset`` objects of (input, label) pairs; every record is read once.

    Random transforms would be frozen as they happen to fall: leave augmentation to the recipe.
    """
    arrays = _stacked(train, "_train", name) | _stacked(test, "_test", name)
    return from_arrays(name, arrays, classes=classes, ranges=ranges, key=key)


def _stacked(records: TorchDataset[Any], ending: str, name: str) -> dict[str, NDArray[Any]]:
    where = f"{name}, {ending.removeprefix('_')} part"
    try:
        pairs = [records[index] for index in range(len(records))]  # type: ignore[arg-type]
        inputs = np.stack([np.asarray(pair[0]) for pair in pairs])
        labels = np.asarray([int(pair[1]) for pair in pairs])
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise DataError(
            "the records cannot be read as (input, label) pairs of one shape",
            where=where,
            got=error,
            wanted="a torch Dataset with a length, whose items are (input, class number)",
            fix="return tensors or arrays of one shape; leave random transforms out",
        ) from error
    return {f"x{ending}": inputs, f"y{ending}": labels}


def _both_parts(arrays: Arrays, where: str) -> tuple[Records, Records | None]:
    test = records_of_arrays(arrays, ("_test",), where) if "x_test" in arrays or "y_test" in arrays else None
    return records_of_arrays(arrays, ("_train", ""), where), test


def parts_of_arrays(name: str, train: Records, test: Records | None) -> Parts:
    """Images or features, by the number of axes; both parts must be alike."""
    if test is not None:
        check_alike(train, test, f"{train.where}; {test.where}")
    if train.inputs.ndim == 2:
        names = tuple(f"x{column}" for column in range(train.inputs.shape[1]))
        return Parts(name=name, kind=InputKind.FEATURES, train=train, test=test, levels=None, feature_names=names)
    levels = PIXEL_LEVELS if train.inputs.dtype == np.uint8 else FEATURE_LEVELS
    return Parts(name=name, kind=InputKind.IMAGE, train=train, test=test, levels=levels)


def records_of_arrays(arrays: Arrays, endings: tuple[str, ...], path: str) -> Records:
    """The first pair of arrays x and y with one of these endings; ``path`` is where they came from, for error messages."""
    for ending in endings:
        if f"x{ending}" in arrays and f"y{ending}" in arrays:
            inputs = _inputs(arrays[f"x{ending}"], f"{path}, array x{ending}")
            labels = _labels(arrays[f"y{ending}"], f"{path}, array y{ending}")
            return Records(inputs, labels, f"{path}, x{ending} and y{ending}")
    raise DataError(
        "an array is missing",
        where=path,
        got=f"arrays {', '.join(arrays) or 'none'}",
        wanted=" or ".join(f"x{ending} and y{ending}" for ending in endings),
        fix=_RENAME,
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
    levels = np.empty(values.shape, dtype=np.uint16)
    for start in range(0, len(values), _AT_A_TIME):
        some = values[start : start + _AT_A_TIME]
        outside = np.argwhere(~((some >= 0) & (some <= 1)))
        if len(outside):
            position = tuple(outside[0].tolist())
            raise DataError(
                "a pixel lies outside [0, 1]",
                where=f"{where}, record {start + position[0]}",
                got=some[position],
                wanted="floats in [0, 1], or uint8 pixels",
                fix="divide by the largest possible pixel value (a known constant, not the largest one found)",
            )
        levels[start : start + _AT_A_TIME] = np.rint(some.astype(np.float64) * FEATURE_LEVELS)
    return levels


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
        if values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max:
            raise DataError("a label is too large", where=where, got=values.max(), wanted=f"at most {np.iinfo(np.int64).max}")
        return values.astype(np.int64)
    if values.ndim == 1 and values.dtype.kind == "U":
        _check_text(values, where)
        return values
    raise DataError(
        "the labels are neither integers nor text",
        where=where,
        got=f"{values.dtype} of shape {values.shape}",
        wanted="one integer or text for each record, shape (N,)",
        fix="store class numbers or class names",
    )


def _check_text(values: NDArray[Any], where: str) -> None:
    """NumPy stores code points as 32-bit numbers, which need not stand for text."""
    if values.dtype.itemsize > 4 * NAME_CHARACTERS:
        got = f"text of {values.dtype.itemsize // 4} characters"
        raise DataError("a label is too long", where=where, got=got, wanted=f"at most {NAME_CHARACTERS} characters")
    points = np.ascontiguousarray(values).view(values.dtype.str[0] + "u4").reshape(len(values), -1)
    broken = np.flatnonzero((((points >= 0xD800) & (points < 0xE000)) | (points > 0x10FFFF)).any(axis=1))
    if len(broken):
        got = " ".join(f"U+{point:04X}" for point in points[broken[0]].tolist())
        raise DataError("a label is not valid text", where=f"{where}, record {broken[0]}", got=got, wanted="Unicode text")


_AXES = 4
_LONGEST_AXIS = 2**48


class StoredArray:
    """An array that is still in its file: the header is read and checked before memory is taken for the values."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where = stream, where
        try:
            version = npy.read_magic(stream)
            read_header = npy.read_array_header_2_0 if version == (2, 0) else npy.read_array_header_1_0
            self._shape, self._fortran, self._dtype = read_header(stream, max_header_size=HEADER_BYTES)
        except MemoryError as error:  # Python's parser says so of nested text; a header this short cannot fill the memory
            raise self._broken("deeply nested text", "a header as NumPy writes it") from error
        if self._dtype.kind not in "biufUS" or self._dtype.itemsize == 0:
            raise self._broken(
                f"type {self._dtype}", "numbers or text; pickled objects are refused, because unpickling runs code"
            )
        if len(self._shape) > _AXES or not all(0 <= size < _LONGEST_AXIS for size in self._shape):
            raise self._broken(f"shape {self._shape}", f"up to {_AXES} axes of usual length")
        self._bytes = math.prod(self._shape) * self._dtype.itemsize

    @property
    def working_bytes(self) -> int:
        """Memory that records of this array will take: features become float64."""
        records = self._shape[0] if self._shape else 1
        widened = math.prod(self._shape) * 8 if len(self._shape) == 2 else 0
        return max(self._bytes, widened) + records * RECORD_BYTES

    def read(self) -> NDArray[Any]:
        """The values."""
        content, found = read_exactly(self._stream, self._bytes)
        if found != self._bytes:
            raise self._broken(f"{found if found < self._bytes else 'more'} bytes", f"{self._bytes} bytes, as its header says")
        return content.view(self._dtype).reshape(self._shape, order="F" if self._fortran else "C")

    def _broken(self, got: str, wanted: str) -> DataError:
        return DataError(
            "an array cannot be read", where=self._where, got=got, wanted=wanted, fix="write it with NumPy: save, or savez"
        )


_WANTED = "a whole .npz file of numbers and text; pickled objects are refused, because unpickling runs code"
_FIX = "write it with numpy.savez(path, x=..., y=...)"
# What NumPy writes. Other methods unpack whole chunks at once, of any size.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npz(path: Path, name: str, config: DataConfig) -> Parts:
    """Arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``x`` and ``y`` with the test part elsewhere or split off."""
    refuse_settings(config, ("label",), "no label column: the array y holds the labels")
    arrays = _read_arrays(path)
    train, test = _both_parts(arrays, str(path))
    if config.test is not None:
        if test is not None:
            refuse_second_test_part("test", config.test, f"x_test in {path}")
        test_path = Path(config.test).expanduser()
        test = records_of_arrays(_read_arrays(test_path), ("_test", ""), str(test_path))
    return parts_of_arrays(name, train, test)


def _read_arrays(path: Path) -> Arrays:
    """The arrays that hold records; others in the file are left alone."""
    with ExitStack() as stack:
        handle = stack.enter_context(open_regular(path))
        stack.enter_context(reading(path, _WANTED, _FIX))
        archive = stack.enter_context(zipfile.ZipFile(handle))
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        known = [name for name in ARRAY_NAMES if name in members]
        if not known:
            raise DataError(
                "the file has none of the arrays that hold records",
                where=str(path),
                got=f"arrays {listed(members, len(members)) or 'none'}",
                wanted=f"some of {', '.join(ARRAY_NAMES)}",
                fix=_RENAME,
            )
        for name in known:
            if members[name].compress_type not in _METHODS:
                what, got = "an array is compressed in an unknown way", f"method {members[name].compress_type}"
                raise DataError(what, where=f"{path}, array {name}", got=got, wanted=_WANTED, fix=_FIX)
        stored = [StoredArray(stack.enter_context(archive.open(members[name])), f"{path}, array {name}") for name in known]
        needed = sum(array.working_bytes for array in stored)
        check_unpacked(needed, file_size(handle), path, "write it without compression: numpy.savez(path, x=..., y=...)")
        return {name: array.read() for name, array in zip(known, stored, strict=True)}

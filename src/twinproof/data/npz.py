"""The user's own arrays in a file: NumPy's ``.npz``."""

from __future__ import annotations

import zipfile
from contextlib import ExitStack
from pathlib import Path

from twinproof.data.arrays import ARRAY_NAMES, Arrays, parts_of_arrays, records_of_arrays
from twinproof.data.config import DataConfig, refuse_settings
from twinproof.data.limits import check_unpacked, file_size, listed, open_regular, reading
from twinproof.data.npy import StoredArray
from twinproof.data.parts import Parts
from twinproof.errors import ConfigError, DataError

_WANTED = "a whole .npz file of numbers and text; pickled objects are refused, because unpickling runs code"
_FIX = "write it with numpy.savez(path, x=..., y=...)"
# What NumPy writes. Other methods unpack whole chunks at once, whatever their size is.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npz(path: Path, name: str, config: DataConfig) -> Parts:
    """Arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``x`` and ``y`` with the test part elsewhere or split off."""
    refuse_settings(config, ("label",), "no label column: the array y holds the labels")
    arrays = _read_arrays(path)
    train = records_of_arrays(arrays, ("_train", ""), str(path))
    test = records_of_arrays(arrays, ("_test",), str(path)) if "x_test" in arrays or "y_test" in arrays else None
    if config.test is not None:
        if test is not None:
            got = f"{config.test}, and x_test in {path}"
            raise ConfigError("there are two test parts", where="test", got=got, wanted="one test part", fix="leave out `test`")
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
                fix="rename the arrays: x_train, y_train, x_test, y_test, or x and y",
            )
        for name in known:
            if members[name].compress_type not in _METHODS:
                got = f"method {members[name].compress_type}"
                raise DataError(
                    "an array is compressed in a foreign way", where=f"{path}, array {name}", got=got, wanted=_WANTED, fix=_FIX
                )
        stored = [StoredArray(stack.enter_context(archive.open(members[name])), f"{path}, array {name}") for name in known]
        needed = sum(array.working_bytes for array in stored)
        check_unpacked(needed, file_size(handle), path, "write it without compression: numpy.savez(path, x=..., y=...)")
        return {name: array.read() for name, array in zip(known, stored, strict=True)}

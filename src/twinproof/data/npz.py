"""The user's own arrays in a file: NumPy's ``.npz``."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from twinproof.data.arrays import Arrays, parts_of_arrays, records_of_arrays
from twinproof.data.config import DataConfig, refuse_settings
from twinproof.data.parts import Parts
from twinproof.errors import ConfigError, DataError


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

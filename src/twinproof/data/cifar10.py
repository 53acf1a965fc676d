"""Reading CIFAR-10 in its official binary form."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from twinproof.data.limits import file_size, open_regular, reading
from twinproof.data.parts import Parts, Records
from twinproof.data.record import InputKind
from twinproof.errors import DataError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_SHAPE = (3, 32, 32)
RECORDS_IN_A_FILE = 10_000
PIXEL_LEVELS = 255

_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
_RECORD_BYTES = 1 + 3 * 32 * 32
_OFFICIAL = "the official binary form: data_batch_1.bin to data_batch_5.bin and test_batch.bin"
_FIX = "fetch the file again and compare its checksum"


def missing_cifar10_files(folder: Path) -> tuple[str, ...]:
    """Which of the six binary files are not in ``folder``."""
    return tuple(name for name in _TRAIN + _TEST if not (folder / name).is_file())


def read_cifar10(folder: Path, name: str = "cifar10", *, records: int = RECORDS_IN_A_FILE) -> Parts:
    """The six binary files of ``folder``, each with exactly ``records`` images."""
    missing = missing_cifar10_files(folder)
    if missing:
        _refuse_pickles(folder)
        raise DataError(
            "files of the data set are missing",
            where=str(folder),
            got=f"no {', '.join(missing)}",
            wanted=_OFFICIAL,
            fix="unpack cifar-10-binary.tar.gz there",
        )
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
            raise DataError(
                "the file is cut off" if size < wanted else "the file is longer than it should be",
                where=str(path),
                got=f"{size} bytes",
                wanted=f"{wanted} bytes ({records} images of {_RECORD_BYTES} bytes)",
                fix=_FIX,
            )
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

"""The user's own data by path: which reader fits."""

from __future__ import annotations

from pathlib import Path

from twinproof.data.cifar10 import missing_cifar10_files, read_cifar10
from twinproof.data.config import DataConfig, refuse_settings
from twinproof.data.idx import missing_idx_files, read_idx_folder
from twinproof.data.image_folder import read_image_folder
from twinproof.data.npz import read_npz
from twinproof.data.parts import Parts
from twinproof.data.table import PARQUET_SUFFIXES, read_table
from twinproof.errors import DataError

FORMS = "a folder with one folder of images for each class, .npz, .csv, .parquet, or a folder of IDX or CIFAR-10 binary files"


def read_path(path: Path, config: DataConfig) -> Parts:
    """The records at ``path``. They are named by the last part of the path: a released file must not show the whole of it."""
    name = public_name(path)
    if not path.exists():
        raise DataError(
            "there is nothing at this path", where=str(path), got="no file or folder", wanted=FORMS, fix="check the path"
        )
    if path.is_dir():
        return _read_folder(path, name, config)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, name, config)
    if suffix in (".csv", *PARQUET_SUFFIXES):
        return read_table(path, name, config)
    raise DataError("this kind of file is not read", where=str(path), got=f"suffix {suffix!r}", wanted=FORMS)


def public_name(path: Path) -> str:
    """The file or folder name only; bytes that are not UTF-8 are escaped, because run.json cannot hold them."""
    name = path.name if path.name not in ("", "..") else path.resolve().name
    return name.encode(errors="backslashreplace").decode() or "data"


def _read_folder(path: Path, name: str, config: DataConfig) -> Parts:
    settled = ("test", "label")
    if not missing_idx_files(path):
        refuse_settings(config, settled, "a folder of IDX files has its own test part and labels")
        return read_idx_folder(path, name, None)
    if not missing_cifar10_files(path):
        refuse_settings(config, (*settled, "classes"), "the CIFAR-10 files have their own test part, labels and classes")
        return read_cifar10(path, name)
    return read_image_folder(path, name, config)

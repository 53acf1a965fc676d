"""Loading a data set by name or path."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path

from twinproof.data.arrays import read_npz
from twinproof.data.assemble import assemble
from twinproof.data.config import DataConfig, parse_data_config, refuse_settings
from twinproof.data.images import missing_cifar10_files, missing_idx_files, read_cifar10, read_idx_folder, read_image_folder
from twinproof.data.limits import PARQUET_SUFFIXES, reading
from twinproof.data.record import Dataset, Parts, Scaling
from twinproof.data.sources import SOURCES, data_root, known_sources
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key

FORMS = "a folder with one folder of images for each class, .npz, .csv, .parquet, or a folder of IDX or CIFAR-10 binary files"


def read_path(path: Path, config: DataConfig) -> Parts:
    """The records at ``path``. They are named by the last part of the path: a released file must not show the whole of it."""
    name = public_name(path)
    if not path.exists():
        raise DataError("there is nothing at this path", where=str(path), got="no file or folder", wanted=FORMS)
    if path.is_dir():
        return _read_folder(path, name, config)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, name, config)
    if suffix in (".csv", *PARQUET_SUFFIXES):
        from twinproof.data.table import (
            read_table,  # here, because importing Arrow takes time that other formats need not spend
        )

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


def load(
    config: DataConfig | str | Path,
    *,
    root: str | Path | None = None,
    key: Key | None = None,
    scaling: Scaling | None = None,
    public_fraction: float | None = None,
) -> Dataset:
    """The data set that ``config`` names; a string or a path stands for ``DataConfig(source=...)``.

    ``root`` (else TWINPROOF_DATA) is where standard sets are looked for. ``key`` feeds a private estimate of ranges; without it
    a fresh one is drawn. ``scaling`` replays bounds that were resolved earlier: nothing is estimated or spent again.
    ``public_fraction`` is for records that are known to be public: the share that becomes the test part where the data and
    ``config`` name none. The same files and settings give equal arrays, apart from private ranges under another key.
    """
    if isinstance(config, (str, Path)):
        config = parse_data_config({"source": str(config)})
    # What the readers did not catch: a path that the system refuses, a label that cannot be encoded.
    with reading(config.source, FORMS, errors=(OSError, ValueError)):
        parts = _read(config, root)
        if public_fraction is not None and parts.test is None:
            parts = replace(parts, public_fraction=public_fraction)
        return assemble(parts, config, key=key, scaling=scaling)


def _read(config: DataConfig, root: str | Path | None) -> Parts:
    source = SOURCES.get(config.source)
    if source is not None:
        refuse_settings(config, ("test", "label", "classes"), f"{source.name} has its own test part, labels and classes")
        return replace(source.read(data_root(root)), public=True)
    path = Path(config.source).expanduser()
    if not path.suffix and not {os.sep, "/"} & set(config.source) and not path.exists():  # it looks like a name
        raise _unknown_name(config.source)
    test = None if config.test is None else Path(config.test).expanduser()
    # By whatever name; equal records in different files are found by ``overlap``.
    if test is not None and path.exists() and test.exists() and path.samefile(test):
        raise ConfigError(
            "the test file is the training file",
            where="data.test",
            got=str(test),
            wanted="other records: the test records are public, the training records are not",
            fix="name other test records, or leave out `test` and set public_fraction",
        )
    return read_path(path, config)


def _unknown_name(name: str) -> ConfigError:
    close = difflib.get_close_matches(name.lower().replace("_", "-"), known_sources(), n=2)
    return ConfigError(
        "no data set has this name, and nothing lies at this path",
        where="source",
        got=repr(name),
        wanted=f"one of {', '.join(known_sources())}; or a path: {FORMS}",
        fix=f"did you mean {' or '.join(close)}?" if close else "choose a name from the list, or give a path",
    )

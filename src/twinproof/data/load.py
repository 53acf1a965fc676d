"""Loading a data set by name or path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from twinproof.data.arrays import read_npz
from twinproof.data.assemble import assemble
from twinproof.data.images import (
    CIFAR10_CLASSES,
    CIFAR10_SHAPE,
    FASHION_CLASSES,
    MNIST_CLASSES,
    missing_cifar10_files,
    missing_idx_files,
    read_cifar10,
    read_idx_folder,
    read_image_folder,
)
from twinproof.data.limits import PARQUET_SUFFIXES, reading
from twinproof.data.record import DataConfig, Dataset, InputKind, Parts, Records, Scaling, parse_data_config, refuse_settings
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key

DIGITS_LEVELS = 16
TEST_SHARE = 0.2
BREAST_CANCER_CLASSES = ("malignant", "benign")

# Round numbers around the smallest and largest values that the published description of the set lists for each measurement,
# its error and its worst value. They are constants of this file: nothing is computed from the records.
_CELLS: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "radius": ((5.0, 30.0), (0.0, 3.0), (5.0, 40.0)),
    "texture": ((5.0, 40.0), (0.0, 5.0), (10.0, 50.0)),
    "perimeter": ((40.0, 200.0), (0.0, 25.0), (50.0, 260.0)),
    "area": ((100.0, 2600.0), (0.0, 600.0), (150.0, 4500.0)),
    "smoothness": ((0.05, 0.2), (0.0, 0.04), (0.05, 0.25)),
    "compactness": ((0.0, 0.4), (0.0, 0.15), (0.0, 1.2)),
    "concavity": ((0.0, 0.5), (0.0, 0.4), (0.0, 1.3)),
    "concave points": ((0.0, 0.25), (0.0, 0.06), (0.0, 0.3)),
    "symmetry": ((0.1, 0.35), (0.0, 0.1), (0.1, 0.7)),
    "fractal dimension": ((0.04, 0.1), (0.0, 0.04), (0.05, 0.25)),
}
BREAST_CANCER_BOUNDS: dict[str, tuple[float, float]] = {
    form.format(name): bounds[place]
    for place, form in enumerate(("mean {}", "{} error", "worst {}"))
    for name, bounds in _CELLS.items()
}


def _embedded(name: str) -> Any:
    """A data set of scikit-learn, which takes a second to import."""
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")()


def read_digits() -> Parts:
    """1,797 handwritten digits, 8x8 grey, stored as the integers 0..16."""
    bunch = _embedded("digits")
    inputs = np.asarray(bunch.images).astype(np.uint8)[:, np.newaxis]
    records = Records(inputs, np.asarray(bunch.target).astype(np.int64), "digits")
    return Parts("digits", InputKind.IMAGE, records, None, DIGITS_LEVELS, classes=MNIST_CLASSES, public_fraction=TEST_SHARE)


def read_breast_cancer() -> Parts:
    """569 tumours, 30 measurements of their cell nuclei each (Wisconsin, diagnostic), with declared bounds."""
    bunch = _embedded("breast_cancer")
    names = tuple(str(name) for name in bunch.feature_names)
    records = Records(np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target).astype(np.int64), "breast-cancer")
    return Parts(
        "breast-cancer",
        InputKind.FEATURES,
        records,
        None,
        None,
        classes=BREAST_CANCER_CLASSES,
        feature_names=names,
        bounds=BREAST_CANCER_BOUNDS,
        public_fraction=TEST_SHARE,
    )


ROOT_VARIABLE = "TWINPROOF_DATA"

_MNIST_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class Source:
    """A data set that is known by name: what it holds, and how it is read.

    One in files lies in one of ``folders`` below the root, and ``missing`` says which of its files are not there. One that
    comes with scikit-learn has no folders.
    """

    name: str
    description: str
    kind: InputKind
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    reader: Callable[[Path], Parts]
    folders: tuple[str, ...] = ()
    missing: Callable[[Path], tuple[str, ...]] = missing_idx_files

    def read(self, root: Path | None) -> Parts:
        """The records, from below ``root`` where the set lies in files."""
        return self.reader(self._folder(root) if self.folders else Path())

    def available(self, root: Path | None) -> bool:
        """Whether it could be read now."""
        return not self.folders or (root is not None and any(not self.missing(root / folder) for folder in self.folders))

    def _folder(self, root: Path | None) -> Path:
        """The folder that holds the whole set, else one that holds a part (the reader then names what is missing)."""
        candidates = [] if root is None else [root / folder for folder in self.folders]
        present = [folder for folder in candidates if folder.is_dir()]
        if present:
            return min(present, key=lambda folder: len(self.missing(folder)))
        raise DataError(
            f"the data set {self.name!r} is not there",
            where=", ".join(map(str, candidates)) or f"{ROOT_VARIABLE} is not set",
            got="no such folder" if candidates else "no place to look in",
            wanted=f"its official files in a folder {self.folders[0]!r} of the data folder",
            fix=f"set {ROOT_VARIABLE} to the folder that contains {self.folders[0]!r}",
        )


@dataclass(frozen=True)
class SourceDescription:
    """What there is to know about a source before loading it; ``available`` says whether its files were found."""

    name: str
    description: str
    kind: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    available: bool

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return asdict(self) | {"shape": list(self.shape), "classes": list(self.classes)}


def _like_mnist(name: str, description: str, classes: tuple[str, ...], original: str) -> Source:
    reader = partial(read_idx_folder, name=name, classes=classes, shape=_MNIST_SHAPE)
    return Source(name, description, InputKind.IMAGE, _MNIST_SHAPE, classes, reader, (name, f"{original}/raw"))


_CIFAR10_FOLDERS = (
    "cifar10/cifar-10-batches-bin",
    "cifar-10-batches-bin",
    "cifar10",
    "cifar-10-batches-py",  # the pickled form: the reader says why it is refused
)
_ALL = (
    Source(
        "digits",
        "1,797 handwritten digits, 8x8 grey; comes with scikit-learn",
        InputKind.IMAGE,
        (1, 8, 8),
        MNIST_CLASSES,
        lambda _: read_digits(),
    ),
    Source(
        "breast-cancer",
        "569 tumours, 30 measurements each (Wisconsin, diagnostic); comes with scikit-learn",
        InputKind.FEATURES,
        (len(BREAST_CANCER_BOUNDS),),
        BREAST_CANCER_CLASSES,
        lambda _: read_breast_cancer(),
    ),
    _like_mnist("mnist", "60,000 + 10,000 handwritten digits, 28x28 grey", MNIST_CLASSES, "MNIST"),
    _like_mnist("fashion-mnist", "60,000 + 10,000 pictures of clothes, 28x28 grey", FASHION_CLASSES, "FashionMNIST"),
    Source(
        "cifar10",
        "50,000 + 10,000 photographs of ten kinds of things, 32x32 RGB",
        InputKind.IMAGE,
        CIFAR10_SHAPE,
        CIFAR10_CLASSES,
        read_cifar10,
        _CIFAR10_FOLDERS,
        missing_cifar10_files,
    ),
)
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


def known_sources() -> tuple[str, ...]:
    """The names that ``load`` knows."""
    return tuple(SOURCES)


def describe_sources(root: str | Path | None = None) -> tuple[SourceDescription, ...]:
    """Every known source, and whether it could be loaded now from ``root`` (or the folder in TWINPROOF_DATA)."""
    folder = data_root(root)
    return tuple(
        SourceDescription(known.name, known.description, str(known.kind), known.shape, known.classes, known.available(folder))
        for known in SOURCES.values()
    )


def data_root(root: str | Path | None) -> Path | None:
    """``root`` itself, else the folder that the environment names, else None."""
    named = root or os.environ.get(ROOT_VARIABLE)
    return Path(named).expanduser() if named else None


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

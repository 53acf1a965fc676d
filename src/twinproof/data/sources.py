"""Data sets that are known by name, among them those that come with scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from twinproof.data.images import (
    CIFAR10_CLASSES,
    CIFAR10_SHAPE,
    IDX_CLASSES_FASHION,
    IDX_CLASSES_MNIST,
    missing_cifar10_files,
    missing_idx_files,
    read_cifar10,
    read_idx_folder,
)
from twinproof.data.record import InputKind, Parts, Records
from twinproof.errors import DataError

DIGITS_LEVELS = 16
DIGITS_CLASSES = tuple(str(digit) for digit in range(10))
TEST_SHARE = 0.2
BREAST_CANCER_CLASSES = ("malignant", "benign")

# Round numbers around the smallest and largest values that the published description of the set lists for each measurement.
# They are constants of this file: nothing is computed from the records.
BREAST_CANCER_BOUNDS: dict[str, tuple[float, float]] = {
    "mean radius": (5.0, 30.0),
    "mean texture": (5.0, 40.0),
    "mean perimeter": (40.0, 200.0),
    "mean area": (100.0, 2600.0),
    "mean smoothness": (0.05, 0.2),
    "mean compactness": (0.0, 0.4),
    "mean concavity": (0.0, 0.5),
    "mean concave points": (0.0, 0.25),
    "mean symmetry": (0.1, 0.35),
    "mean fractal dimension": (0.04, 0.1),
    "radius error": (0.0, 3.0),
    "texture error": (0.0, 5.0),
    "perimeter error": (0.0, 25.0),
    "area error": (0.0, 600.0),
    "smoothness error": (0.0, 0.04),
    "compactness error": (0.0, 0.15),
    "concavity error": (0.0, 0.4),
    "concave points error": (0.0, 0.06),
    "symmetry error": (0.0, 0.1),
    "fractal dimension error": (0.0, 0.04),
    "worst radius": (5.0, 40.0),
    "worst texture": (10.0, 50.0),
    "worst perimeter": (50.0, 260.0),
    "worst area": (150.0, 4500.0),
    "worst smoothness": (0.05, 0.25),
    "worst compactness": (0.0, 1.2),
    "worst concavity": (0.0, 1.3),
    "worst concave points": (0.0, 0.3),
    "worst symmetry": (0.1, 0.7),
    "worst fractal dimension": (0.05, 0.25),
}


def read_digits() -> Parts:
    """1,797 handwritten digits, 8x8 grey, stored as the integers 0..16."""
    from sklearn.datasets import load_digits  # here, because importing scikit-learn takes a second

    bunch = load_digits()
    inputs = np.asarray(bunch.images).astype(np.uint8)[:, np.newaxis]
    records = Records(inputs, np.asarray(bunch.target).astype(np.int64), "digits")
    return Parts(
        name="digits",
        kind=InputKind.IMAGE,
        train=records,
        test=None,
        levels=DIGITS_LEVELS,
        classes=DIGITS_CLASSES,
        public_fraction=TEST_SHARE,
    )


def read_breast_cancer() -> Parts:
    """569 tumours, 30 measurements of their cell nuclei each (Wisconsin, diagnostic), with declared bounds."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = tuple(str(name) for name in bunch.feature_names)
    records = Records(np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target).astype(np.int64), "breast-cancer")
    return Parts(
        name="breast-cancer",
        kind=InputKind.FEATURES,
        train=records,
        test=None,
        levels=None,
        classes=BREAST_CANCER_CLASSES,
        feature_names=names,
        bounds=BREAST_CANCER_BOUNDS,
        public_fraction=TEST_SHARE,
    )


ROOT_VARIABLE = "TWINPROOF_DATA"

_MNIST_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class OnDisk:
    """A standard set in files: the folders below the root it may lie in, which of its files are missing, and its reader."""

    folders: tuple[str, ...]
    missing: Callable[[Path], tuple[str, ...]]
    read: Callable[[Path], Parts]


@dataclass(frozen=True)
class Source:
    """A data set that is known by name: what it holds, and how it is read (embedded ones need no files)."""

    name: str
    description: str
    kind: InputKind
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    reader: OnDisk | Callable[[], Parts]

    def read(self, root: Path | None) -> Parts:
        """The records, from below ``root`` where the set lies in files."""
        return self.reader.read(_folder(self.name, self.reader, root)) if isinstance(self.reader, OnDisk) else self.reader()


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


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "digits",
            "1,797 handwritten digits, 8x8 grey; comes with scikit-learn",
            InputKind.IMAGE,
            (1, 8, 8),
            DIGITS_CLASSES,
            read_digits,
        ),
        Source(
            "breast-cancer",
            "569 tumours, 30 measurements each (Wisconsin, diagnostic); comes with scikit-learn",
            InputKind.FEATURES,
            (len(BREAST_CANCER_BOUNDS),),
            BREAST_CANCER_CLASSES,
            read_breast_cancer,
        ),
        Source(
            "mnist",
            "60,000 + 10,000 handwritten digits, 28x28 grey",
            InputKind.IMAGE,
            _MNIST_SHAPE,
            IDX_CLASSES_MNIST,
            OnDisk(
                ("mnist", "MNIST/raw"),
                missing_idx_files,
                partial(read_idx_folder, name="mnist", classes=IDX_CLASSES_MNIST, shape=_MNIST_SHAPE),
            ),
        ),
        Source(
            "fashion-mnist",
            "60,000 + 10,000 pictures of clothes, 28x28 grey",
            InputKind.IMAGE,
            _MNIST_SHAPE,
            IDX_CLASSES_FASHION,
            OnDisk(
                ("fashion-mnist", "FashionMNIST/raw"),
                missing_idx_files,
                partial(read_idx_folder, name="fashion-mnist", classes=IDX_CLASSES_FASHION, shape=_MNIST_SHAPE),
            ),
        ),
        Source(
            "cifar10",
            "50,000 + 10,000 photographs of ten kinds of things, 32x32 RGB",
            InputKind.IMAGE,
            CIFAR10_SHAPE,
            CIFAR10_CLASSES,
            # The last folder holds the pickled form: the reader says why it is refused.
            OnDisk(
                ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar10", "cifar-10-batches-py"),
                missing_cifar10_files,
                read_cifar10,
            ),
        ),
    )
}


def known_sources() -> tuple[str, ...]:
    """The names that ``load`` knows."""
    return tuple(SOURCES)


def describe_sources(root: Path | None = None) -> tuple[SourceDescription, ...]:
    """Every known source, and whether it could be loaded now from ``root`` (or the folder in TWINPROOF_DATA)."""
    folder = data_root(root)
    return tuple(
        SourceDescription(
            source.name, source.description, str(source.kind), source.shape, source.classes, _available(source, folder)
        )
        for source in SOURCES.values()
    )


def data_root(root: Path | None) -> Path | None:
    """``root`` itself, else the folder that the environment names, else None."""
    if root is not None:
        return root
    named = os.environ.get(ROOT_VARIABLE)
    return Path(named).expanduser() if named else None


def _available(source: Source, root: Path | None) -> bool:
    if not isinstance(source.reader, OnDisk):
        return True
    return root is not None and any(not source.reader.missing(root / folder) for folder in source.reader.folders)


def _folder(name: str, reader: OnDisk, root: Path | None) -> Path:
    """The folder that holds the whole set, else one that holds a part (the reader then names what is missing)."""
    candidates = [] if root is None else [root / folder for folder in reader.folders]
    present = sorted((len(reader.missing(folder)), index) for index, folder in enumerate(candidates) if folder.is_dir())
    if present:
        return candidates[present[0][1]]
    raise DataError(
        f"the data set {name!r} is not there",
        where=", ".join(map(str, candidates)) or f"{ROOT_VARIABLE} is not set",
        got="no such folder" if candidates else "no place to look in",
        wanted=f"its official files in a folder {reader.folders[0]!r} of the data folder",
        fix=f"set {ROOT_VARIABLE} to the folder that contains {reader.folders[0]!r}",
    )

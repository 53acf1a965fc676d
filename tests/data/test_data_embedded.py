from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from twinproof.data.sources import BREAST_CANCER_BOUNDS, read_breast_cancer, read_digits


def test_digits_are_the_stored_integers() -> None:
    parts = read_digits()
    bunch = load_digits()
    assert parts.train.inputs.dtype == np.uint8
    assert (parts.levels, parts.train.inputs.shape) == (16, (1797, 1, 8, 8))
    np.testing.assert_array_equal(parts.train.inputs.reshape(1797, 64), bunch.data)
    np.testing.assert_array_equal(parts.train.labels, bunch.target)


def published_bounds() -> list[tuple[float, float]]:
    """Smallest and largest value of each measurement, from the text of the set's description."""
    lines = re.findall(r"\((?:mean|standard error|worst)\):\s+([\d.]+)\s+([\d.]+)", load_breast_cancer().DESCR)
    return [(float(low), float(high)) for low, high in lines]


def test_declared_bounds_cover_the_published_ones_and_are_no_copies_of_them() -> None:
    published = published_bounds()
    assert len(published) == len(BREAST_CANCER_BOUNDS) == 30
    for (low, high), (smallest, largest) in zip(BREAST_CANCER_BOUNDS.values(), published, strict=True):
        assert low <= smallest
        assert largest <= high
        assert (high - low) < 2 * (largest - smallest)
        assert len(f"{high:g}".replace(".", "").strip("0")) <= 2


def test_breast_cancer_names_and_records() -> None:
    parts = read_breast_cancer()
    bunch = load_breast_cancer()
    assert parts.feature_names == tuple(BREAST_CANCER_BOUNDS) == tuple(bunch.feature_names)
    assert parts.classes == tuple(bunch.target_names)
    low, high = np.array(list(BREAST_CANCER_BOUNDS.values())).T
    assert ((parts.train.inputs >= low) & (parts.train.inputs <= high)).all()


def test_importing_the_room_is_cheap() -> None:
    code = "import sys, twinproof.data; print([m for m in ('sklearn', 'scipy', 'PIL', 'pyarrow', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

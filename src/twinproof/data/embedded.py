"""Data sets that come with scikit-learn: there without a download, so that everything can be tried at once."""

from __future__ import annotations

import numpy as np

from twinproof.data.parts import Parts, Records
from twinproof.data.record import InputKind

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

"""The redistribution vector r of the heterogeneous mechanisms: which share of the noise each output gets."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinproof import checks
from twinproof.data.arrays import StoredArray
from twinproof.data.limits import SHARES_BYTES, check_unpacked, read_regular, reading
from twinproof.errors import ConfigError, DataError
from twinproof.guarantee import UPWARDS

LARGEST_DIMENSION = 10_000_000
# Shares that were stored as float32 add up to 1 within this. The promise does not hang on it: noise and sensitivity are taken
# from the same shares, and scaling all of them by one factor is a change of sigma.
_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Redistribution:
    """r of Phan et al. 2019, Theorem 3: output k of K gets noise of deviation sigma sqrt(K r_k).

    Guarantees
        Every share is a finite number above 0 and they add up to 1 (to 1e-6). The paper allows a share of 0, which would
        leave that output without noise: a change there is seen with certainty, whatever sigma is.
    """

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        for index, share in enumerate(self.shares):
            if not (share > 0 and math.isfinite(share)):
                raise ConfigError(
                    "a share of the redistribution vector cannot be used",
                    where=f"r, entry {index}",
                    got=share,
                    wanted="a finite number above 0: an output with share 0 has no noise and no privacy",
                    fix="give every output a small share, for example one thousandth of the mean",
                )
        total = math.fsum(self.shares)
        if not abs(total - 1) <= _SUM_TOLERANCE:
            raise ConfigError(
                "the shares of the redistribution vector do not add up to 1",
                where="r",
                got=f"{len(self.shares)} shares, sum {total:.9g}",
                wanted="sum 1",
                fix="divide by the sum",
            )

    @classmethod
    def uniform(cls, dimension: int) -> Redistribution:
        checks.whole(1, LARGEST_DIMENSION, dimension=dimension)
        return cls((1 / dimension,) * dimension)

    @classmethod
    def from_weights(cls, weights: Iterable[float]) -> Redistribution:
        """Shares in proportion to ``weights``, which must be finite and above 0."""
        values = tuple(float(weight) for weight in weights)
        total = math.fsum(values)
        return cls(tuple(value / total for value in values) if math.isfinite(total) and total > 0 else values)

    @property
    def dimension(self) -> int:
        """K, the number of outputs."""
        return len(self.shares)

    def check_dimension(self, dimension: int) -> None:
        """Refuses a vector that does not have one share for each of ``dimension`` outputs."""
        if dimension != self.dimension:
            raise ConfigError(
                "the redistribution vector has the wrong length",
                where="r",
                got=f"{self.dimension} shares",
                wanted=f"one for each of the {dimension} outputs",
            )

    def scales(self) -> NDArray[np.float64]:
        """sqrt(K r): the deviation of each output's noise for sigma 1."""
        return np.sqrt(self.dimension * np.asarray(self.shares, dtype=np.float64))

    def whitened_norm(self, change: ArrayLike) -> float:
        """||change / sqrt(K r)||_2, rounded up: how far a change of the outputs goes, measured in the noise of sigma 1."""
        values = np.asarray(change, dtype=np.float64).reshape(-1)
        self.check_dimension(values.size)
        if not np.isfinite(values).all():
            raise ConfigError(
                "a change of the outputs is not finite", where="change", got="inf or nan", wanted="finite numbers"
            )
        return math.hypot(*(values / self.scales())) * UPWARDS

    def whitened_sensitivity(self, l2_sensitivity: float) -> float:
        """The largest whitened sensitivity of a query with that plain l2 sensitivity, rounded up.

        No coordinate is divided by less than the smallest of sqrt(K r). A query that moves only that output reaches it.
        """
        checks.positive(sensitivity=l2_sensitivity)
        return l2_sensitivity / float(self.scales().min()) * UPWARDS

    def covered_l2_sensitivity(self, sensitivity: float) -> float:
        """The plain l2 sensitivity up to which every query has at most this whitened ``sensitivity``, rounded down."""
        checks.positive(sensitivity=sensitivity)
        return sensitivity * float(self.scales().min()) / UPWARDS


_BETWEEN = re.compile(r"[\s,;\[\]]+")


def parse_redistribution(text: str | Path) -> Redistribution:
    """Reads ``0.2,0.3,0.5``, or the file of that name: ``.npy``, or text with commas, spaces or lines between numbers."""
    shares = None if isinstance(text, Path) else _numbers(text)
    return Redistribution(_file_numbers(Path(text)) if shares is None else shares)


def _numbers(text: str) -> tuple[float, ...] | None:
    """The numbers of a text, or None where it is something else."""
    try:
        return tuple(float(word) for word in _BETWEEN.split(text) if word) or None
    except ValueError:
        return None


def _file_numbers(path: Path) -> tuple[float, ...]:
    try:
        content = read_regular(path, SHARES_BYTES)
        with reading(path):
            shares = _array_numbers(content, path) if path.suffix == ".npy" else _numbers(content.decode())
            if shares is None:
                raise ValueError("something other than numbers")
    except DataError as error:
        raise DataError(
            "the redistribution vector cannot be read",
            where=str(path),
            got=error.got,
            wanted="numbers with commas between them, or a file of numbers (text or .npy)",
            fix="for example --r 0.2,0.3,0.5 or --r shares.txt",
        ) from error
    return shares


def _array_numbers(content: bytes, path: Path) -> tuple[float, ...]:
    array = StoredArray(io.BytesIO(content), str(path))
    check_unpacked(array.working_bytes, len(content), path, "")
    return tuple(array.read().astype(np.float64).reshape(-1).tolist())

"""One array in NumPy's ``.npy`` form, as a file or as a member of an ``.npz`` archive."""

from __future__ import annotations

import math
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from twinproof.data.limits import HEADER_BYTES, RECORD_BYTES, read_exactly
from twinproof.errors import DataError

_AXES = 4
_LONGEST_AXIS = 2**48


class StoredArray:
    """An array that is still in its file: the header is read and checked before memory is taken for the values."""

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where = stream, where
        try:
            version = npy.read_magic(stream)
            read_header = npy.read_array_header_2_0 if version == (2, 0) else npy.read_array_header_1_0
            self._shape, self._fortran, self._dtype = read_header(stream, max_header_size=HEADER_BYTES)
        except MemoryError as error:  # Python's parser says so of nested text; a header this short cannot fill the memory
            raise self._broken("deeply nested text", "a header as NumPy writes it") from error
        if self._dtype.kind not in "biufUS" or self._dtype.itemsize == 0:
            raise self._broken(
                f"type {self._dtype}", "numbers or text; pickled objects are refused, because unpickling runs code"
            )
        if len(self._shape) > _AXES or not all(0 <= size < _LONGEST_AXIS for size in self._shape):
            raise self._broken(f"shape {self._shape}", f"up to {_AXES} axes of usual length")
        self._bytes = math.prod(self._shape) * self._dtype.itemsize

    @property
    def working_bytes(self) -> int:
        """Memory that records of this array will take: features become float64."""
        records = self._shape[0] if self._shape else 1
        widened = math.prod(self._shape) * 8 if len(self._shape) == 2 else 0
        return max(self._bytes, widened) + records * RECORD_BYTES

    def read(self) -> NDArray[Any]:
        """The values."""
        content, found = read_exactly(self._stream, self._bytes)
        if found != self._bytes:
            raise self._broken(f"{found if found < self._bytes else 'more'} bytes", f"{self._bytes} bytes, as its header says")
        return content.view(self._dtype).reshape(self._shape, order="F" if self._fortran else "C")

    def _broken(self, got: str, wanted: str) -> DataError:
        return DataError(
            "an array cannot be read", where=self._where, got=got, wanted=wanted, fix="write it with NumPy: save, or savez"
        )

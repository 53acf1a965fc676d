"""A keyed fingerprint of the training records: the owner can show later which records a model was trained on."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np

from twinproof.data.record import Split

MINIMUM_KEY_BYTES = 16
_HEADER = b"twinproof training split 1"


def fingerprint(split: Split, key_bytes: bytes) -> str:
    """HMAC-SHA256 (hexadecimal) over types, shapes, inputs and labels.

    Guarantees
        Without the key it tells nothing about the records: HMAC-SHA256 is a pseudorandom function (RFC 2104; Bellare 2006),
        so nobody can test whether a guessed data set is the one. A plain digest would allow exactly that. With the key, two
        splits with the same fingerprint are equal, in the same order and with the same shapes and types, or a collision of
        SHA-256 was found: types and shapes are hashed first and fix the length of everything that follows.
    """
    if len(key_bytes) < MINIMUM_KEY_BYTES:
        raise ValueError(f"a fingerprint key holds at least {MINIMUM_KEY_BYTES} bytes, got {len(key_bytes)}")
    digest = hmac.new(key_bytes, _HEADER, hashlib.sha256)
    arrays = [np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")) for array in (split.inputs, split.labels)]
    for array in arrays:
        sizes = (array.dtype.itemsize, array.ndim, *array.shape)
        digest.update(array.dtype.kind.encode() + b"".join(size.to_bytes(8, "little") for size in sizes))
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()

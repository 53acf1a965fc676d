"""The weights: a sound safetensors file whose numbers are all finite, and the one that every other file speaks of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.evidence import RunFolder, sha256, shown
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_ledger import FILE as LEDGER

FILE = "model.safetensors"
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_WHOLE = frozenset({"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"})


def weight_problems(content: bytes) -> Iterator[Problem]:
    """Whether the file can be loaded and holds only finite numbers."""
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(content)  # type: ignore[no-untyped-call]  # checked raw: no framework, no copy into one
    except SafetensorError as error:
        yield Problem(FILE, "the weights cannot be loaded", shown(str(error)), "a safetensors file")
        return
    if not tensors:
        yield Problem(FILE, "the file holds no weights", "0 tensors", "at least one tensor")
    for name, tensor in tensors:
        kind = str(tensor["dtype"])
        finite = _all_finite(kind, tensor["data"])
        if finite is None:
            yield Problem(FILE, f"tensor {shown(name)} has a type that is not known", shown(kind), "a float or integer type")
        elif not finite:
            yield Problem(FILE, f"tensor {shown(name)} holds numbers that are not finite", "NaN or infinity", "finite weights")


def _all_finite(kind: str, data: Any) -> bool | None:
    if kind in _WHOLE:
        return True
    if kind == "BF16":
        # The upper half of a float32: widen it, numpy has no bfloat16.
        halves: NDArray[np.uint32] = np.frombuffer(data, dtype="<u2").astype(np.uint32)
        return bool(np.isfinite((halves << np.uint32(16)).view(np.float32)).all())
    if kind in _FLOATS:
        return bool(np.isfinite(np.frombuffer(data, dtype=_FLOATS[kind])).all())
    return None


def identity_problems(folder: RunFolder, closing: dict[str, Any], settings: Mapping[str, dict[str, Any]]) -> Iterator[Problem]:
    """Whether the ledger released, and certificates and attacks (``settings`` by file) speak of, the weights that are there."""
    content = folder.content(FILE)
    if isinstance(content, Problem):
        return
    digest = sha256(content)
    for file, record in {LEDGER: closing, **settings}.items():
        if record and record.get("model_sha256") != digest:
            yield Problem(file, "model_sha256 is not the digest of the weights", shown(record.get("model_sha256")), digest)

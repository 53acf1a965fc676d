"""Weights of every type: finite passes, anything else is a problem."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save

from twinproof_verify.weights import weight_problems


def raw(dtype: str, data: bytes, shape: list[int]) -> bytes:
    """A safetensors file with one tensor, also of types that numpy lacks."""
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("value", "count"), [(1.5, 0), (np.nan, 1), (np.inf, 1), (-np.inf, 1)])
def test_floats(dtype: type[np.floating], value: float, count: int) -> None:
    found = list(weight_problems(save({"a": np.zeros(2, dtype), "b": np.array([1, value], dtype)})))
    assert len(found) == count


@pytest.mark.parametrize(("bits", "count"), [(0x3F80, 0), (0x7F7F, 0), (0x7F80, 1), (0xFF80, 1), (0x7FC0, 1)])
def test_bfloat16(bits: int, count: int) -> None:
    assert len(list(weight_problems(raw("BF16", struct.pack("<2H", 0, bits), [2])))) == count


def test_integers_and_empty_tensors_pass() -> None:
    assert not list(weight_problems(save({"a": np.arange(3), "b": np.zeros((0, 4), np.float32), "c": np.array(True)})))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "cannot be loaded"),
        (b"\xff" * 16, "cannot be loaded"),
        (raw("F32", b"\x00" * 4, [2]), "cannot be loaded"),
        (raw("F99", b"\x00" * 4, [1]), "cannot be loaded"),
        (raw("F8_E4M3", b"\x00" * 4, [4]), "not known"),
        (save({}), "no weights"),
        (save({"a": np.zeros(3, np.float32)})[:-1], "cannot be loaded"),
    ],
)
def test_broken_files(content: bytes, what: str) -> None:
    found = list(weight_problems(content))
    assert len(found) == 1
    assert what in found[0].what

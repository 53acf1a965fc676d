"""Kernels are used only where one has run; whatever is missing, the plain form goes on."""

from __future__ import annotations

import sys

import pytest
import torch

from twinproof.stream_cipher import cipher_keys, cipher_words
from twinproof.triton_kernels import kernels_run


def test_not_without_a_gpu() -> None:
    assert not kernels_run(torch.device("cpu"))


def test_not_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "twinproof.stream_cipher_kernel", None)  # importing it fails
    kernels_run.cache_clear()
    assert not kernels_run(torch.device("cuda", 0))
    kernels_run.cache_clear()


def test_the_plain_form_goes_on() -> None:
    assert cipher_words(cipher_keys([bytes(32)], torch.device("cpu")), 3).shape == (1, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_they_run_on_a_gpu_with_triton() -> None:
    pytest.importorskip("triton")
    assert kernels_run(torch.device("cuda", torch.cuda.current_device()))

"""The randomness that a device makes for itself: its law, its independence of how much is made at once, and its secrecy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from twinproof.keys import Key
from twinproof.privacy import step_randomness as module
from twinproof.privacy.step_randomness import DeviceRandomness, HostRandomness, normals_from_words, step_randomness

CPU = torch.device("cpu")
KEY = Key.from_seed(5)


def source(rate: float = 0.3, *, records: int = 200, parameters: int = 50, key: Key = KEY) -> DeviceRandomness:
    return DeviceRandomness(key, CPU, records=records, sample_rate=rate, parameters=parameters)


def test_the_device_decides_who_makes_it() -> None:
    settings = {"records": 5, "parameters": 3}
    assert isinstance(step_randomness(KEY, CPU, sample_rate=0.1, **settings), HostRandomness)
    assert isinstance(step_randomness(KEY, torch.device("meta"), sample_rate=0.1, **settings), DeviceRandomness)


@pytest.mark.parametrize("at_once", [1, 400, 1000, 1 << 24])
def test_steps_do_not_depend_on_what_is_made_with_them(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """A resumed run starts anywhere: step 7 is step 7, whether it comes first or after others."""
    alone = source().sample(7, announced=8), source().normals(7)
    monkeypatch.setattr(module, "_WORDS_AT_ONCE", at_once)
    monkeypatch.setattr(module, "_NORMALS_AT_ONCE", max(1, at_once // 8))
    together = source()
    for step in range(7):
        together.sample(step, announced=20)
        together.normals(step)
    assert torch.equal(together.sample(7, announced=20), alone[0])
    assert torch.equal(together.normals(7), alone[1])
    given = source()
    given.sample(3, announced=5)
    assert max(given._drawn) <= 4, "nothing is drawn beyond what was announced"


@pytest.mark.parametrize(
    ("words", "taken"), [((0, 0), True), ((-1, 0x7FFFFFFF), True), ((0, -(2**31)), False), ((-1, -1), False)]
)
def test_words_are_compared_without_sign(monkeypatch: pytest.MonkeyPatch, words: tuple[int, int], taken: bool) -> None:
    """At rate 1/2 a record is taken iff the highest of its 64 bits is 0."""
    given = source(0.5, records=1)
    monkeypatch.setattr(given, "_words", lambda purpose, steps, count: torch.tensor([words], dtype=torch.int32))
    assert len(given.sample(0, announced=1)) == taken


def test_normals_are_the_quantiles_of_the_words() -> None:
    """Against the same formula in whole numbers and scipy, over the middle, both signs and the far tails."""
    rows = [(0, 0, 0, 0), (1, 2, 3, 4), (-1, -1, -1, -1), (-1, -1, -1, -2), (7, 0, 0, 1), (0, 5, 0, 0), (0, 0, 9, 1)]
    random = np.random.default_rng(0).integers(-(2**31), 2**31, (1000, 4)).tolist()
    for row in [*rows, *random]:
        low, second, third, high = (word % 2**32 for word in row)
        tail = ((high >> 1 << 96) + (third << 64) + (second << 32) + low + 0.5) / 2**128
        wanted = float(ndtri(tail)) * (-1 if high & 1 else 1)
        found = float(normals_from_words(torch.tensor([row], dtype=torch.int32))[0])
        assert math.isclose(found, wanted, rel_tol=1e-12, abs_tol=1e-12), row
        assert abs(found) < 13.2


def test_purposes_steps_and_keys_have_streams_of_their_own() -> None:
    words = [
        (key, purpose, step, source(key=key)._words(purpose, range(step, step + 1), 32))
        for key in (KEY, Key.from_seed(6))
        for purpose in ("noise on the device", "sampling on the device")
        for step in (0, 1)
    ]
    assert len({tuple(found.flatten().tolist()) for *_, found in words}) == len(words)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_same() -> None:
    gpu = DeviceRandomness(KEY, torch.device("cuda"), records=60_000, sample_rate=0.01, parameters=26_010)
    cpu = DeviceRandomness(KEY, CPU, records=60_000, sample_rate=0.01, parameters=26_010)
    for step in (0, 1, 99):
        assert torch.equal(gpu.sample(step, announced=100).cpu(), cpu.sample(step, announced=100))
        torch.testing.assert_close(gpu.normals(step).cpu(), cpu.normals(step), rtol=1e-12, atol=1e-12)

"""Generators are seeded by the whole key: repeatable, different for every name, and not by 32 bits."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from twinproof.compute import devices as torch_seeding
from twinproof.compute.devices import own_generators, seed_default_generators, seed_generator
from twinproof.keys import Key

KEY, CPU = Key.from_seed(1), torch.device("cpu")


def _draws(key: Key, *name: object) -> torch.Tensor:
    generator = torch.Generator()
    generator.manual_seed(9)
    torch.randn(3, generator=generator)  # whatever it was doing before leaves no trace
    purpose, *counters = name
    seed_generator(generator, key, str(purpose), *(int(str(counter)) for counter in counters))
    return torch.randn(40_001, generator=generator)


def test_the_same_name_draws_the_same_and_another_name_does_not() -> None:
    first = _draws(KEY, "augmentation", 3, 1)
    assert torch.equal(first, _draws(KEY, "augmentation", 3, 1))
    for other in (("augmentation", 3, 2), ("augmentation", 4, 1), ("layers", 3, 1)):
        assert not torch.equal(first, _draws(KEY, *other))
    assert not torch.equal(first, _draws(Key.from_seed(2), "augmentation", 3, 1))
    assert abs(float(first.mean())) < 0.03
    assert abs(float(first.std()) - 1) < 0.02


def test_all_words_of_the_state_are_the_keys() -> None:
    """A planted ``manual_seed`` repeats itself after 2^32 seeds; its state has 32 bits of freedom."""
    low, high = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(torch.randn(100, generator=low), torch.randn(100, generator=high)), "what is guarded against"
    generator = torch.Generator()
    seed_generator(generator, KEY, "layers", 1)
    words = generator.get_state().numpy()[24 : 24 + 8 * 624].view("<u8")
    assert (words == np.frombuffer(KEY.stream("layers", 1, length=4 * 624), dtype="<u4")).all()


def test_torch_draws_from_these_words_as_a_twister_does() -> None:
    generator = torch.Generator()
    seed_generator(generator, KEY, "layers", 1)
    twister = np.random.MT19937()
    key = np.frombuffer(KEY.stream("layers", 1, length=4 * 624), dtype="<u4")
    twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
    wanted = twister.random_raw(1000).astype(np.uint64) & np.uint64(0xFFFFFF)
    drawn = torch.rand(1000, generator=generator).double().numpy() * 2**24
    assert (drawn.astype(np.uint64) == wanted).all()


def test_layers_draw_from_it_and_the_callers_numbers_come_back() -> None:
    before = torch.get_rng_state()
    with torch.random.fork_rng(devices=[]):
        seed_default_generators(CPU, KEY, "layers", 2, 0)
        first = torch.randn(10)
        seed_default_generators(CPU, KEY, "layers", 2, 0)
        assert torch.equal(first, torch.randn(10))
    assert torch.equal(before, torch.get_rng_state())


def _drawn_while_another_thread_wants_to(patience: float) -> tuple[torch.Tensor, bool]:
    """What this thread draws from its seed while another one seeds too; and whether that one got in between.

    The other one holds on to the generators until the draw is over: what it gives back cannot mend what it broke.
    """
    entered, over = threading.Event(), threading.Event()

    def other() -> None:
        with own_generators(CPU):
            seed_default_generators(CPU, Key.from_seed(2), "layers", 1)
            entered.set()
            over.wait(60)

    thread = threading.Thread(target=other)
    with own_generators(CPU):
        seed_default_generators(CPU, KEY, "layers", 1)
        thread.start()
        between = entered.wait(patience)
        drawn = torch.randn(5)
        over.set()
    thread.join(60)
    return drawn, between


def test_two_threads_do_not_draw_from_each_others_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_generators(CPU):
        seed_default_generators(CPU, KEY, "layers", 1)
        alone = torch.randn(5)
    before = torch.random.get_rng_state()
    drawn, between = _drawn_while_another_thread_wants_to(patience=0.2)
    assert not between
    assert torch.equal(drawn, alone)
    assert torch.equal(torch.random.get_rng_state(), before), "the generator is given back as it was found"
    monkeypatch.setattr(torch_seeding, "_ONE_AT_A_TIME", nullcontext())  # the planted bug: nobody waits
    drawn, between = _drawn_while_another_thread_wants_to(patience=60)
    assert between
    assert not torch.equal(drawn, alone)

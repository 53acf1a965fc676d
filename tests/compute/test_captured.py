"""Work that may be recorded is done once for each call, recorded or not."""

from __future__ import annotations

import pytest
import torch

from twinproof.compute.devices import Captured


def test_on_a_cpu_the_work_is_called() -> None:
    done: list[int] = []
    work = Captured(lambda: done.append(1), torch.device("cpu"))
    for _ in range(5):
        work()
    assert len(done) == 5
    assert not work.is_recorded


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    """What a recording must not change."""

    def test_every_call_does_the_work_once(self) -> None:
        total, amount = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")

        def add() -> None:
            total.add_(amount)

        work = Captured(add, torch.device("cuda"))
        for call in range(1, 9):
            amount.fill_(call)
            work()
        assert work.is_recorded
        assert float(total) == sum(range(1, 9))

    def test_a_generator_draws_from_its_seed(self) -> None:
        generator, out = torch.Generator("cuda"), torch.zeros(100, device="cuda")

        def draw() -> None:
            out.normal_(generator=generator)

        work = Captured(draw, torch.device("cuda"), [generator])
        for seed in (1, 2, 3, 4, 1, 5):
            generator.manual_seed(seed)
            work()
            fresh = torch.Generator("cuda").manual_seed(seed)
            assert torch.equal(out, torch.zeros_like(out).normal_(generator=fresh)), seed
        assert work.is_recorded

    def test_work_that_cannot_be_recorded_goes_on_being_called(self) -> None:
        total = torch.zeros((), device="cuda")

        def waits() -> None:
            total.add_(1)
            total.item()

        work = Captured(waits, torch.device("cuda"))
        for _ in range(6):
            work()
        assert not work.is_recorded
        assert float(total) == 6

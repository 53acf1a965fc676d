"""Memory that is used again: never by two tensors that are alive, and always once the last view of it is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from twinproof.training.per_example import gradients as scratch
from twinproof.training.per_example.gradients import Scratch

LARGE = 1 << 19  # elements of float32: two MiB
LIKE = torch.zeros(1)


def place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_is_used_again_when_the_tensor_is_gone() -> None:
    memory = Scratch()
    first = memory.empty((LARGE,), LIKE)
    where = place(first)
    del first
    assert place(memory.empty((4, LARGE // 4), LIKE)) == where
    assert place(memory.empty((LARGE // 2,), LIKE, dtype=torch.float64)) == where
    assert place(memory.empty((LARGE // 2 + 5,), LIKE)) == where


SHARES: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda tensor: tensor,
    "slice": lambda tensor: tensor[1, 5:6],
    "view": lambda tensor: tensor.view(-1, 2).T,
    "detached": lambda tensor: tensor.detach(),
    "dtype": lambda tensor: tensor.view(torch.int32),
}


@pytest.mark.parametrize("share", SHARES)
def test_memory_is_not_lent_twice_while_anything_shares_it(share: str) -> None:
    memory = Scratch()
    kept = SHARES[share](memory.empty((2, LARGE), LIKE))
    where = place(kept)
    assert place(memory.empty((2, LARGE), LIKE)) != where
    assert place(kept) == where
    del kept
    others = [memory.empty((2, LARGE), LIKE) for _ in range(2)]
    assert where in {place(other) for other in others}


class WatchingTheTensor(scratch._Slab):
    """Wrong on purpose: asks whether the tensor object is alive, not whether its memory is in use."""

    def lend(self, count: int) -> Tensor:
        tensor = torch.from_numpy(self._bytes[:count])
        self._borrower = weakref.ref(tensor)  # type: ignore[arg-type]
        return tensor


def test_planted_watch_of_the_tensor_lends_memory_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_Slab", WatchingTheTensor)
    memory = Scratch()
    kept = memory.empty((LARGE,), LIKE)[3:]
    assert place(memory.empty((LARGE,), LIKE)) == place(kept)


def test_threads_never_share_memory() -> None:
    memory = Scratch()

    def spoiled(number: int) -> int:
        tensor = memory.empty((LARGE,), LIKE).fill_(number)
        return int((tensor != number).sum())

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(spoiled, range(60))) == 0
    assert len(memory._slabs) <= 4


@pytest.mark.parametrize(
    ("shape", "dtype"), [((LARGE,), torch.float32), ((3, 1 << 20), torch.float16), ((LARGE, 2), torch.float64)]
)
def test_shape_dtype_and_alignment(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = Scratch().empty(shape, LIKE, dtype=dtype)
    assert (tuple(tensor.shape), tensor.dtype, tensor.is_contiguous()) == (shape, dtype, True)
    assert tensor.data_ptr() % 64 == 0


def test_small_tensors_are_left_to_the_allocator() -> None:
    memory = Scratch()
    assert memory.empty((3, 2), LIKE).shape == (3, 2)
    assert memory.empty((0, 5), LIKE).shape == (0, 5)
    assert not memory._slabs


def test_no_more_is_kept_than_was_in_use_and_release_gives_it_back() -> None:
    memory = Scratch()
    for factor in (1, 2, 3):
        memory.empty((factor * LARGE,), LIKE)
    assert [slab.size for slab in memory._slabs] == [3 * LARGE * 4]
    held = memory.empty((LARGE,), LIKE)
    memory.release()
    assert len(memory._slabs) == 1
    del held
    memory.release()
    assert not memory._slabs


def test_lent_bytes_are_those_of_the_slab() -> None:
    slab = scratch._Slab(64)
    slab.lend(64).copy_(torch.arange(64, dtype=torch.uint8))
    assert np.array_equal(slab._bytes, np.arange(64, dtype=np.uint8))
    assert slab.idle

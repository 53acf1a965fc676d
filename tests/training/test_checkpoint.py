"""A checkpoint is the whole state, belongs to one run, and is never half there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_problems import network

from twinproof.errors import RunError
from twinproof.training.loop import CHECKPOINT_FILE as FILE
from twinproof.training.loop import load_checkpoint, save_checkpoint


def _trained(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        _step(model, optimizer)
    return model, optimizer


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()


def _same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_training_goes_on_to_the_same_bits(tmp_path: Path, steps: int) -> None:
    model, optimizer = _trained(steps)
    save_checkpoint(tmp_path, model, optimizer, step=steps, binding="a")
    again, restored = _trained(0)
    assert load_checkpoint(tmp_path, again, restored, binding="a") == steps
    for _ in range(2):
        _step(model, optimizer)
        _step(again, restored)
    assert _same(model, again)


def test_the_comparison_sees_a_lost_momentum(tmp_path: Path) -> None:
    model, optimizer = _trained(3)
    save_checkpoint(tmp_path, model, optimizer, step=3, binding="a")
    again, restored = _trained(0)
    load_checkpoint(tmp_path, again, restored, binding="a")
    restored.state.clear()
    _step(model, optimizer)
    _step(again, restored)
    assert not _same(model, again)


def test_no_checkpoint_means_from_the_start(tmp_path: Path) -> None:
    model, optimizer = _trained(0)
    assert load_checkpoint(tmp_path, model, optimizer, binding="a") == 0
    assert _same(model, network())


def test_a_foreign_or_broken_checkpoint_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = _trained(2)
    save_checkpoint(tmp_path, model, optimizer, step=2, binding="a")
    fresh, plain = _trained(0)
    with pytest.raises(RunError, match="belongs to another run"):
        load_checkpoint(tmp_path, fresh, plain, binding="b")
    content = (tmp_path / FILE).read_bytes()
    for broken in (b"", content[:20], content[:-1]):
        (tmp_path / FILE).write_bytes(broken)
        with pytest.raises(RunError, match="cannot be read"):
            load_checkpoint(tmp_path, fresh, plain, binding="a")
    assert _same(fresh, network())
    assert not plain.state

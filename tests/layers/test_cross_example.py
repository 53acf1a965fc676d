"""Layers that mix examples are refused, all at once, with a reason and a remedy for each; eval mode for a while."""

from __future__ import annotations

import pytest
from torch import nn

from twinproof.errors import ModelError
from twinproof.layers.cross_example import OFFENCES, refuse_cross_example_layers
from twinproof.layers.module_state import evaluation_mode

OFFENDERS: list[tuple[nn.Module, str, str]] = [
    (nn.BatchNorm1d(3), "mean and variance of the whole batch", "GroupNorm"),
    (nn.BatchNorm2d(3, affine=False), "mean and variance of the whole batch", "GroupNorm"),
    (nn.BatchNorm3d(3, track_running_stats=False), "mean and variance of the whole batch", "GroupNorm"),
    (nn.SyncBatchNorm(3), "mean and variance of the whole batch", "GroupNorm"),
    (nn.LazyBatchNorm2d(), "mean and variance of the whole batch", "GroupNorm"),
    (nn.BatchNorm2d(3).eval(), "mean and variance of the whole batch", "GroupNorm"),
    (nn.InstanceNorm2d(3, track_running_stats=True), "running statistics", "track_running_stats=False"),
    (nn.Embedding(4, 3, max_norm=1.0), "max_norm rescales", "max_norm=None"),
    (nn.EmbeddingBag(4, 3, max_norm=1.0), "max_norm rescales", "max_norm=None"),
    (nn.Embedding(4, 3, scale_grad_by_freq=True), "how often the batch uses an id", "scale_grad_by_freq=False"),
    (nn.EmbeddingBag(4, 3, scale_grad_by_freq=True), "how often the batch uses an id", "scale_grad_by_freq=False"),
    (nn.LazyLinear(3), "first records it sees", "sizes given"),
    (nn.LazyConv2d(3, 2), "first records it sees", "sizes given"),
]

ALLOWED: list[nn.Module] = [
    nn.GroupNorm(1, 3),
    nn.LayerNorm(3),
    nn.InstanceNorm2d(3),
    nn.InstanceNorm2d(3, affine=True),
    nn.Embedding(4, 3, padding_idx=0),
    nn.EmbeddingBag(4, 3),
    nn.Linear(3, 3),
    nn.Dropout(),
    nn.MultiheadAttention(4, 2),
]


@pytest.mark.parametrize(("layer", "reason", "remedy"), OFFENDERS, ids=lambda value: type(value).__name__)
def test_each_kind_is_refused_with_reason_and_remedy(layer: nn.Module, reason: str, remedy: str) -> None:
    model = nn.ModuleDict({"body": nn.Sequential(nn.Flatten(), layer)})
    with pytest.raises(ModelError) as caught:
        refuse_cross_example_layers(model)
    assert caught.value.where == "body.1"
    assert f"body.1 ({type(layer).__name__})" in caught.value.got
    assert reason in caught.value.got
    assert remedy in caught.value.fix


def test_all_offenders_are_listed() -> None:
    model = nn.Sequential(*(layer for layer, _, _ in OFFENDERS))
    with pytest.raises(ModelError) as caught:
        refuse_cross_example_layers(model)
    assert caught.value.where.split(", ") == [str(index) for index in range(len(OFFENDERS))]


def test_a_layer_with_two_faults_or_the_model_itself_is_named() -> None:
    with pytest.raises(ModelError, match=r"max_norm rescales[\s\S]*scale_grad_by_freq divides"):
        refuse_cross_example_layers(nn.Embedding(4, 3, max_norm=1.0, scale_grad_by_freq=True))
    with pytest.raises(ModelError, match="the model itself"):
        refuse_cross_example_layers(nn.BatchNorm1d(3))


@pytest.mark.parametrize("layer", ALLOWED, ids=lambda layer: type(layer).__name__)
def test_layers_that_treat_records_alone_pass(layer: nn.Module) -> None:
    refuse_cross_example_layers(nn.Sequential(layer))


def test_every_kind_in_the_table_has_an_offender() -> None:
    for offence in OFFENCES:
        assert any(offence.applies(layer) for layer, _, _ in OFFENDERS), offence.reason
        assert not any(offence.applies(layer) for layer in ALLOWED), offence.reason


def test_every_module_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)), nn.Dropout()).train()
    model[1].eval()
    before = [module.training for module in model.modules()]
    for mode in (before, [False] * len(before), [True] * len(before)):
        for module, training in zip(model.modules(), mode, strict=True):
            module.training = training
        with evaluation_mode(model):
            with evaluation_mode(model):
                pass
            assert not any(module.training for module in model.modules())
        with pytest.raises(RuntimeError, match="inside"), evaluation_mode(model):
            raise RuntimeError("inside")
        assert [module.training for module in model.modules()] == mode

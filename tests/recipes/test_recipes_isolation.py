"""One record's gradient is nobody else's business: for every recipe, all other records may change and not one bit of it does.

The published programs cut the rows of a batch into blocks as if copies lay one after the other, while they lie record by
record; each of these bugs is planted here and caught by the same check.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from recipe_fixtures import on_one_thread as on_one_thread
from torch import Tensor, nn
from torch.func import vmap

from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset
from twinproof.recipes.config import ResolvedConfig, parse_train_config
from twinproof.recipes.dpcert import consistency, stability
from twinproof.recipes.network import Own, per_example_path, run_network
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import resolve
from twinproof.training.copies import AdversarialCopies
from twinproof.training.interval import GrowingIntervals, IntervalView, interval_loss
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.per_example.fast import FastPath
from twinproof.training.per_example.paths import PerExamplePath
from twinproof.training.stobatch import ATTACKS, AdversarialEnsemble

RECORDS, WATCHED = 7, 2
OF_COPIES = ("dpcert-smoothadv", "dpcert-stability", "dpcert-consistency", "dpcert-macer")
Gradient = dict[str, Tensor]


@cache
def _digits() -> Dataset:
    return load(DataConfig(source="digits"))


def _settings(recipe: str, path: str, **changes: object) -> ResolvedConfig:
    data = {"data": {"source": "digits"}, "recipe": recipe, "steps": 5, "delta": 1e-5}
    noise = {"noise_multiplier": 5.0} if RECIPES[recipe].private else {}
    return resolve(parse_train_config(data | noise | {"performance": {"device": "cpu", "path": path}} | changes), _digits())


def _network(config: ResolvedConfig) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        return run_network(config, Own(), _digits()).train()


def _records(changed: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """The first records of the training set, those at ``changed`` replaced by others of other classes."""
    rows = np.arange(RECORDS)
    rows[list(changed)] += 100
    split = _digits().train
    inputs = torch.from_numpy(split.inputs[rows].astype(np.float32)) / _digits().levels
    labels = torch.from_numpy(split.labels[rows].copy())
    labels[list(changed)] = (labels[list(changed)] + 3) % 10
    return inputs, labels


def gradient_of_one(config: ResolvedConfig, path: PerExamplePath, changed: tuple[int, ...]) -> Gradient:
    """The watched record's gradient in a pass with the noise of the same seed, as the loop computes it."""
    inputs, labels = _records(changed)
    copies = RECIPES[config.recipe].augmentation(config)(inputs, torch.Generator().manual_seed(4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)  # for layers that draw
        found = path.gradients(copies, labels).by_name
    return {name: gradient.instantiate()[WATCHED].clone() for name, gradient in found.items()}


def same(one: Gradient, other: Gradient) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def is_isolated(config: ResolvedConfig, path: PerExamplePath) -> bool:
    others = tuple(row for row in range(RECORDS) if row != WATCHED)
    alone = gradient_of_one(config, path, ())
    return all(same(alone, gradient_of_one(config, path, changed)) for changed in (others, others[-1:], others[:1]))


@pytest.mark.parametrize("path", ["auto", "vmap"])
@pytest.mark.parametrize("recipe", list(RECIPES))
def test_all_other_records_may_change(recipe: str, path: str) -> None:
    config = _settings(recipe, path)
    taken = per_example_path(config, _network(config), _digits())
    assert is_isolated(config, taken)
    moved = gradient_of_one(config, taken, (WATCHED,))
    assert not same(gradient_of_one(config, taken, ()), moved), "the record's own change shows"


CONSISTENT = {"regulariser": {"weight": 0.5, "eta": 0.5}}


@pytest.mark.parametrize("path", ["auto", "vmap"])
@pytest.mark.parametrize("originals", [True, False])
def test_moved_copies_are_compared_with_those_of_the_same_record(path: str, originals: bool) -> None:
    config = _settings("dpcert-smoothadv", path, originals=originals, **CONSISTENT)
    taken = per_example_path(config, _network(config), _digits())
    assert isinstance(taken, AdversarialCopies)
    assert is_isolated(config, taken)
    alone = _settings("dpcert-smoothadv", path, originals=originals)
    without = gradient_of_one(alone, per_example_path(alone, _network(alone), _digits()), ())
    assert not same(gradient_of_one(config, taken, ()), without), "the term is there"


@pytest.mark.parametrize("recipe", OF_COPIES)
def test_copies_take_the_fast_path(recipe: str) -> None:
    config = _settings(recipe, "auto")
    taken = per_example_path(config, _network(config), _digits())
    inner = taken.inner if isinstance(taken, AdversarialCopies) else taken
    assert isinstance(inner, FastPath)
    assert isinstance(taken, AdversarialCopies) == (recipe == "dpcert-smoothadv")


def test_without_originals_records_stay_apart_too() -> None:
    for recipe in ("dpcert-gaussian", "dpcert-smoothadv", "dpcert-consistency", "dpcert-macer"):
        config = _settings(recipe, "auto", originals=False)
        taken = per_example_path(config, _network(config), _digits())
        assert is_isolated(config, taken)
        inputs, labels = _records()
        copies = RECIPES[recipe].augmentation(config)(inputs, torch.Generator().manual_seed(4))
        seen = taken.moved(copies, labels) if isinstance(taken, AdversarialCopies) else copies
        assert seen.shape[1] == config.copies
        assert not any(torch.equal(seen[:, copy], inputs) for copy in range(config.copies))


def _blocks(logits: Tensor) -> Tensor:
    """Rows cut into as many contiguous blocks as there are copies, and the i-th of each block taken for one record's."""
    records, copies = logits.shape[:2]
    return logits.flatten(0, 1).view(copies, records, -1).transpose(0, 1)


class CutAcrossRecords(FastPath):
    """Planted: the authors' stability and consistency terms, whose rows belong to different records."""

    term: Callable[[Tensor], Tensor]

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        right: Tensor = vmap(mean_cross_entropy)(logits, labels)
        mixed: Tensor = vmap(self.term)(_blocks(logits))
        return right + mixed


class MovedByAnother(AdversarialCopies):
    """Planted: the authors' rows of SmoothAdv: what was found for one record is added to copies of others."""

    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        movements = (super().moved(inputs, labels) - inputs)[:, 1]
        rows = inputs.flatten(0, 1).clone()
        rows[len(inputs) :] += movements.repeat(inputs.shape[1] - 1, *(1 for _ in inputs.shape[2:]))
        return rows.view_as(inputs)


TERMS: dict[str, Callable[[Tensor], Tensor]] = {
    "dpcert-stability": stability,
    "dpcert-consistency": lambda logits: consistency(logits[1:], 0.5, 0.5),
}


@pytest.mark.parametrize("recipe", list(TERMS))
def test_planted_blocks_across_records_are_caught(recipe: str) -> None:
    config = _settings(recipe, "auto")
    planted = CutAcrossRecords(_network(config), mean_cross_entropy)
    planted.term = TERMS[recipe]
    assert not is_isolated(config, planted)


def test_planted_movement_of_another_record_is_caught() -> None:
    config = _settings("dpcert-smoothadv", "auto")
    honest = per_example_path(config, _network(config), _digits())
    assert isinstance(honest, AdversarialCopies)
    assert not is_isolated(config, MovedByAnother(honest.model, honest.inner, honest.ascent))


def test_planted_blocks_across_moved_records_are_caught() -> None:
    config = _settings("dpcert-smoothadv", "auto", **CONSISTENT)
    honest = per_example_path(config, _network(config), _digits())
    assert isinstance(honest, AdversarialCopies)
    planted = CutAcrossRecords(honest.model, mean_cross_entropy)
    planted.term = TERMS["dpcert-consistency"]
    assert not is_isolated(config, AdversarialCopies(honest.model, planted, honest.ascent))


class CutIntoBlocks(AdversarialEnsemble):
    """Planted: the batch of attacked rows, attack after attack, cut as if the attacks of one record lay together."""

    def moved(self, inputs: Tensor, labels: Tensor) -> Tensor:
        crafted = super().moved(inputs, labels)[:, -len(ATTACKS) :]
        blocks = crafted.transpose(0, 1).reshape(crafted.shape)
        return torch.cat([inputs[:, : -len(ATTACKS)], blocks], dim=1)


def test_planted_blocks_across_attacked_records_are_caught() -> None:
    config = _settings("stobatch", "auto", model="mlp")
    honest = per_example_path(config, _network(config), _digits())
    assert isinstance(honest, AdversarialEnsemble)
    assert is_isolated(config, honest)
    assert not is_isolated(config, CutIntoBlocks(honest.model, honest.inner, honest.ensemble))


class SharedRadius(IntervalView):
    """Planted: the widest box of the batch for every record, as a bound that holds for all of them at once."""

    def before_last(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        clean, centre, radius = super().before_last(rows)
        return clean, centre, radius.amax(0, keepdim=True).expand_as(radius)


@pytest.mark.parametrize("model", ["relu-mlp", "interval-cnn"])
def test_a_planted_radius_that_the_batch_shares_is_caught(model: str) -> None:
    config = _settings("interval", "auto", model=model)
    network = _network(config)
    honest = per_example_path(config, network, _digits())
    assert isinstance(honest, GrowingIntervals)
    assert isinstance(honest.inner, FastPath)
    assert is_isolated(config, honest)
    assert not is_isolated(config, FastPath(SharedRadius(network), interval_loss))


@pytest.mark.parametrize("records", [128, 512, 682])
def test_the_authors_blocks_hold_no_pair_of_one_record(records: int) -> None:
    """With two noisy copies not one of the pairs that the published terms compare belongs together."""
    owner = torch.arange(records)[:, None].expand(records, 3)
    blocks = _blocks(owner[:, :, None])[:, :, 0]
    assert not bool((blocks[:, :1] == blocks[:, 1:]).any())

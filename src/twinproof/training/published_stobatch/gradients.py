"""The steps of Algorithms 1 and 4 as printed: one draw of every noise for the whole training, fixed batches, no clipping.

Why no epsilon is promised for them: ``REFUTATION``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from twinproof.compute.ranks import ALONE, Ranks
from twinproof.compute.seeds import seed_generator
from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.fixed_draws import PSI, fixed_draws_of
from twinproof.layers.noise import laplace_from_uniform, silenced
from twinproof.layers.noise_constraint import linear_part
from twinproof.layers.noise_placement import FirstLayer
from twinproof.training.distributed import summed_by_name
from twinproof.training.loop import GradientSource, StepDiagnostics
from twinproof.training.passes import DeviceRecords
from twinproof.training.published_stobatch.attacked_batch import PrintedAttacks, rows_of
from twinproof.training.published_stobatch.paper_noise import paper_output_noise
from twinproof.training.published_stobatch.trainers import ONE_TRAINER, LocalTrainers, Part, Turn
from twinproof.training.stobatch import Ensemble, taylor_cross_entropy

REFUTATION = (
    "one draw of noise is added to every record, so that differences of records have none; labels are read again at each step "
    "under one draw that all classes share; and in Algorithm 1 a record enters two batches. Without attacks "
    "neighbours are told apart with certainty from one update of the first layer: less the true records' part it has rank 2"
)


@dataclass(frozen=True)
class PrintedTraining:
    """What the steps need beside records and network; ``xi`` is the weight of the adversarial batch.

    One trainer is Algorithm 1, several are Algorithm 4.
    """

    batch: int
    xi: float
    ensemble: Ensemble
    trainers: LocalTrainers = ONE_TRAINER


class PublishedStoBatch(GradientSource):
    """Gradients of Algorithm 1, line 12: the first layer's weights descend the reconstruction, the rest the classification.

    Both objectives are means over the batch. Of the reconstruction it takes the gradient that the paper writes, mean of
    h (1/2 - x) for inputs in [-1, 1], which holds h fixed. Batches are parts of one permutation; step t takes batch t mod B and
    attacks the next. Fresh noise is silenced: what the network sees is the fixed draw.

    With several trainers the gradient is the mean of theirs (Algorithm 4, line 16). Ranks are their workers: each makes parts
    of the picked trainers' batches, and what they send is added up.

    Guarantees
        None about privacy. Everything random follows from the key and the step, so that a resumed training is the same, and
        so is one by any number of ranks up to float rounding.
    """

    def __init__(
        self, training: PrintedTraining, records: DeviceRecords, model: nn.Module, key: Key, ranks: Ranks = ALONE
    ) -> None:
        self._training, self._records, self._model, self._key, self._ranks = training, records, model, key, ranks
        self._two, self._draws = fixed_draws_of(model)
        self._layer, self._last = ends_of(model)
        device = self._last.weight.device
        for name, place, noise in (
            ("input", self._draws.on_input, self._two.input_noise),
            ("layer", self._draws.on_layer, self._two.hidden.noise),
        ):
            place.copy_(PSI * noise.deviation * self._laplace(f"printed: {name}", tuple(place.shape)).to(device))
        scale = paper_output_noise(training.batch, self._last.in_features)
        self._on_output = scale * self._laplace("printed: output", (self._last.in_features,)).to(device)
        training.trainers.refuse(len(records), training.batch)
        self._batches = fixed_batches(len(records), training.batch, key).to(device)
        self._attacks = PrintedAttacks(training.ensemble.steps)
        self._workers = training.trainers.workers(ranks.world, training.batch)

    def gradient(self, step: int) -> dict[str, Tensor]:
        """See :class:`GradientSource`."""
        trainers = self._training.trainers
        turns = trainers.turns(self._batches, step, self._key)
        pieces = [(turn, Part(number, self._workers)) for turn in turns for number in range(self._workers)]
        parameters = {name: value for name, value in self._model.named_parameters() if value.requires_grad}
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}
        with silenced(self._model):
            for number, (turn, part) in enumerate(pieces):
                if self._ranks.share.has(number):
                    for name, value in self._sent(turn, part, step, parameters).items():
                        sums[name] += value
        counts = torch.zeros(2, dtype=torch.int64, device=self._records.device)
        self.last = StepDiagnostics(step, 2 * self._training.batch * len(turns), counts)
        summed = summed_by_name(sums, self._ranks)
        return {name: (summed[name] / len(turns)).to(value.dtype) for name, value in parameters.items()}

    def _sent(self, turn: Turn, part: Part, step: int, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What one worker of a trainer sends: its part of the gradients of the trainer's means."""
        generator = torch.Generator(self._records.device)
        seed_generator(generator, turn.key, "printed: attacks", step)
        size = self._training.ensemble.size_at(step, turn.key)
        attacked = self._attacks(self._model, self._records.inputs(turn.attacked), size, generator, part)
        labels, own = self._records.labels, part.of(turn.benign)
        inputs = self._records.inputs(own)
        benign = self._classification(inputs, labels[own])
        adversarial = self._classification(attacked, labels[rows_of(turn.attacked, part)])
        # Of a mean over the batch; both are 1 where the worker is alone, and then change no bit.
        of_benign, of_attacked = len(inputs) / len(turn.benign), len(attacked) / len(turn.attacked)
        xi, noise = self._training.xi, (self._on_output * self._last.weight).sum()
        loss = (of_benign * benign + xi * of_attacked * adversarial) / (1 + xi) - noise / part.workers
        slopes = torch.autograd.grad(loss, list(parameters.values()))
        found = dict(zip(parameters, slopes, strict=True))
        name = next(name for name, value in parameters.items() if value is self._layer.weight)
        rows = len(turn.benign) + len(turn.attacked)
        found[name] = self._reconstruction(torch.cat([inputs, attacked]), rows)
        return found

    def _classification(self, inputs: Tensor, labels: Tensor) -> Tensor:
        losses: Tensor = vmap(taylor_cross_entropy)(self._model(inputs).unsqueeze(1), labels)
        return losses.mean()

    def _reconstruction(self, inputs: Tensor, total: int) -> Tensor:
        """The gradient of the first-order reconstruction in the first layer's weights, its outputs held fixed.

        The sum over ``inputs``, divided by ``total``: the rows of all workers of the trainer.
        """
        rows, moved = inputs, inputs + self._draws.on_input
        if self._two.hidden.flattens:
            rows, moved = rows.flatten(1), moved.flatten(1)
        with torch.no_grad():
            code = self._draws(self._layer(rows))
        shifted = 0.5 - (2 * moved - 1)
        value = (linear_part(self._layer, self._layer.weight, shifted) * code).sum() / total
        return torch.autograd.grad(value, self._layer.weight)[0]

    def _laplace(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator()
        seed_generator(generator, self._key, purpose)
        return laplace_from_uniform(torch.rand(shape, generator=generator))


def refuse_one_batch(records: int, batch: int) -> None:
    """Refuses batches of which there are no two: one is trained on as it is, the next is attacked."""
    if records < 2 * batch:
        raise ConfigError(
            "there are no two batches",
            where="batch_size",
            got=f"{batch}, of {records} records",
            wanted=f"at most {records // 2}: one batch is trained on as it is, the next is attacked",
        )


def fixed_batches(records: int, batch: int, key: Key) -> Tensor:
    """(batches, batch): disjoint parts of one permutation of the records; the rest, less than a batch, is never seen."""
    refuse_one_batch(records, batch)
    generator = torch.Generator()
    seed_generator(generator, key, "printed: batches")
    return torch.randperm(records, generator=generator)[: records // batch * batch].view(-1, batch)


def ends_of(model: nn.Module) -> tuple[FirstLayer, nn.Linear]:
    """The first layer and the last of a network that the paper's steps can train; another one is refused."""
    two, _ = fixed_draws_of(model)
    first, last = two.hidden.before, list(model.children())[-1]
    if first is None or type(last) is not nn.Linear:
        raise ModelError(
            "the functional mechanism needs a linear layer at the end",
            where="network",
            got=str(last),
            wanted="a Sequential that ends in Linear",
            fix="choose another model, or the sound variant",
        )
    return first, last

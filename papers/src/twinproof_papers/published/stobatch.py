"""StoBatch as its paper prints it (Phan et al., ICML 2020, Algorithms 1 and 4): to compare with, never a promise.

One draw of every noise for the whole training, fixed batches, no clipping. Why no epsilon is promised: ``REFUTATION``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from twinproof.compute.devices import seed_generator
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.errors import ConfigError, ModelError
from twinproof.keys import Key
from twinproof.layers.fixed_draws import PSI, fixed_draws_of, with_fixed_draws
from twinproof.layers.noise import Law, laplace_from_uniform, silenced
from twinproof.layers.noise_constraint import linear_part
from twinproof.layers.noise_placement import FirstLayer, with_two_noises
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.recipe import reading
from twinproof.recipes.stobatch import ensemble_of
from twinproof.training.passes import DeviceRecords
from twinproof.training.sources import GradientSource, PlainGradients, StepDiagnostics, summed_by_name
from twinproof.training.stobatch import ATTACKS, Ensemble, taylor_cross_entropy
from twinproof_papers.published.formulas import paper_delta_l2, paper_delta_r

_PAIR = 2


@dataclass(frozen=True)
class Turn:
    """What a trainer does in one step: the records it takes as they are, those it attacks, and the key of its own draws."""

    benign: Tensor
    attacked: Tensor
    key: Key


@dataclass(frozen=True)
class Part:
    """The rows of one of ``workers`` workers, among which a trainer's batches are cut into parts of nearly the same size."""

    number: int = 0
    workers: int = 1

    def of(self, rows: Tensor) -> Tensor:
        return torch.tensor_split(rows, self.workers)[self.number]


WHOLE_BATCH = Part()


@dataclass(frozen=True)
class LocalTrainers:
    """``count`` trainers that share out the fixed batches, of which every step picks ``per_step``.

    A trainer of two batches takes the first as it is and attacks the second, as Algorithm 4 prints it (where there are
    N/(2m) trainers). One that has more goes from batch to batch as Algorithm 1 does, and so does the only one there is.

    One trainer alone is Algorithm 1, bit for bit. Who is picked, and what a trainer draws, follows from the key and the
    step: all ranks know it, and so does a resumed training.
    """

    count: int = 1
    per_step: int = 1

    def refuse(self, records: int, batch: int) -> None:
        """Refuses trainers of whom one would not have two batches, and steps that want more of them than there are."""
        batches = records // batch
        if self.count * _PAIR > batches and self.count > 1:
            raise ConfigError(
                "there are more trainers than pairs of batches",
                where="trainers.count",
                got=f"{self.count}, with {batches} batches of {batch} records",
                wanted=f"at most {max(1, batches // _PAIR)}: each takes one batch as it is and attacks another",
                fix="set a smaller batch_size, or fewer trainers",
            )
        if self.per_step > self.count:
            raise ConfigError(
                "a step picks more trainers than there are",
                where="trainers.per_step",
                got=self.per_step,
                wanted=f"at most {self.count}, the number of trainers",
            )

    def turns(self, batches: Tensor, step: int, key: Key) -> list[Turn]:
        """Those of the trainers that step ``step`` picks, in their order; ``batches`` (B, m) are all there are."""
        held = len(batches) // self.count
        walks = self.count == 1 or held > _PAIR
        places = (step % held, (step + 1) % held) if walks else (0, 1)
        found = []
        for trainer in self._picked(step, key):
            first, second = (batches[trainer * held + place] for place in places)
            found.append(Turn(first, second, _key_of(trainer, key)))
        return found

    def workers(self, world: int, batch: int) -> int:
        """Workers of each trainer, so that ``world`` ranks get equally many parts; none is left without a row of a third."""
        return min(world // math.gcd(world, self.per_step), max(1, batch // 3))

    def _picked(self, step: int, key: Key) -> list[int]:
        if self.per_step == self.count:
            return list(range(self.count))
        generator = torch.Generator()
        seed_generator(generator, key, "printed: trainers", step)
        return sorted(torch.randperm(self.count, generator=generator)[: self.per_step].tolist())


ONE_TRAINER = LocalTrainers()
"""Algorithm 1."""


def _key_of(trainer: int, key: Key) -> Key:
    """The first trainer's is the run's own, so that it does what Algorithm 1 does."""
    return key if trainer == 0 else key.within(f"printed: trainer {trainer}")


@dataclass(frozen=True)
class PrintedAttacks:
    """Attacks as in Eq. 8: ``steps`` steps of size / steps, away from the class that is predicted at each of them.

    Points are not brought back into the range of the inputs: with the fixed draw they lie outside it anyway.
    """

    steps: int

    def __call__(
        self, model: nn.Module, inputs: Tensor, size: float, generator: torch.Generator, part: Part = WHOLE_BATCH
    ) -> Tensor:
        """(m, *shape) -> attacked inputs of one worker's ``part``, in the order of ``rows_of``; third l by attack l.

        Starts are drawn for the whole batch: the points of a record are the same whichever worker makes them.
        """
        mine, starts, decays = [], [], []
        for attack, rows in zip(ATTACKS, torch.tensor_split(inputs, len(ATTACKS)), strict=True):
            begun = rows
            if attack.random_start:
                drawn = torch.rand(rows.shape, generator=generator, device=rows.device, dtype=rows.dtype)
                begun = rows + size * (2 * drawn - 1)
            own = part.of(rows)
            mine.append(own)
            starts.append(part.of(begun))
            decays.append(torch.full((len(own), *(1 for _ in rows.shape[1:])), attack.decay, device=rows.device))
        return self._attacked(model, torch.cat(mine), torch.cat(starts), size, torch.cat(decays))

    def _attacked(self, model: nn.Module, inputs: Tensor, starts: Tensor, size: float, decays: Tensor) -> Tensor:
        """All attacks walk together, which the network allows because it does not mix rows: a third of the passes."""
        points, gathered = starts, torch.zeros_like(inputs)
        for _ in range(self.steps):
            slope = _slope(model, points)
            lengths = slope.abs().flatten(1).sum(dim=1).clamp_min(torch.finfo(slope.dtype).tiny)
            gathered = decays * gathered + slope / lengths.view(decays.shape)
            points = points + (size / self.steps) * gathered.sign()
            points = torch.minimum(torch.maximum(points, inputs - size), inputs + size)
        return points


def rows_of(batch: Tensor, part: Part) -> Tensor:
    """One worker's rows of an attacked batch: its part of each attack's third."""
    return torch.cat([part.of(rows) for rows in torch.tensor_split(batch, len(ATTACKS))])


def _slope(model: nn.Module, points: Tensor) -> Tensor:
    leaf = points.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(leaf)
        loss = cross_entropy(logits, logits.detach().argmax(dim=1), reduction="sum")
    return torch.autograd.grad(loss, leaf)[0]


OUTPUT_EPSILON = 0.1
"""epsilon_2, the output layer's part of the claim, on MNIST."""

# The paper's inputs lie in [-1, 1]: twice as wide as ours, and so are the first layer's outputs at the same weights.
_WIDTH = 2.0


@dataclass(frozen=True)
class PaperNoise:
    """Scales of Laplace noise in the units of the house (inputs in [0, 1]), for one training with batches of m records.

    ``on_input`` is Delta_R / (m epsilon_1) over 2, ``on_layer`` twice that.
    """

    on_input: float
    on_layer: float


def paper_noise(epsilon: float | None, batch: int, layer: FirstLayer, outputs: tuple[int, ...]) -> PaperNoise:
    """Noise for the claim ``epsilon``; ``outputs`` is the shape behind ``layer``, which has its initial weights.

    epsilon_1 = (epsilon - epsilon_2) / (1 + 1/gamma + 1/gamma_x), with gamma_x = Delta_R / m and gamma = 2 Delta_R / (m n), n
    being the largest sum of magnitudes that enters one unit. With a convolution Delta_R counts one patch and one map.
    """
    if epsilon is None or not OUTPUT_EPSILON < epsilon < math.inf:
        raise ConfigError(
            "the published variant cannot claim this epsilon",
            where="epsilon",
            got=epsilon,
            wanted=f"above {OUTPUT_EPSILON}, which the output layer takes of it",
        )
    entering = layer.weight.detach().abs().flatten(1).sum(dim=1)
    hidden = outputs[0] if isinstance(layer, nn.Linear) else math.prod(outputs[1:])
    delta_r = paper_delta_r(layer.weight[0].numel(), hidden)
    gamma_x, gamma = delta_r / batch, 2 * delta_r / (batch * max(float(entering.max()), 1e-12))
    first = (epsilon - OUTPUT_EPSILON) / (1 + 1 / gamma + 1 / gamma_x)
    scale = delta_r / (batch * first) / _WIDTH
    return PaperNoise(scale, 2 * scale)


def paper_output_noise(batch: int, features: int) -> float:
    """The scale Delta_L2 / (m epsilon_2) of what coefficients of labels get, for ``features`` units before the last layer."""
    return paper_delta_l2(features) / (batch * OUTPUT_EPSILON)


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


class TrainersConfig(BaseModel):
    """Local trainers of Algorithm 4: how many there are, and how many of them a step picks at random."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(ge=1, description="trainers that share out the fixed batches; the paper's are records / (2 batch_size)")
    per_step: int = Field(ge=1, description="of them, picked at random for each step")


def published_source(settings: ResolvedConfig, source: PlainGradients, model: nn.Module, key: Key) -> GradientSource:
    """The paper's steps on the records of ``source``, by as many ranks as it has."""
    ensemble, xi = ensemble_of(settings.regulariser), reading(settings.regulariser, "xi")
    training = PrintedTraining(settings.batch_size, xi, ensemble, trainers_of(settings))
    return PublishedStoBatch(training, source.records, model, key, source.ranks)


def trainers_of(settings: ResolvedConfig) -> LocalTrainers:
    """The local trainers that the settings describe: one, which is Algorithm 1, where they say nothing."""
    given: TrainersConfig | None = getattr(settings, "trainers", None)
    return ONE_TRAINER if given is None else LocalTrainers(given.count, given.per_step)


def published_network(network: nn.Module, shape: tuple[int, ...]) -> nn.Sequential:
    """``network`` with fresh noise at both places, and its fixed draws behind them."""
    return with_fixed_draws(with_two_noises(network, shape, 1.0, 1.0, Law.LAPLACE), shape)


def prepare(network: nn.Module, settings: ResolvedConfig) -> None:
    """``size_noise`` for the claim in ``settings``, whose batches and trainers are checked first."""
    refuse_one_batch(settings.records, settings.batch_size)
    trainers_of(settings).refuse(settings.records, settings.batch_size)
    size_noise(network, settings.epsilon, settings.batch_size)


def size_noise(network: nn.Module, epsilon: float | None, batch: int) -> None:
    """Gives the noise of ``published_network`` the paper's scales for the claim ``epsilon``, over psi."""
    two, _ = fixed_draws_of(network)
    if two.hidden.before is None:
        raise ModelError("the network has no first layer", where="network", got=str(network), wanted="a first layer")
    noise = paper_noise(epsilon, batch, two.hidden.before, two.hidden.noise.shape)
    two.input_noise.set_deviation(noise.on_input / PSI)
    two.hidden.noise.set_deviation(noise.on_layer / PSI)

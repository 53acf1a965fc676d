"""StoBatch's own training, from the settings of a run: Algorithms 1 and 4 as printed, whose privacy is refuted."""

from __future__ import annotations

from torch import nn

from twinproof.errors import ModelError
from twinproof.keys import Key
from twinproof.layers.fixed_draws import PSI, with_fixed_draws
from twinproof.layers.noise import Law
from twinproof.layers.noise_placement import split_at_two_noises, with_two_noises
from twinproof.recipes.recipe import PrintedSettings, RegulariserConfig, reading
from twinproof.training.loop import GradientSource, PlainGradients
from twinproof.training.published_stobatch.gradients import PrintedTraining, PublishedStoBatch, refuse_one_batch
from twinproof.training.published_stobatch.paper_noise import paper_noise
from twinproof.training.published_stobatch.trainers import ONE_TRAINER, LocalTrainers
from twinproof.training.stobatch import Ensemble


def ensemble_of(regulariser: RegulariserConfig | None) -> Ensemble:
    """The attacks that the settings describe."""
    return Ensemble(
        reading(regulariser, "attack_size"), int(reading(regulariser, "attack_steps")), reading(regulariser, "attack_stride")
    )


def printed_source(settings: PrintedSettings, source: PlainGradients, model: nn.Module, key: Key) -> GradientSource:
    """The paper's steps on the records of ``source``, by as many ranks as it has."""
    ensemble, xi = ensemble_of(settings.regulariser), reading(settings.regulariser, "xi")
    training = PrintedTraining(settings.batch_size, xi, ensemble, trainers_of(settings))
    return PublishedStoBatch(training, source.records, model, key, source.ranks)


def trainers_of(settings: PrintedSettings) -> LocalTrainers:
    """The local trainers that the settings describe: one, which is Algorithm 1, where they say nothing."""
    return ONE_TRAINER if settings.trainers is None else settings.trainers.trainers


def printed_network(network: nn.Module, shape: tuple[int, ...], settings: PrintedSettings) -> nn.Sequential:
    """``network`` with the noise of the paper for the claim in ``settings``: fresh draws at 1/psi of it, and fixed ones."""
    refuse_one_batch(settings.records, settings.batch_size)
    trainers_of(settings).refuse(settings.records, settings.batch_size)
    noisy = with_two_noises(network, shape, 1.0, 1.0, Law.LAPLACE)
    two = split_at_two_noises(noisy)
    if two is None or two.hidden.before is None:
        raise ModelError("the network has no first layer", where="network", got=str(network), wanted="add_two_noises")
    noise = paper_noise(settings.epsilon, settings.batch_size, two.hidden.before, two.hidden.noise.shape)
    two.input_noise.set_deviation(noise.on_input / PSI)
    two.hidden.noise.set_deviation(noise.on_layer / PSI)
    return with_fixed_draws(noisy, shape)

"""Where the printed accuracy of StoBatch comes from: batch norm takes the noise away that all records of a batch share.

    TWINPROOF_DATA=... python benchmarks/stobatch_batch_norm.py --out results/stobatch-batch-norm.json

The paper draws its noise once and adds it to every record. Its authors' program has batch norm right behind the noise, with the
statistics of the batch at hand, in training and in tests, and draws fresh noise once for a batch: what all rows have in common
is taken away again. That program was read, not run. Here Algorithm 1 trains two networks for each claimed epsilon, ours
(``group``: norms of single records) and the same with such batch norm (``batch``), and each answers test images in three ways:

- ``without fresh noise``: with the draws that are kept from training alone;
- ``one draw for all``: with fresh noise (Appendix N's psi), the same for all images of the batch, as the program does;
- ``a draw for each``: with fresh noise for every image, which is what a certificate is about.

A short training (fewer epochs and attack steps, a larger rate than the paper's), so that a CPU does it: the claim is about the
differences. Nothing here is private: the privacy of Algorithm 1 is refuted (docs/recipes.md).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twinproof.compute.devices import describe_device, resolve_device, seed_generator
from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset
from twinproof.files import write_json
from twinproof.keys import Key
from twinproof.layers.fixed_draws import FixedDrawsConstraint, fixed_draws_of
from twinproof.layers.networks import build_network
from twinproof.layers.noise import laplace_from_uniform, silenced
from twinproof.runs.layout import software_versions, utc_now
from twinproof.training.passes import DeviceRecords
from twinproof.training.stobatch import Ensemble
from twinproof_papers.published.stobatch import PrintedTraining, PublishedStoBatch, published_network, size_noise

NETWORK, XI, ATTACK_SIZE = "stobatch-cnn", 1.0, 0.5
NORMS = ("group", "batch")


@dataclass(frozen=True)
class Effort:
    """How long a network is trained, and on how many test images it answers."""

    steps: int
    attack_steps: int
    batch: int
    learning_rate: float
    images: int


def with_batch_norm(network: nn.Sequential) -> nn.Sequential:
    """``network`` with norms over the batch at hand, kept by nobody, where it has norms of single records."""
    made: list[nn.Module] = []
    for module in network:
        if isinstance(module, nn.GroupNorm):
            made.append(nn.BatchNorm2d(module.num_channels, track_running_stats=False))
        elif isinstance(module, nn.LayerNorm):
            made.append(nn.BatchNorm1d(module.normalized_shape[0], track_running_stats=False))
        else:
            made.append(module)
    return nn.Sequential(*made)


def trained(norm: str, epsilon: float, dataset: Dataset, effort: Effort, key: Key, device: torch.device) -> nn.Sequential:
    """Algorithm 1 on a network with norms of that kind, with the noise of the claim ``epsilon``."""
    shape = dataset.shape
    torch.manual_seed(0)
    network = build_network(NETWORK, shape, len(dataset.classes))
    assert isinstance(network, nn.Sequential)
    chosen = with_batch_norm(network) if norm == "batch" else network
    model = published_network(chosen, shape)
    size_noise(model, epsilon, effort.batch)
    model = model.to(device)
    records = DeviceRecords(dataset.train, dataset.levels, device)
    training = PrintedTraining(effort.batch, XI, Ensemble(ATTACK_SIZE, effort.attack_steps, 1.0))
    source = PublishedStoBatch(training, records, model, key)
    constraint = FixedDrawsConstraint()
    constraint.apply(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=effort.learning_rate)
    for step in range(effort.steps):
        for name, slope in source.gradient(step).items():
            model.get_parameter(name).grad = slope
        optimiser.step()
        constraint.apply(model)
    return model


def answers(model: nn.Sequential, inputs: Tensor, labels: Tensor, key: Key) -> dict[str, float]:
    """The share of right answers on one batch of images, by where fresh noise is drawn."""

    def right() -> float:
        with torch.no_grad():
            return float((model(inputs).argmax(dim=1) == labels).float().mean())

    with silenced(model):
        found = {"without fresh noise": right()}
        with one_draw_for_all(model, key):
            found["one draw for all"] = right()
    torch.manual_seed(1)
    return found | {"a draw for each": right()}


@contextmanager
def one_draw_for_all(model: nn.Sequential, key: Key) -> Iterator[None]:
    """Inside, one fresh draw of both noises moves every input alike."""
    two, draws = fixed_draws_of(model)
    generator = torch.Generator()
    seed_generator(generator, key, "one draw for all images")
    places = ((draws.on_input, two.input_noise), (draws.on_layer, two.hidden.noise))
    kept = [place.clone() for place, _ in places]
    for place, noise in places:
        drawn = laplace_from_uniform(torch.rand(place.shape, generator=generator))
        place += noise.deviation * drawn.to(place)
    draws.settle(two)
    try:
        yield
    finally:
        for (place, _), before in zip(places, kept, strict=True):
            place.copy_(before)
        draws.settle(two)


def lines(dataset: Dataset, epsilons: list[float], effort: Effort, device: torch.device) -> Iterator[dict[str, Any]]:
    """One line for each claim and norm; test images are one batch."""
    inputs = DeviceRecords(dataset.test, dataset.levels, device).inputs(slice(effort.images))
    labels = torch.from_numpy(dataset.test.labels[: effort.images]).to(device)
    for epsilon in epsilons:
        for norm in NORMS:
            began, key = time.monotonic(), Key.from_seed(0)
            model = trained(norm, epsilon, dataset, effort, key, device)
            two, _ = fixed_draws_of(model)
            scales = {"on_input": float(two.input_noise.deviation), "on_layer": float(two.hidden.noise.deviation)}
            found = answers(model, inputs, labels, key)
            seconds = round(time.monotonic() - began, 1)
            yield {"claimed epsilon": epsilon, "norm": norm, "fresh scale": scales, **found, "seconds": seconds}


def main() -> None:
    """Trains and answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.2, 2.0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--attack-steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2499)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--images", type=int, default=2499, help="test images, answered as one batch")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    effort = Effort(asked.steps, asked.attack_steps, asked.batch, asked.learning_rate, asked.images)
    device = resolve_device(asked.device)
    found = []
    for line in lines(load(DataConfig(source="mnist")), asked.epsilon, effort, device):
        print(line, flush=True)
        found.append(line)
    made = {"device": describe_device(device), "versions": software_versions(), "date": utc_now()}
    write_json(asked.out, {"lines": found, "effort": vars(effort), **made})


if __name__ == "__main__":
    main()

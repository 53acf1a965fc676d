"""Trains the weights that recipes start from, on images that a program draws: no record of anybody is read.

    python benchmarks/make_prior.py --out src/twinproof/layers/prior.safetensors --results results/prior.json
    python benchmarks/make_prior.py --interval --out src/twinproof/layers/interval-prior.safetensors \\
        --results results/interval-prior.json
    python benchmarks/make_prior.py --picture docs/images/figures.png

For each noise a network of its own tells random figures apart (``twinproof.data.figures``): four images of five under that
noise, the fifth without. With ``--interval`` it is one for each size of the ball instead, that of the recipe ``interval`` under
its loss. What was learned is kept but for the last layer. The files hold half precision: its rounding is far below what private
training adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.figures import Figures
from twinproof.files import sha256_file, write_json
from twinproof.layers.interval import INTERVAL_CNN, begin_for_bounds, interval_cnn
from twinproof.layers.networks import PRIOR_NETWORK, PRIOR_SIGMAS, PRIOR_SIZES, PRIOR_WIDTH, gelu_cnn, prior_key
from twinproof.recipes.interval import IntervalConfig
from twinproof.runs.layout import software_versions, utc_now
from twinproof.training.interval import Growth, IntervalView

SIDE = 28
NOISY = 0.8
_FRAME = 0.35  # grey between the images of a sheet
_JUDGED = 50  # the accuracy is that of the last batches, whose images nobody had seen before


@dataclass(frozen=True)
class Lesson:
    """How a prior is learned."""

    figures: int = 1000
    steps: int = 10_000
    batch: int = 1024
    rate: float = 4e-3
    seed: int = 0


INTERVAL_LESSON = Lesson(steps=4000, batch=512, rate=2e-3)
_LONGEST = 5.0  # of a step's gradient, by which bounds that are still wide would move far


def learn(sigma: float, lesson: Lesson) -> tuple[dict[str, Tensor], float, float]:
    """The weights of the network but for its last layer, its accuracy on new images under noise, and the seconds it took."""
    torch.set_num_threads(1)
    began, device = time.monotonic(), resolve_device("auto")
    figures = Figures(lesson.figures, SIDE, seed=lesson.seed, device=device)
    torch.manual_seed(lesson.seed)
    network = gelu_cnn((1, SIDE, SIDE), lesson.figures, PRIOR_WIDTH).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=lesson.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lesson.rate, total_steps=lesson.steps)
    generator = torch.Generator(device).manual_seed(lesson.seed)
    right = []
    for step in range(lesson.steps):
        labels = torch.randint(lesson.figures, (lesson.batch,), generator=generator, device=device)
        logits = network(noisy(figures.draw(labels, generator), sigma, generator))
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step >= lesson.steps - _JUDGED:
            right.append((logits.argmax(dim=1) == labels).float().mean())
    return without_last(network), float(torch.stack(right).mean()), time.monotonic() - began


def without_last(network: nn.Sequential) -> dict[str, Tensor]:
    """The weights of all layers but the last one."""
    last = f"{len(network) - 1}."
    return {name: value.half().cpu() for name, value in network.state_dict().items() if not name.startswith(last)}


def learn_bounds(size: float, lesson: Lesson) -> tuple[dict[str, Tensor], float, float]:
    """The weights for balls of ``size``, the share of new images that is certified there, and the seconds it took."""
    torch.set_num_threads(1)
    began, device = time.monotonic(), resolve_device("auto")
    figures = Figures(lesson.figures, SIDE, seed=lesson.seed, device=device)
    torch.manual_seed(lesson.seed)
    network = interval_cnn((1, SIDE, SIDE), lesson.figures)
    begin_for_bounds(network)
    view, last = IntervalView(network.to(device)), network[-1]
    optimizer = torch.optim.Adam(network.parameters(), lr=lesson.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lesson.rate, total_steps=lesson.steps)
    generator = torch.Generator(device).manual_seed(lesson.seed)
    growth = Growth(size, IntervalConfig().share, lesson.steps)
    certified = []
    for step in range(lesson.steps):
        share = growth.share * growth.at(step)
        view.set(size * growth.at(step), share)
        labels = torch.randint(lesson.figures, (lesson.batch,), generator=generator, device=device)
        clean, centre, radius = view.before_last(figures.draw(labels, generator))
        worst = worst_scores(last, centre, radius, labels)
        losses = [nn.functional.cross_entropy(scores, labels) for scores in (last(clean), worst)]
        optimizer.zero_grad(set_to_none=True)
        ((1 - share) * losses[0] + share * losses[1]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _LONGEST)
        optimizer.step()
        schedule.step()
        if step >= lesson.steps - _JUDGED:
            certified.append((worst.argmax(dim=1) == labels).float().mean())
    return without_last(network), float(torch.stack(certified).mean()), time.monotonic() - began


def worst_scores(last: nn.Module, centre: Tensor, radius: Tensor, labels: Tensor) -> Tensor:
    """The largest z_j - z_label over each box before the layer ``last``; not of all pairs, of which figures have too many."""
    assert isinstance(last, nn.Linear)
    scores = last(centre)
    differences = (last.weight.unsqueeze(0) - last.weight[labels].unsqueeze(1)).abs()
    spread = torch.bmm(differences, radius.unsqueeze(2)).squeeze(2)
    worst: Tensor = scores - scores.gather(1, labels.unsqueeze(1)) + spread
    return worst


def noisy(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """Noise on most of the images: the others stay as they are."""
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    chosen = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device) < NOISY
    return images + sigma * noise * chosen


def sheet(lesson: Lesson, rows: int = 8, columns: int = 8) -> Tensor:
    """The first figures of a lesson, one in each row, without noise: (pixels, pixels) with values in [0, 1]."""
    cpu = torch.device("cpu")
    labels = torch.arange(rows).repeat_interleave(columns)
    generator = torch.Generator().manual_seed(lesson.seed)
    images = Figures(lesson.figures, SIDE, seed=lesson.seed, device=cpu).draw(labels, generator)
    framed = nn.functional.pad(images.view(rows, columns, SIDE, SIDE), (1, 1, 1, 1), value=_FRAME)
    return framed.permute(0, 2, 1, 3).reshape(rows * (SIDE + 2), columns * (SIDE + 2))


def write_picture(path: Path, lesson: Lesson) -> None:
    """Draws figures of the lesson, each pixel two dots wide."""
    from matplotlib.image import imsave

    dots = sheet(lesson).repeat_interleave(2, 0).repeat_interleave(2, 1)
    imsave(path, dots.numpy(), cmap="gray", vmin=0.0, vmax=1.0)


def main() -> None:
    """Learns all priors and writes them, or draws what they are learned from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the weights")
    parser.add_argument("--results", type=Path, help="how they were learned, and their digest")
    parser.add_argument("--picture", type=Path, help="a sheet of figures; nothing is learned then")
    parser.add_argument("--processes", type=int, default=1, help="priors at a time on the one device")
    parser.add_argument("--interval", action="store_true", help="for the recipe interval")
    for name, value in asdict(Lesson()).items():
        parser.add_argument(f"--{name}", type=type(value))
    asked = vars(parser.parse_args())
    kind = INTERVAL if asked["interval"] else SMOOTHED
    lesson = replace(kind.lesson, **{part.name: asked[part.name] for part in fields(Lesson) if asked[part.name] is not None})
    if asked["picture"] is not None:
        write_picture(asked["picture"], lesson)
    elif asked["out"] is None or asked["results"] is None:
        parser.error("--out and --results are needed, or --picture")
    else:
        write_priors(asked["out"], asked["results"], lesson, asked["processes"], kind)


@dataclass(frozen=True)
class Kind:
    """What is learned: one prior of ``network`` at each of ``levels``."""

    network: str
    width: int
    level: str
    levels: tuple[float, ...]
    judged: str
    learn: Callable[[float, Lesson], tuple[dict[str, Tensor], float, float]]
    lesson: Lesson


SMOOTHED = Kind(PRIOR_NETWORK, PRIOR_WIDTH, "sigma", PRIOR_SIGMAS, "accuracy", learn, Lesson())
INTERVAL = Kind(INTERVAL_CNN, 1, "size", PRIOR_SIZES, "certified", learn_bounds, INTERVAL_LESSON)


def write_priors(out: Path, results: Path, lesson: Lesson, processes: int, kind: Kind = SMOOTHED) -> None:
    """Learns a prior for each level and writes their weights and how they were made."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        learned = dict(zip(kind.levels, pool.map(kind.learn, kind.levels, [lesson] * len(kind.levels)), strict=True))
    save_file({prior_key(level, name): value for level, (kept, *_) in learned.items() for name, value in kept.items()}, out)
    judged: list[dict[str, Any]] = [
        {kind.level: level, kind.judged: round(share, 4), "seconds": round(seconds, 1)}
        for level, (_, share, seconds) in learned.items()
    ]
    made = {"device": describe_device(resolve_device("auto")), "versions": software_versions(), "date": utc_now()}
    network = {"network": kind.network, "width": kind.width}
    write_json(results, {**network, "lesson": asdict(lesson), "priors": judged, "sha256": sha256_file(out), **made})


if __name__ == "__main__":
    main()

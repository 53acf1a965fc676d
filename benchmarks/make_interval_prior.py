"""Trains the weights that the recipe ``interval`` starts from, on images that a program draws: no record of anybody is read.

    python benchmarks/make_interval_prior.py --out src/twinproof/layers/interval-prior.safetensors \\
        --results results/interval-prior.json --processes 5

Each network learns to tell random figures apart (``twinproof.data.figures``) on the worst case in a ball, as the recipe does.
Where the ball is large, figures are few and bold and it grows for longer: else no bound is ever of any use and nothing is
learned. What was learned is kept but for the last layer, in half precision.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from make_prior import without_last
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.figures import Figures
from twinproof.files import sha256_file, write_json
from twinproof.layers.interval import CONTRAST_CNN, INTERVAL_CNN, begin_for_bounds
from twinproof.layers.networks import build_network, prior_key
from twinproof.runs.layout import software_versions, utc_now
from twinproof.training.interval import Growth, IntervalView

SIDE = 28
_JUDGED = 50  # certified are images of the last batches
_LONGEST = 5.0  # of a step's gradient, by which bounds that are still wide would move far
_AT_A_TIME = 1024  # images drawn


@dataclass(frozen=True)
class Lesson:
    """How one prior is learned: the ball's ``size`` grows over ``ramp`` of the steps; ``images`` are drawn beforehand."""

    network: str
    size: float
    figures: int = 200
    drawn: float = 1.0
    bold: float = 1.0
    ramp: float = 0.5
    share: float = 0.9
    steps: int = 4000
    batch: int = 512
    rate: float = 2e-3
    images: int = 200_000
    seed: int = 0


LESSONS = (
    Lesson(INTERVAL_CNN, 0.11, figures=1000, drawn=0.5),
    Lesson(INTERVAL_CNN, 0.33, drawn=0.5, bold=1.4, ramp=0.6, steps=6000),
    Lesson(CONTRAST_CNN, 0.05),
    Lesson(CONTRAST_CNN, 0.11),
    Lesson(CONTRAST_CNN, 0.33, bold=1.4, ramp=0.7, steps=6000),
)


def drawn(lesson: Lesson, device: torch.device) -> tuple[Tensor, Tensor]:
    """All images of a lesson in 256 levels, and which figure each one shows."""
    figures = Figures(lesson.figures, SIDE, seed=lesson.seed, device=device, drawn=lesson.drawn, bold=lesson.bold)
    generator = torch.Generator(device).manual_seed(lesson.seed)
    labels = torch.arange(lesson.images, device=device) % lesson.figures
    parts = [(255 * figures.draw(some, generator)).round().to(torch.uint8) for some in torch.split(labels, _AT_A_TIME)]
    return torch.cat(parts), labels


def learn(lesson: Lesson) -> tuple[dict[str, Tensor], float, float]:
    """The weights, the share of images that is certified at the lesson's size in the end, and the seconds it took."""
    torch.set_num_threads(1)
    began, device = time.monotonic(), resolve_device("auto")
    images, figures = drawn(lesson, device)
    torch.manual_seed(lesson.seed)
    network = build_network(lesson.network, (1, SIDE, SIDE), lesson.figures)
    begin_for_bounds(network)
    view = IntervalView(network.to(device))
    last = view.get_submodule(str(len(list(network.children())) - 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=lesson.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lesson.rate, total_steps=lesson.steps)
    generator = torch.Generator(device).manual_seed(lesson.seed)
    growth = Growth(lesson.size, lesson.share, lesson.steps, lesson.ramp)
    certified = []
    for step in range(lesson.steps):
        share = growth.share * growth.at(step)
        view.set(growth.size * growth.at(step), share)
        rows = torch.randint(lesson.images, (lesson.batch,), generator=generator, device=device)
        labels = figures[rows]
        clean, centre, radius = view.before_last(images[rows].float() / 255)
        worst = worst_scores(last, centre, radius, labels)
        losses = [nn.functional.cross_entropy(scores, labels) for scores in (last(clean), worst)]
        optimizer.zero_grad(set_to_none=True)
        ((1 - share) * losses[0] + share * losses[1]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _LONGEST)
        optimizer.step()
        schedule.step()
        if step >= lesson.steps - _JUDGED:
            certified.append((worst.argmax(dim=1) == labels).float().mean())
    kept = without_last(nn.Sequential(*network.children()))
    return kept, float(torch.stack(certified).mean()), time.monotonic() - began


def worst_scores(last: nn.Module, centre: Tensor, radius: Tensor, labels: Tensor) -> Tensor:
    """The largest z_j - z_label over each box before the layer ``last``; not of all pairs, of which figures have too many."""
    weight = last.get_parameter("weight")
    scores = last(centre)
    differences = (weight.unsqueeze(0) - weight[labels].unsqueeze(1)).abs()
    spread = torch.bmm(differences, radius.unsqueeze(2)).squeeze(2)
    moved: Tensor = scores - scores.gather(1, labels.unsqueeze(1)) + spread
    return moved


def write_priors(out: Path, results: Path, lessons: tuple[Lesson, ...], processes: int) -> None:
    """Learns every lesson and writes the weights and how they were made."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        learned = dict(zip(lessons, pool.map(learn, lessons), strict=True))
    weights = {
        prior_key(lesson.size, name, lesson.network): value
        for lesson, (kept, *_) in learned.items()
        for name, value in kept.items()
    }
    save_file(weights, out)
    judged: list[dict[str, Any]] = [
        {**asdict(lesson), "certified": round(share, 4), "seconds": round(seconds, 1)}
        for lesson, (_, share, seconds) in learned.items()
    ]
    made = {"device": describe_device(resolve_device("auto")), "versions": software_versions(), "date": utc_now()}
    write_json(results, {"priors": judged, "sha256": sha256_file(out), **made})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the weights")
    parser.add_argument("--results", type=Path, required=True, help="how they were learned, and their digest")
    parser.add_argument("--processes", type=int, default=1, help="priors at a time on the one device")
    for name in ("steps", "images"):
        parser.add_argument(f"--{name}", type=int, help="fewer, to try it")
    asked = vars(parser.parse_args())
    changes = {name: asked[name] for name in ("steps", "images") if asked[name] is not None}
    lessons = tuple(replace(lesson, **changes) for lesson in LESSONS)
    write_priors(asked["out"], asked["results"], lessons, asked["processes"])


if __name__ == "__main__":
    main()

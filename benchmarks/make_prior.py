"""Trains the weights that the house recipe starts from, on images that a program draws: no record of anybody is read.

    python benchmarks/make_prior.py --out src/twinproof/layers/prior.safetensors --results results/prior.json
    python benchmarks/make_prior.py --picture docs/images/figures.png

For each noise a network of its own tells random figures apart (``twinproof.data.figures``): four images of five under that
noise, the fifth without. What it learned is kept but for its last layer. The file holds half precision: its rounding is far
below what private training adds.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from twinproof.compute.devices import describe_device, resolve_device
from twinproof.data.figures import Figures
from twinproof.files import sha256_file, write_json
from twinproof.layers.networks import PRIOR_NETWORK, PRIOR_SIGMAS, PRIOR_WIDTH, gelu_cnn, prior_key
from twinproof.runs.layout import software_versions, utc_now

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
    for name, value in asdict(Lesson()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    asked = vars(parser.parse_args())
    lesson = Lesson(**{name: asked[name] for name in asdict(Lesson())})
    if asked["picture"] is not None:
        write_picture(asked["picture"], lesson)
    elif asked["out"] is None or asked["results"] is None:
        parser.error("--out and --results are needed, or --picture")
    else:
        write_priors(asked["out"], asked["results"], lesson, asked["processes"])


def write_priors(out: Path, results: Path, lesson: Lesson, processes: int) -> None:
    """Learns a prior for each noise and writes their weights and how they were made."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        learned = dict(zip(PRIOR_SIGMAS, pool.map(learn, PRIOR_SIGMAS, [lesson] * len(PRIOR_SIGMAS)), strict=True))
    save_file({prior_key(sigma, name): value for sigma, (kept, *_) in learned.items() for name, value in kept.items()}, out)
    judged: list[dict[str, Any]] = [
        {"sigma": sigma, "accuracy": round(accuracy, 4), "seconds": round(seconds, 1)}
        for sigma, (_, accuracy, seconds) in learned.items()
    ]
    made = {"device": describe_device(resolve_device("auto")), "versions": software_versions(), "date": utc_now()}
    network = {"network": PRIOR_NETWORK, "width": PRIOR_WIDTH}
    write_json(results, {**network, "lesson": asdict(lesson), "priors": judged, "sha256": sha256_file(out), **made})


if __name__ == "__main__":
    main()

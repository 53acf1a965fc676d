"""The private step against its peers, in one run on this machine: examples per second and ratios.

    make bench            (or: python benchmarks/private_step.py --out benchmark.json)

One step is: per-example gradients of all copies, their norms, the clipped sum. Methods take turns, the median counts; only the
ratios mean anything on another machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from twinproof.layers.models.registry import build_network
from twinproof.runs.environment import software_versions, utc_now
from twinproof.training.device import describe_device, resolve_device
from twinproof.training.loss import mean_cross_entropy
from twinproof.training.per_example.choose import choose_path
from twinproof.training.per_example.path import PerExamplePath

SHAPE, CLASSES, CLIP = (1, 28, 28), 10, 0.1
Step = Callable[[], None]


def network() -> nn.Module:
    """The small MNIST network, always with the same weights."""
    torch.manual_seed(0)
    return build_network("tramer-boneh-cnn", SHAPE, CLASSES)


def ours(path: PerExamplePath, inputs: Tensor, labels: Tensor) -> Step:
    """Our step over one pass."""

    def step() -> None:
        gradients = path.gradients(inputs, labels)
        weights = torch.clamp(CLIP / gradients.squared_norms().sqrt(), max=1.0)
        for value in gradients.by_name.values():
            value.weighted_sum(weights)

    return step


def opacus(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    """Opacus's hooks on all copies flattened, averaged per record, then clipped and summed."""
    from opacus import GradSampleModule

    wrapped = GradSampleModule(model, loss_reduction="sum")
    records, copies = inputs.shape[:2]
    rows, targets = inputs.flatten(0, 1), labels.repeat_interleave(copies)

    def step() -> None:
        wrapped.zero_grad(set_to_none=True)
        loss: Tensor = nn.functional.cross_entropy(wrapped(rows), targets, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        samples = [parameter.grad_sample.view(records, copies, -1).mean(1) for parameter in wrapped.parameters()]
        norms = torch.stack([sample.norm(dim=1) for sample in samples]).norm(dim=0)
        weights = torch.clamp(CLIP / (norms + 1e-6), max=1.0)
        for sample in samples:
            weights @ sample

    return step


def measure(steps: dict[str, Step], records: int, turns: int) -> dict[str, float]:
    """Examples per second of each method, by turns; the first turn warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    return {name: records / statistics.median(values[1:]) for name, values in seconds.items()}


def main() -> None:
    """Measures every batch size and number of copies, prints a table, writes JSON if asked."""
    from twinproof.files import write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    device = resolve_device("auto")
    rows = []
    for records in arguments.batches:
        for copies in (1, 3):
            inputs = torch.rand(records, copies, *SHAPE, device=device)
            labels = torch.randint(0, CLASSES, (records,), device=device)
            steps: dict[str, Step] = {}
            for name in ("auto", "vmap"):
                model = network().to(device)
                path = choose_path(model, mean_cross_entropy, SHAPE, CLASSES, copies=copies, path=name)
                steps[f"twinproof ({name})"] = ours(path, inputs, labels)
            steps["opacus hooks"] = opacus(network().to(device), inputs, labels)
            speed = measure(steps, records, arguments.turns)
            peer = speed["opacus hooks"]
            rows.append(
                {
                    "records": records,
                    "copies": copies,
                    "examples_per_second": speed,
                    "ratio_to_opacus": {k: v / peer for k, v in speed.items()},
                }
            )
            for name, value in speed.items():
                print(f"batch {records:5d}  copies {copies}  {name:<18} {value:10.0f} examples/s  {value / peer:5.2f} x Opacus")
    if arguments.out is not None:
        write_json(
            arguments.out,
            {"rows": rows, "device": describe_device(device), "versions": software_versions(), "date": utc_now()},
        )


if __name__ == "__main__":
    main()

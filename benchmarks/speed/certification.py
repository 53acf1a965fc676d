"""CERTIFY with the same network, images and number of draws: the loop of the paper, one image at a time, against ours.

The loop is the algorithm of Cohen, Rosenfeld and Kolter (2019) as their experiments ran it: for each image, batches of noisy
copies, one forward, and the votes added up. The network is trained for a few seconds without privacy, only so that the answers
of the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from speed.costs import forward_cost
from speed.limits import Limits
from speed.timing import take_turns
from speed.workloads import CLASSES, WORKLOADS
from twinproof.certify.clopper_pearson import clopper_pearson_lower
from twinproof.certify.smoothed import Sampling, smooth
from twinproof.data.load import load
from twinproof.errors import DataError
from twinproof.randomness import Key
from twinproof.runs.certificates import ABSTAIN

SIGMA = 0.5
PAPER, OURS = "one image at a time (paper)", "twinproof"
_PAPER_BATCH = 1000
_TRAINING = {"steps": 150, "records": 256}


@dataclass(frozen=True)
class CertificationRow:
    """One method: images per second, and how its answers compare with those of the paper's loop (None: not run)."""

    method: str
    images: int
    draws: int
    note: str = ""
    seconds: tuple[float, ...] = ()
    images_per_second: float | None = None
    ratio_to_paper: float | None = None
    fraction_of_limit: float | None = None
    same_prediction: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)


def measure_certification(
    device: torch.device, images: int, sampling: Sampling, turns: int, limits: Limits
) -> list[CertificationRow]:
    """Both methods on the first images of the MNIST test part; a row with the reason where there is no MNIST."""
    draws = sampling.n0 + sampling.n
    try:
        dataset = load("mnist")
    except DataError as error:
        return [CertificationRow(name, images, draws, note=f"not run: {error.what} ({error.where})") for name in (PAPER, OURS)]
    train = (torch.from_numpy(dataset.train.inputs).to(device), torch.from_numpy(dataset.train.labels).to(device))
    model = _trained(*train)
    stored = torch.from_numpy(dataset.test.inputs[:images]).to(device)
    scaled = stored.float() / 255
    answers: dict[str, NDArray[np.int64]] = {}

    def keep(name: str, certify: Callable[[], NDArray[np.int64]]) -> Callable[[], None]:
        def work() -> None:
            answers[name] = certify()

        return work

    methods = {
        PAPER: keep(PAPER, lambda: np.array([_paper_loop(model, image, sampling) for image in scaled])),
        OURS: keep(OURS, lambda: _ours(model, stored, sampling)),
    }
    times = take_turns(methods, turns, device)
    fastest, _ = forward_cost(model, scaled[:1]).fastest(limits)
    return [
        CertificationRow(
            name,
            images,
            draws,
            seconds=times[name].seconds,
            images_per_second=images / times[name].median,
            ratio_to_paper=times[name].speed_over(times[PAPER]),
            fraction_of_limit=images / times[name].median * draws / fastest,
            same_prediction=float((answers[name] == answers[PAPER]).mean()),
        )
        for name in methods
    ]


def _trained(inputs: Tensor, labels: Tensor) -> nn.Module:
    """The small MNIST network after a few plain steps on noisy images."""
    model = WORKLOADS["mnist-cnn"].model(inputs.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(_TRAINING["steps"]):
        chosen = slice(step * _TRAINING["records"], (step + 1) * _TRAINING["records"])
        rows = inputs[chosen].float() / 255
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(rows + SIGMA * torch.randn_like(rows)), labels[chosen]))
        optimizer.step()
    return model.eval()


def _ours(model: nn.Module, stored: Tensor, sampling: Sampling) -> NDArray[np.int64]:
    certificates = smooth(model, SIGMA).certify(stored, sampling=sampling, key=Key.from_seed(0))
    return np.array([certificate.prediction for certificate in certificates])


def _paper_loop(model: nn.Module, image: Tensor, sampling: Sampling) -> int:
    """The prediction of CERTIFY for one image; the radius costs nothing beside the votes."""
    top = int(_paper_votes(model, image, sampling.n0).argmax())
    votes = _paper_votes(model, image, sampling.n)[top]
    return top if float(clopper_pearson_lower(np.array([votes]), sampling.n, sampling.alpha)[0]) >= 0.5 else ABSTAIN


@torch.no_grad()
def _paper_votes(model: nn.Module, image: Tensor, draws: int) -> NDArray[np.int64]:
    """Votes by class, in batches of 1,000 noisy copies, each counted on the host as the paper's code does."""
    counts = np.zeros(CLASSES, dtype=np.int64)
    for start in range(0, draws, _PAPER_BATCH):
        copies = image.repeat((min(_PAPER_BATCH, draws - start), 1, 1, 1))
        choices = model(copies + SIGMA * torch.randn_like(copies)).argmax(1)
        for choice in choices.cpu().numpy():
            counts[choice] += 1
    return counts

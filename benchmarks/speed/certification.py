"""CERTIFY with the same network and images: the loop of the paper, one image at a time, against ours.

Ours in three ways: with all draws and noise of each image's own; with noise that the images share; and deciding only whether
the radius is at least 0.25, which stops as soon as that is known.

The loop is the algorithm of Cohen, Rosenfeld and Kolter (2019) as their experiments ran it: for each image, batches of noisy
copies, one forward, and the votes added up. The network is trained for a few seconds without privacy, only so that the answers
of the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.data.load import load
from twinproof.errors import DataError
from twinproof.keys import Key
from twinproof.runs.records import ABSTAIN, Certificate

SIGMA = 0.5
RADIUS = 0.25
PAPER, OURS = "one image at a time (paper)", "twinproof"
SHARED, DECIDING = "twinproof, shared noise", f"twinproof, deciding r={RADIUS}"
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
    """All methods on the first images of the MNIST test part; a row with the reason where there is no MNIST."""
    draws = sampling.n0 + sampling.n
    try:
        dataset = load("mnist")
    except DataError as error:
        return [CertificationRow(name, images, draws, note=f"not run: {error.what} ({error.where})") for name in (PAPER, OURS)]
    train = (torch.from_numpy(dataset.train.inputs).to(device), torch.from_numpy(dataset.train.labels).to(device))
    model = _trained(*train)
    stored = torch.from_numpy(dataset.test.inputs[:images]).to(device)
    scaled = stored.float() / 255
    made: dict[str, list[Certificate]] = {}
    paper: list[int] = []

    def loop() -> None:
        paper[:] = [_paper_loop(model, image, sampling) for image in scaled]

    def keep(name: str, **changes: Any) -> Callable[[], None]:
        def work() -> None:
            made[name] = _certificates(model, stored, replace(sampling, **changes))

        return work

    methods = {
        PAPER: loop,
        OURS: keep(OURS),
        SHARED: keep(SHARED, shared_noise=True),
        DECIDING: keep(DECIDING, target_radius=RADIUS),
    }
    times = take_turns(methods, turns, device)
    fastest, _ = forward_cost(model, scaled[:1]).fastest(limits)
    return [
        CertificationRow(
            name,
            images,
            draws,
            note=_verdicts(made[name], made[OURS]) if name in (SHARED, DECIDING) else "",
            seconds=times[name].seconds,
            images_per_second=images / times[name].median,
            ratio_to_paper=times[name].speed_over(times[PAPER]),
            # The limit is that of all draws through all layers; the last two methods spare some of them.
            fraction_of_limit=images / times[name].median * draws / fastest if name in (PAPER, OURS) else None,
            same_prediction=_same(paper, made.get(name)) if name != DECIDING else None,
        )
        for name in methods
    ]


def _same(paper: list[int], made: list[Certificate] | None) -> float:
    """The share of images with the answer of the paper's loop."""
    answers = paper if made is None else [certificate.prediction for certificate in made]
    return float(np.mean([one == other for one, other in zip(answers, paper, strict=True)]))


def _verdicts(made: list[Certificate], full: list[Certificate]) -> str:
    """How many images get the same verdict on the radius as with all draws, and how many draws that took."""
    same = sum((one.radius >= RADIUS) == (other.radius >= RADIUS) for one, other in zip(made, full, strict=True))
    draws = sum(certificate.draws for certificate in made) / len(made)
    return f"verdict on r={RADIUS} as in full: {same} of {len(full)}; {draws:.0f} draws"


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


def _certificates(model: nn.Module, stored: Tensor, sampling: Sampling) -> list[Certificate]:
    return smooth(model, SIGMA).certify(stored, sampling=sampling, key=Key.from_seed(0))


def _ours(model: nn.Module, stored: Tensor, sampling: Sampling) -> NDArray[np.int64]:
    return np.array([certificate.prediction for certificate in _certificates(model, stored, sampling)])


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

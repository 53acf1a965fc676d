"""The network asked again: accuracy and loss on the test set, and its answers to the attacked inputs.

Written from docs/formats/run.md. How far a second computation may differ from the first is said there too: on the same device
class and version of torch only inputs whose two highest outputs are equal up to rounding may change; elsewhere 1 % of the
inputs, and for a network that draws noise as many more as the square root of their number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import number, whole
from twinproof.auditing.same_place import CLOSE, ELSEWHERE, Place, at_random
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_attack_lines import FILE as ATTACK_LINES
from twinproof.auditing.verify_attack_lines import AttackTable
from twinproof.auditing.verify_attacked_inputs import Tensors
from twinproof.auditing.verify_metrics import FILE as METRICS
from twinproof.auditing.verify_originals import Originals
from twinproof.auditing.verify_run_json import FILE as RUN_JSON
from twinproof.layers.noise import NoiseLayer, silenced

# As accuracy was measured: docs/formats/run.md, `accuracy`.
DRAWS, BATCH, SEED = 16, 4096, 0
# A pass over the test set that takes longer is only made where somebody asked for votes to be drawn again.
MOST_SECONDS = 120.0
_FIRST_ROWS = 64
LOSS_SAME, LOSS_ELSEWHERE = 1e-4, 0.05


@dataclass(frozen=True)
class Asked:
    """Answers to some inputs, and which of them rounding may change; on the test set the loss, and whether noise was drawn."""

    answers: NDArray[np.int64]
    close: NDArray[np.bool_]
    loss: float = math.nan
    noisy: bool = False


class TooLong(Exception):
    """Asking the network would take this many seconds."""


class Network:
    """A loaded network, asked about stored inputs of ``shape`` and ``levels``."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], levels: int) -> None:
        self._model, self._shape, self._levels = model, shape, levels
        self.noisy = any(isinstance(layer, NoiseLayer) for layer in model.modules())

    def draws_at_random(self, stored: NDArray[Any]) -> bool:
        """Whether it answers at random with its noise layers silenced."""
        with silenced(self._model), torch.inference_mode(), torch.random.fork_rng():
            rows = self._rows(stored[:1]).expand(8, *self._shape)
            return at_random(self._model(rows), self._model(rows))

    def measured(self, originals: Originals, most_seconds: float) -> Asked:
        """On the test set as accuracy is measured: with a noise layer, by the mean probability over draws of a fixed seed."""
        labels = torch.from_numpy(originals.labels.astype(np.int64)).to(self._device)
        draws = DRAWS if self.noisy else 1
        self._refuse_long(originals.inputs, draws, most_seconds)
        found, close, loss = [], [], 0.0
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.inference_mode(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(SEED)
            for first in range(0, len(labels), BATCH):
                rows, truth = self._rows(originals.inputs[first : first + BATCH]), labels[first : first + BATCH]
                passes = torch.stack([self._model(rows).double().log_softmax(dim=1) for _ in range(draws)])
                scores = passes.logsumexp(dim=0) - math.log(draws)
                loss += float(nn.functional.nll_loss(scores, truth, reduction="sum"))
                found.append(_classes(scores))
                close.append(_close(scores.exp(), scores.new_ones(())))
        return Asked(_joined(found), _joined(close), loss / max(1, len(labels)), self.noisy)

    def silent(self, stored: NDArray[Any]) -> Asked:
        """One pass with the noise layers silenced."""
        found, close = [], []
        with silenced(self._model), torch.inference_mode():
            for first in range(0, len(stored), BATCH):
                outputs = self._model(self._rows(stored[first : first + BATCH]))
                found.append(_classes(outputs))
                close.append(_close(outputs, outputs.abs().amax(dim=1)))
        return Asked(_joined(found), _joined(close))

    @property
    def _device(self) -> torch.device:
        return next((tensor.device for tensor in self._model.state_dict().values()), torch.device("cpu"))

    def _rows(self, stored: NDArray[Any]) -> Tensor:
        flat = torch.from_numpy(stored.astype(np.float32)).to(self._device)
        return (flat / self._levels).view(-1, *self._shape)

    def _refuse_long(self, stored: NDArray[Any], draws: int, most_seconds: float) -> None:
        """Estimates the time from a few inputs."""
        few = self._rows(stored[:_FIRST_ROWS])
        with torch.inference_mode(), torch.random.fork_rng():
            self._model(few[:1])
            began = time.monotonic()
            self._model(few)
            seconds = (time.monotonic() - began) * draws * len(stored) / max(1, len(few))
        if seconds > most_seconds:
            raise TooLong(f"about {math.ceil(seconds / 60)} minutes here")


def accuracy_problems(
    run: dict[str, Any], last_line: dict[str, Any] | None, asked: Asked, originals: Originals, place: Place
) -> Iterator[Problem]:
    """Accuracy of run.json, and accuracy and loss of the last line of metrics.jsonl, against what was ``asked`` again."""
    block = run.get("accuracy")
    said, of = (whole(block.get(name)) for name in ("correct", "total")) if isinstance(block, dict) else (None, None)
    total, correct = len(asked.answers), int((asked.answers == originals.labels).sum())
    # Two GPUs may draw other noise from one seed.
    same = place.same and not (asked.noisy and place.device.type == "cuda")
    allowed = int(asked.close.sum()) if same else ELSEWHERE * total + (math.sqrt(total) if asked.noisy else 0.0)
    wanted = f"{correct} of {total}" + (f", within {math.floor(allowed)}" if allowed >= 1 else "")
    if said is not None and (of != total or abs(said - correct) > allowed):
        yield Problem(RUN_JSON, "accuracy is not that of the network on the test set", f"{said} of {shown(of)}", wanted)
    if last_line is None:
        return
    share, loss = number(last_line.get("test_accuracy")), number(last_line.get("test_loss"))
    if share is not None and abs(share * total - correct) > allowed + 1e-6:
        what = "test_accuracy of the last line is not that of the network on the test set"
        yield Problem(METRICS, what, repr(share), wanted)
    spread = (LOSS_SAME if same else LOSS_ELSEWHERE) * (1 + abs(asked.loss))
    if loss is not None and not abs(loss - asked.loss) <= spread:
        what = "test_loss of the last line is not that of the network on the test set"
        yield Problem(METRICS, what, repr(loss), f"{asked.loss:.6f}, within {spread:.2g}")


def attack_problems(
    network: Network, table: AttackTable, tensors: Tensors, originals: Originals, place: Place
) -> Iterator[Problem]:
    """The network's answers in attacks.csv against one pass over the attacked inputs."""
    inputs = table.label.shape[1]
    stored = [originals.inputs[:inputs], *(tensors[entry.name] for entry in table.entries)]
    names = ["clean", *(entry.name for entry in table.entries)]
    for row, (name, points) in enumerate(zip(names, stored, strict=True)):
        asked = network.silent(points)
        columns = {"network": table.network[row], **({"network_unrounded": table.unrounded[row]} if row == 0 else {})}
        for column, said in columns.items():
            different = (said != asked.answers) & ~(asked.close if place.same else False)
            places = np.flatnonzero(different)
            if len(places) > (0 if place.same else max(1.0, ELSEWHERE * inputs)):
                got = f"input {places[0]}: {said[places[0]]}; {len(places)} inputs in all"
                what = f"{name}: {column} is not what the network answers"
                yield Problem(ATTACK_LINES, what, got, str(asked.answers[places[0]]))


def _classes(scores: Tensor) -> Tensor:
    """The class of each row, or -1 where one of its scores is NaN."""
    return torch.where(scores.isnan().any(dim=1), -1, scores.argmax(dim=1))


def _close(scores: Tensor, scale: Tensor) -> Tensor:
    """Whether rounding may change the order of the two highest scores."""
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    return first - second <= CLOSE * scale


def _joined(parts: list[Tensor]) -> NDArray[Any]:
    return np.asarray(torch.cat(parts).cpu().numpy())

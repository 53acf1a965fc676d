"""The network that a run names, built from ``twinproof.layers``, loaded with the weights that were read, and asked again.

What a layer computes cannot be read from its numbers, so the layers are the package's own. Noise, counting and radii are not:
whoever asks this network brings its own. How far a second computation may differ from the first is said in docs/formats/run.md:
on the same device class and version of torch only inputs whose two highest outputs are equal up to rounding may change;
elsewhere 1 % of the inputs, and for a network that draws noise as many more as the square root of their number.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor, nn

from twinproof.compute.devices import FLOAT32, arithmetic_of
from twinproof.errors import ModelError, TwinproofError
from twinproof.layers.fixed_draws import FixedDraws, with_fixed_draws
from twinproof.layers.networks import build_network
from twinproof.layers.noise import Law, NoiseLayer, silenced
from twinproof.layers.noise import Place as NoisePlace
from twinproof.layers.noise_placement import BOTH_PLACES, NoiseForm, RedistributionKind, with_noise, with_two_noises
from twinproof_verify import Originals, Problem
from twinproof_verify.attack_results import Tensors
from twinproof_verify.attacks import AttackTable
from twinproof_verify.evidence import shown
from twinproof_verify.files import METRICS, MODEL, RUN_JSON
from twinproof_verify.layers import First, LayerError, OwnersNetwork, Placement, Spread
from twinproof_verify.models import block, number
from twinproof_verify.run_json import is_own
from twinproof_verify.weights import Tensors as Described
from twinproof_verify.weights import network_problems, stored_tensors, tensor_problems

# Outputs that are closer than this share of the largest one may change places by rounding alone.
CLOSE = 2.0**-14
# The share of draws, or of inputs, whose answer may differ elsewhere.
ELSEWHERE = 0.01
# Copies of one input that are further apart than this share were answered at random.
_RANDOM = 1e-4


@dataclass(frozen=True)
class Place:
    """The device to compute on, and whether it is of the class, with the torch, that a record names."""

    device: torch.device
    same: bool

    @property
    def words(self) -> str:
        return "on the same device class and torch" if self.same else "on another device class or torch"

    @classmethod
    def of(cls, record: dict[str, Any], model: nn.Module) -> Place:
        """The device class of ``record`` where this machine has it, else the CPU.

        The same place needs the record's version of torch, and products in float32 there and here; which of the equal forms
        of a network was run does not matter beyond rounding.
        """
        kind = str(record.get("device", "")).partition(":")[0]
        device = torch.device("cuda" if kind == "cuda" and torch.cuda.is_available() else "cpu")
        versions = record.get("versions")
        torch_there = versions.get("torch") if isinstance(versions, dict) else None
        plain = record.get("arithmetic", FLOAT32) == FLOAT32 and arithmetic_of(model, device) == FLOAT32
        exact_layer = record.get("shared_noise") is not True  # whose first layer has weights that are rounded a little
        return cls(device, kind == device.type and torch_there == torch.__version__ and plain and exact_layer)


def at_random(first: torch.Tensor, again: torch.Tensor) -> bool:
    """Whether copies of one row got different outputs, beside each other or when asked again, beyond what rounding does."""
    scale = max(1.0, float(first.abs().nan_to_num().max()))
    apart = (first - first[:1]).abs().maximum((first - again).abs()).nan_to_num()
    return float(apart.max()) > _RANDOM * scale


# What building a network from a stranger's settings, or running an owner's, may raise besides errors meant for people.
REFUSALS = (TwinproofError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
}


def loaded_network(content: bytes, run: dict[str, Any], network: nn.Module | None = None) -> nn.Module | list[Problem]:
    """The network of ``run`` in eval mode, with the weights in ``content``; or what keeps it from being loaded.

    An owner's network is built from ``network``, which is not changed.
    """
    refused = [] if is_own(run) else list(network_problems(content, run))
    stored = stored_tensors(content)
    if refused or stored is None:
        return refused or [Problem(MODEL, "the weights cannot be loaded", "broken", "a safetensors file")]
    try:
        with torch.random.fork_rng(devices=[]):  # random weights are made first, which must not cost the caller's numbers
            model = _built(run, network)
        wanted: Described = {name: (_type(value), tuple(value.shape)) for name, value in model.state_dict().items()}
        refused = list(tensor_problems(stored, wanted, str(run["config"]["model"])))
        if refused:
            return refused
        model.load_state_dict(load(content), strict=True)
    except REFUSALS as error:
        return [Problem(RUN_JSON, "the network of config cannot be built", shown(words_of(error)), f"one that fits {MODEL}")]
    return model.eval()


def words_of(error: Exception) -> str:
    return error.what if isinstance(error, TwinproofError) else f"{type(error).__name__}: {error}"


def _type(value: torch.Tensor) -> str:
    name = str(value.dtype).removeprefix("torch.")
    return _TYPES.get(name, name)


def _built(run: dict[str, Any], network: nn.Module | None) -> nn.Module:
    """The network with random weights, and its noise layers, as ``config`` names them."""
    config, data = run["config"], run["data"]
    shape = tuple(data["shape"])
    if is_own(run):
        if network is None:
            raise ModelError("the network is its owner's", where="network", got="nothing", wanted="the module")
        model: nn.Module = copy.deepcopy(network)
    else:
        model = build_network(config["model"], shape, len(data["classes"]), width=config.get("width", 1))
    noise = config.get("noise_layer")
    if noise is None:
        return model
    # Deviations and scales lie with the weights: the ones given here are replaced.
    if noise["place"] == BOTH_PLACES:
        noisy = with_two_noises(model, shape, 1.0, 1.0, Law(noise["law"]))
        return with_fixed_draws(noisy, shape) if config.get("variant") == "published" else noisy
    form = NoiseForm(
        NoisePlace(noise["place"]),
        Law(noise["law"]),
        RedistributionKind(noise["redistribution"]),
        float(noise["floor"]),
        float(noise["width"]),
    )
    return with_noise(model, shape, form, 1.0)


def owners_network(network: nn.Module) -> OwnersNetwork:
    """First layer and noise of an owner's module, which must be a Sequential for noise to be behind a layer of it."""
    noisy = [one for _, one in network.named_modules(remove_duplicate=False) if _is_noise(one)]
    plain = isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward
    children = [(name, module) for name, module in network._modules.items() if module is not None] if plain else []
    heads = [(name, module) for name, module in children if not _is_noise(module)]
    flattens = bool(heads) and type(heads[0][1]) is nn.Flatten and (heads[0][1].start_dim, heads[0][1].end_dim) == (1, -1)
    place = int(flattens)
    first = _first(*heads[place]) if len(heads) > place else None
    if not noisy:
        return OwnersNetwork(first, flattens, None)
    at = [position for position, (_, module) in enumerate(children) if _is_noise(module)]
    if len(at) != len(noisy) or at not in ([0], [place + 1], [0, place + 2]) or (at != [0] and first is None):
        raise LayerError("noise layers that are not at the input, nor right behind the first linear or convolution layer")
    spreads = [_spread(*children[position]) for position in at]
    law = str(getattr(children[at[-1]][1], "law", ""))
    if at == [0]:
        return OwnersNetwork(first, flattens, Placement(law, None, False, spreads[0]))
    if len(at) == 1:
        return OwnersNetwork(first, flattens, Placement(law, first, flattens, spreads[0]))
    on_input = spreads[0] if str(getattr(children[0][1], "law", "")) == law else None
    if on_input is None:
        raise LayerError("two noises of different laws")
    following = children[at[-1] + 1][1] if len(children) > at[-1] + 1 else None
    kept = isinstance(following, FixedDraws)
    return OwnersNetwork(first, flattens, Placement(law, first, flattens, spreads[1], on_input, kept))


def _is_noise(module: object) -> bool:
    return isinstance(module, NoiseLayer)


def _first(name: str, module: nn.Module) -> First | None:
    """What ``module`` is, if it is a plain layer: a subclass or a hook could compute anything else."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if type(module) is nn.Linear:
        return First(name)
    if type(module) not in (nn.Conv1d, nn.Conv2d, nn.Conv3d) or getattr(module, "padding_mode", None) != "zeros":
        return None
    facts = vars(module)
    padding = facts["padding"] if isinstance(facts["padding"], str) else tuple(facts["padding"])
    return First(name, tuple(facts["stride"]), padding, tuple(facts["dilation"]), int(facts["groups"]))


def _spread(name: str, module: nn.Module) -> Spread:
    spread = getattr(module, "spread", None)
    kind = {"UniformSpread": "uniform", "FixedSpread": "fixed", "LearnedSpread": "learned", "RandomSpread": "random"}.get(
        type(spread).__name__
    )
    if kind is None:
        raise LayerError(f"noise that is spread by {type(spread).__name__}")
    return Spread(name, kind, float(getattr(spread, "floor", 0.0)), float(getattr(spread, "width", 0.0)))


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
    accuracy = block(run, "accuracy")
    said, of = number(accuracy.get("correct")), number(accuracy.get("total"))
    total, correct = len(asked.answers), int((asked.answers == originals.labels).sum())
    # Two GPUs may draw other noise from one seed.
    same = place.same and not (asked.noisy and place.device.type == "cuda")
    allowed = int(asked.close.sum()) if same else ELSEWHERE * total + (math.sqrt(total) if asked.noisy else 0.0)
    wanted = f"{correct} of {total}" + (f", within {math.floor(allowed)}" if allowed >= 1 else "")
    if said is not None and (of != total or abs(said - correct) > allowed):
        yield Problem(RUN_JSON, "accuracy is not that of the network on the test set", f"{said:.0f} of {shown(of)}", wanted)
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
                yield Problem(table.files.csv, what, got, str(asked.answers[places[0]]))


def _classes(scores: Tensor) -> Tensor:
    """The class of each row, or -1 where one of its scores is NaN."""
    return torch.where(scores.isnan().any(dim=1), -1, scores.argmax(dim=1))


def _close(scores: Tensor, scale: Tensor) -> Tensor:
    """Whether rounding may change the order of the two highest scores."""
    first, second = scores.topk(2, dim=1).values.unbind(dim=1)
    return first - second <= CLOSE * scale


def _joined(parts: list[Tensor]) -> NDArray[Any]:
    return np.asarray(torch.cat(parts).cpu().numpy())

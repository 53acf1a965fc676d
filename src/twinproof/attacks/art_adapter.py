"""Attacks of the adversarial-robustness-toolbox (AutoAttack and many others) on the same objectives, under the same checks.

Optional: ``pip install 'twinproof[attacks]'``. What comes back is trusted as little as our own: it is brought into the ball and
the range, judged by the objective, and kept only where it is stronger than the original.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.attacks.objective import Mean, Objective, as_objective, scores_of, untouched
from twinproof.attacks.run import checked_labels, default_batch, judged_result, refuse_nan
from twinproof.attacks.search import AttackResult, Best, Looker, class_count, device_of, global_seed, joined
from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError, MissingExtra
from twinproof.keys import Key
from twinproof.progress import Progress, Silent

ArtFactory = Callable[[Any, Threat], Any]
"""Makes an ART evasion attack from an ART classifier and a threat."""

_ORDERS: dict[str, float] = {"linf": math.inf, "l2": 2, "l1": 1}
# Class in art.attacks.evasion, and which of the settings we know it takes.
_CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "auto-attack": ("AutoAttack", ("norm", "eps", "eps_step", "targeted")),
    "auto-pgd": ("AutoProjectedGradientDescent", ("norm", "eps", "eps_step", "targeted")),
    "auto-cg": ("AutoConjugateGradient", ("norm", "eps", "eps_step", "targeted")),
    "square": ("SquareAttack", ("norm", "eps")),
    "deepfool": ("DeepFool", ()),
    "carlini-l2": ("CarliniL2Method", ("targeted",)),
    "elastic-net": ("ElasticNet", ("targeted",)),
    "hop-skip-jump": ("HopSkipJump", ("norm", "targeted")),
}
ART_ATTACKS = tuple(_CLASSES)
"""Attacks with a name here; any other is a factory away. Those that take no size find what is nearest, and are cut to it."""


def run_with_art(
    attack: str | ArtFactory,
    target: nn.Module | Objective,
    inputs: Tensor,
    labels: Tensor | None,
    threat: Threat,
    *,
    targeted: bool = False,
    key: Key,
    batch: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> AttackResult:
    """Runs an attack of ART by its name (with ART's own ``options``), or one that a factory makes.

    Promises what ``run_attack`` does with the best point kept. Global generators are seeded from the key and restored.
    """
    objective, progress = as_objective(target), progress or Silent()
    device = device_of(objective, inputs)
    batch = default_batch(device) if batch is None else batch
    make = _named(attack, targeted, options) if isinstance(attack, str) else attack
    require_art()
    labels = checked_labels(objective, inputs, labels, threat, targeted=targeted, key=key, batch=batch)
    progress.start("attacking", len(inputs))
    results = []
    for first in range(0, max(len(inputs), 1), batch):
        rows = slice(first, first + batch)
        there, wanted = inputs[rows].detach().to(device), labels[rows].to(device)
        results.append(_attack_batch(make, objective, there, wanted, threat, targeted, key, first).to(inputs.device))
        progress.advance(len(results[-1]))
    return joined(results)


def require_art() -> None:
    """Raises MissingExtra where ART, or what its AutoAttack imports, is not installed."""
    for module, package in (("art", "adversarial-robustness-toolbox"), ("multiprocess", "multiprocess")):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("attacks", package, "an attack of another library")


class _AsModule(nn.Module):
    """The objective as a network for ART. The real one is not registered: ART clears the gradients of what it is given."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self._held = (objective,)

    def forward(self, inputs: Tensor) -> Tensor:
        """The scores, or the log of the mean probability over the draws."""
        (objective,) = self._held
        draws = objective.looking
        if draws.count == 1 and draws.sigma == 0:
            return scores_of(objective.model, inputs)
        copies = inputs.unsqueeze(1).expand(-1, draws.count, *inputs.shape[1:])
        if draws.sigma > 0:
            copies = copies + draws.sigma * torch.randn_like(copies)
        scores = scores_of(objective.model, copies.reshape(-1, *inputs.shape[1:])).view(len(inputs), draws.count, -1)
        logs = scores.log_softmax(dim=2)
        return logs.mean(dim=1) if draws.mean is Mean.LOSS else logs.logsumexp(dim=1) - math.log(draws.count)


def _named(name: str, targeted: bool, options: dict[str, Any]) -> ArtFactory:
    if name not in _CLASSES:
        raise ConfigError(
            "unknown attack", where="attack", got=name, wanted=", ".join(ART_ATTACKS), fix="or pass a function that makes it"
        )
    kind, taken = _CLASSES[name]
    if targeted and "targeted" not in taken:
        raise ConfigError(f"{name} cannot be targeted", where="targeted", got=True, wanted="False for this attack")

    def make(classifier: Any, threat: Threat) -> Any:
        from art.attacks import evasion

        # Its first step is twice eps_step, which the authors of AutoAttack set to twice the size.
        known = {"norm": _ORDERS[threat.norm], "eps": threat.size, "eps_step": threat.size, "targeted": targeted}
        try:
            return getattr(evasion, kind)(classifier, **{**{word: known[word] for word in taken}, **options})
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name} cannot be set up like this", where="attack", got=error, wanted="ART's options"
            ) from error

    return make


def _classifier(objective: Objective, inputs: Tensor, threat: Threat) -> Any:
    from art.estimators.classification import PyTorchClassifier

    return PyTorchClassifier(
        model=_AsModule(objective),
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(inputs.shape[1:]),
        nb_classes=class_count(objective, inputs),
        clip_values=(threat.low, threat.high),
        device_type="gpu" if inputs.device.type == "cuda" else "cpu",
    )


@contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """ART draws its random starts from numpy's global generator."""
    before = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(before)


def _generated(attack: Any, inputs: Tensor, labels: Tensor) -> Any:
    for part in (attack, *getattr(attack, "attacks", ())):
        if hasattr(part, "verbose"):
            part.verbose = False  # ART's own bars; ours say how far it is
    try:
        return attack.generate(inputs.cpu().numpy().copy(), labels.cpu().numpy())
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            "the attack refuses these inputs", where=type(attack).__name__, got=error, wanted="inputs that this attack can take"
        ) from error


def _attack_batch(
    make: ArtFactory, objective: Objective, inputs: Tensor, labels: Tensor, threat: Threat, targeted: bool, key: Key, first: int
) -> AttackResult:
    seed, device = key.seed("art", first), inputs.device
    generator = torch.Generator(device).manual_seed(seed)
    with untouched(objective.model), global_seed(seed, device), _numpy_seed(seed):
        looker = Looker(objective, inputs, generator, key.seed("art-judge", first))
        start = looker.judge(inputs, labels)
        refuse_nan(objective.model, start.losses)
        best = Best(inputs, start, labels, targeted=targeted)
        if threat.size > 0 and len(inputs):
            attack = make(_classifier(objective, inputs, threat), threat)
            found = _generated(attack, inputs, labels)
            points = threat.admit(torch.as_tensor(found, dtype=inputs.dtype, device=device), inputs)
            best.offer(points, looker.judge(points, labels))
    return judged_result(best.points, best.look, start, inputs, labels, threat, targeted=targeted)

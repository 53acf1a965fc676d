"""Attacking many inputs so that a kill loses one batch at most: each finished batch is a file, and a resume makes the rest.

A batch is a function of its rows, the settings and the key alone, so that nothing else has to be kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from twinproof.attacks.objective import Objective, as_objective
from twinproof.attacks.run import checked_labels, default_batch, run_attack
from twinproof.attacks.search import ROWS, Attack, AttackResult, device_of, joined
from twinproof.attacks.threat import Threat
from twinproof.compute.ranks import ALONE, Ranks, in_rounds
from twinproof.errors import RunError
from twinproof.files import canonical_json, write_atomic, write_json
from twinproof.keys import Key
from twinproof.progress import Progress, Silent
from twinproof.runs.reading import read_json

SETTINGS = "attack.json"
_FORMAT = 1


def attack_in_folder(
    folder: Path,
    attack: Attack,
    target: nn.Module | Objective,
    inputs: Tensor,
    labels: Tensor | None,
    threat: Threat,
    *,
    targeted: bool = False,
    key: Key,
    batch: int | None = None,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> AttackResult:
    """``run_attack`` over all inputs, kept in ``folder`` batch by batch; called again, it goes on where it stopped.

    Several ``ranks`` share out the batches; all call this alike and have all results, and rank 0 writes.

    Guarantees
        Killed at any moment and called again with the same arguments on the same machine, it ends with the same bits as
        without the kill. Results of other arguments (another attack, threat, network, key, input or label) are refused, not
        mixed in. Nothing is written where the arguments are refused.
    """
    objective, progress = as_objective(target), progress or Silent()
    batch = default_batch(device_of(objective, inputs)) if batch is None else batch
    labels = checked_labels(objective, inputs, labels, threat, targeted=targeted, key=key, batch=batch)
    binding = _binding(attack, objective, inputs, labels, threat, targeted, key, batch)
    ranks.agree("the attack", binding)
    firsts = range(0, max(len(inputs), 1), batch)
    done = _done(folder, binding, firsts, ranks)
    progress.start("attacking", len(inputs), sum(len(inputs[first : first + batch]) for first in done))
    results = {first: _read(_file(folder, first), binding, inputs.device) for first in done}

    def attacked(first: int) -> bytes:
        rows = slice(first, first + batch)
        made = run_attack(
            attack,
            objective,
            inputs[rows],
            labels[rows],
            threat,
            targeted=targeted,
            key=key,
            batch=batch,
            first_index=first,
        )
        return _content(made, binding)

    for first, content in in_rounds(ranks, [first for first in firsts if first not in done], attacked):
        if ranks.is_first:
            write_atomic(_file(folder, first), content)
        rows = {name: value.to(inputs.device) for name, value in load(content).items()}
        results[first] = AttackResult(**rows, targeted=targeted)
        progress.advance(len(results[first]))
    return joined([results[first] for first in firsts])


def _done(folder: Path, binding: str, firsts: Sequence[int], ranks: Ranks) -> list[int]:
    """The batches that were made before, by their first row: what rank 0 finds, for all."""
    found: list[int] = []
    if ranks.is_first:
        _take_up(folder, binding)
        found = [first for first in firsts if _file(folder, first).is_file()]
    return list(json.loads(ranks.from_first(json.dumps(found).encode())))


def _binding(
    attack: Attack,
    objective: Objective,
    inputs: Tensor,
    labels: Tensor,
    threat: Threat,
    targeted: bool,
    key: Key,
    batch: int,
) -> str:
    """A digest of everything that the result depends on."""
    digest = hashlib.sha256(key.secret)
    described = [
        repr(attack),
        repr(threat),
        _without_model(objective),
        targeted,
        batch,
        _FORMAT,
        device_of(objective, inputs).type,
    ]
    digest.update(canonical_json(described).encode())
    digest.update(repr(objective.model).encode())
    state = objective.model.state_dict()
    for name, tensor in [*sorted(state.items()), ("inputs", inputs), ("labels", labels)]:
        digest.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _without_model(objective: Objective) -> list[Any]:
    values = {name: str(value) for name, value in vars(objective).items() if name != "model"}
    return [type(objective).__name__, values]


def _take_up(folder: Path, binding: str) -> None:
    """Begins a folder, or makes sure that the one there belongs to the same attack."""
    path = folder / SETTINGS
    if not path.is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise RunError(
                "the folder for the attack holds other things", where=str(folder), got="files", wanted="a new or empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"format": _FORMAT, "binding": binding})
        return
    if read_json(path).record.get("binding") != binding:
        raise _other_attack(path)


def _other_attack(path: Path) -> RunError:
    return RunError(
        "the folder belongs to another attack",
        where=str(path),
        got="results of other settings, another network, key or data",
        wanted="the same arguments as when it was begun",
        fix="use a new folder",
    )


def _file(folder: Path, first: int) -> Path:
    return folder / f"rows-{first:09d}.safetensors"


def _content(result: AttackResult, binding: str) -> bytes:
    rows = {name: getattr(result, name).cpu().contiguous() for name in ROWS}
    return save(rows, metadata={"binding": binding, "targeted": str(int(result.targeted))})


def _read(path: Path, binding: str, device: torch.device) -> AttackResult:
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata()
            rows = {name: handle.get_tensor(name).to(device) for name in ROWS}
        bound_to, targeted = metadata["binding"], metadata["targeted"] == "1"
    except (SafetensorError, KeyError, TypeError, OSError) as error:
        raise RunError("a finished batch cannot be read", where=str(path), got=error, wanted="a file of this attack") from error
    if bound_to != binding:
        raise _other_attack(path)
    return AttackResult(**rows, targeted=targeted)

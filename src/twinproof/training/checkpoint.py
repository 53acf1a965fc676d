"""Checkpoints in ``private/``: one file, replaced in one step, never pickled.

Everything random follows from the run's key and the step number, so weights, their average, optimiser state and the step are
the whole state of training.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from twinproof.errors import RunError
from twinproof.files import write_atomic
from twinproof.training.loop import WeightAverage

FILE = "checkpoint.safetensors"


def save_checkpoint(
    private: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    binding: str,
    average: WeightAverage | None = None,
) -> None:
    """Writes the state after ``step`` steps; a kill leaves the previous checkpoint or this one, never a mix.

    ``binding`` names the run (its settings and its key), so that no other run goes on from this state.
    """
    tensors = {f"model/{name}": value.detach() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"optimizer/{name}/{key}": value.detach() for key, value in state.items() if isinstance(value, Tensor)}
    if average is not None:
        tensors |= {f"average/{name}": value for name, value in average.state().items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    content = save(tensors, metadata={"step": str(step), "binding": binding})
    write_atomic(private / FILE, content)


def load_checkpoint(
    private: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    binding: str,
    average: WeightAverage | None = None,
) -> int:
    """Restores the last checkpoint and returns its step; 0, and nothing changed, where there is none yet."""
    path = private / FILE
    if not path.is_file():
        return 0
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata()
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
        step, bound_to = int(metadata["step"]), metadata["binding"]
        if step < 0:
            raise ValueError(f"step {step}")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise _unusable("the checkpoint cannot be read", path, error) from error
    if bound_to != binding:
        raise _unusable("the checkpoint belongs to another run", path, "a state with other settings or another key")
    try:
        if average is not None:
            average.restore(_part(tensors, "average/"))
        model.load_state_dict(_part(tensors, "model/"))
    except KeyError as error:
        raise _unusable("the checkpoint has no average of the weights", path, f"nothing for {error}") from error
    except RuntimeError as error:
        raise _unusable("the checkpoint does not fit the network", path, str(error).partition("\n")[0]) from error
    for name, parameter in model.named_parameters():
        found = _part(tensors, f"optimizer/{name}/")
        for key, value in found.items():
            if value.ndim and value.shape != parameter.shape:
                got = f"{key} of {name} with shape {tuple(value.shape)}"
                raise _unusable("the checkpoint does not fit the network", path, got)
        if found:
            optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}
    return step


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _unusable(what: str, path: Path, got: object) -> RunError:
    fix = "restore the checkpoint, or start a new run"
    return RunError(what, where=str(path), got=got, wanted="a checkpoint of this run", fix=fix)

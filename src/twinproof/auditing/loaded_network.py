"""The network that a run names, built from ``twinproof.layers`` and loaded strictly with the weights that were read.

What a layer computes cannot be read from its numbers, so the layers are the package's own. Noise, counting and radii are not:
whoever asks this network brings its own.

Guarantees
    A network is returned only if the file holds exactly its tensors: names, types and shapes, of the noise layers and kept
    draws too. Nothing is built that the table of ``verify_network`` refuses, so nothing larger than the weights that are there.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_model import FILE
from twinproof.auditing.verify_network import Tensors, is_own, network_problems, stored_tensors, tensor_problems
from twinproof.auditing.verify_run_json import FILE as RUN_JSON
from twinproof.errors import ModelError, TwinproofError

if TYPE_CHECKING:
    import torch
    from torch import nn

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
        return refused or [Problem(FILE, "the weights cannot be loaded", "broken", "a safetensors file")]
    import torch
    from safetensors.torch import load

    try:
        with torch.random.fork_rng(devices=[]):  # random weights are made first, which must not cost the caller's numbers
            model = _built(run, network)
        wanted: Tensors = {name: (_type(value), tuple(value.shape)) for name, value in model.state_dict().items()}
        refused = list(tensor_problems(stored, wanted, str(run["config"]["model"])))
        if refused:
            return refused
        model.load_state_dict(load(content), strict=True)
    except REFUSALS as error:
        return [Problem(RUN_JSON, "the network of config cannot be built", shown(words_of(error)), f"one that fits {FILE}")]
    return model.eval()


def words_of(error: Exception) -> str:
    """What went wrong, in a few words."""
    return error.what if isinstance(error, TwinproofError) else f"{type(error).__name__}: {error}"


def _type(value: torch.Tensor) -> str:
    """The type of a tensor in the words of safetensors."""
    name = str(value.dtype).removeprefix("torch.")
    return _TYPES.get(name, name)


def _built(run: dict[str, Any], network: nn.Module | None) -> nn.Module:
    """The network with random weights, and its noise layers, as ``config`` names them."""
    from twinproof.layers.fixed_draws import with_fixed_draws
    from twinproof.layers.networks import build_network
    from twinproof.layers.noise import Law, Place
    from twinproof.layers.noise_placement import BOTH_PLACES, NoiseForm, RedistributionKind, with_noise, with_two_noises

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
        Place(noise["place"]),
        Law(noise["law"]),
        RedistributionKind(noise["redistribution"]),
        float(noise["floor"]),
        float(noise["width"]),
    )
    return with_noise(model, shape, form, 1.0)

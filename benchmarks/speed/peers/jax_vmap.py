"""JAX: ``jit(vmap(grad))``, for the small MNIST network, which is written out here with the weights of ours."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speed.peers.peer import Answer, NotRun, Peer, Step
from speed.workloads import CLIP, Task


def _logits(jax: Any, weights: dict[str, Any], images: Any) -> Any:
    """The network of Tramer and Boneh on images (rows, 1, height, width)."""
    lax, tanh = jax.lax, jax.numpy.tanh
    x = images
    for layer, padding in (("0", 2), ("3", 0)):
        bias = weights[f"{layer}.bias"][None, :, None, None]
        x = tanh(lax.conv_general_dilated(x, weights[f"{layer}.weight"], (2, 2), [(padding, padding)] * 2) + bias)
        x = lax.reduce_window(x, -float("inf"), lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "VALID")
    x = x.reshape(x.shape[0], -1)
    x = tanh(x @ weights["7.weight"].T + weights["7.bias"])
    return x @ weights["9.weight"].T + weights["9.bias"]


def _clipped_sum(jax: Any) -> Any:
    """The compiled function from weights, inputs (records, copies, ...) and labels to the clipped sum."""
    numpy = jax.numpy

    def loss(weights: dict[str, Any], copies: Any, label: Any) -> Any:
        return -jax.nn.log_softmax(_logits(jax, weights, copies))[:, label].mean()

    def clipped(weights: dict[str, Any], inputs: Any, labels: Any) -> Any:
        found = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(weights, inputs, labels)
        squares = sum((value.reshape(value.shape[0], -1) ** 2).sum(1) for value in found.values())
        factors = numpy.minimum(1.0, CLIP / numpy.maximum(numpy.sqrt(squares), 1e-12))
        return {name: numpy.tensordot(factors, value, axes=1) for name, value in found.items()}

    return jax.jit(clipped)


def vmap_jit(task: Task) -> Step:
    """The clipped sum, compiled once; results are waited for and copied back only where somebody reads them."""
    if task.workload.network != "tramer-boneh-cnn":
        raise NotRun("written for the small MNIST network only")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of a GPU's memory at once
    if torch.get_num_threads() == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    jax = importlib.import_module("jax")
    if (jax.default_backend() == "gpu") != (task.device.type == "cuda"):
        raise NotRun(f"JAX would run on {jax.default_backend()}, the others on {task.device.type}")
    step = _clipped_sum(jax)
    weights = {name: _to_jax(jax, value) for name, value in task.model().state_dict().items()}
    parts = [(_to_jax(jax, rows), _to_jax(jax, labels)) for rows, labels in task.passes()]

    def run() -> Answer:
        total = None
        for part in parts:
            found = step(weights, *part)
            total = found if total is None else jax.tree_util.tree_map(jax.numpy.add, total, found)
        done = jax.block_until_ready(total)
        return {name: torch.from_numpy(np.array(value)) for name, value in done.items()}

    return Step(run, shows_memory=False)  # its allocator keeps what a step took


def _to_jax(jax: Any, value: Tensor) -> Any:
    return jax.numpy.asarray(value.detach().cpu().numpy())


JAX = (Peer("JAX jit(vmap(grad))", "jax", vmap_jit, package="jax"),)

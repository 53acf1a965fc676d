"""Which device to use, said clearly when the one asked for is not there."""

from __future__ import annotations

import platform

import torch

from twinproof.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """'auto' takes a GPU where there is one; asking for an absent GPU is an error, not a silent change."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (number and not (number.isascii() and number.isdecimal()))):
        raise ConfigError("unknown device", where="device", got=repr(name), wanted="auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not (torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count()):
        raise ConfigError("there is no GPU that torch can use", where="device", got=name, wanted="cpu or auto")
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """The device in words, for records."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return f"cpu: {platform.machine()}, {torch.get_num_threads()} threads"

"""What can be checked with the network and the test set at hand, and what is left unchecked without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinproof.audit.evidence import RunFolder
from twinproof.audit.loaded_network import loaded_network
from twinproof.audit.verification import Findings, Problem
from twinproof.audit.verify_model import FILE as MODEL
from twinproof.audit.verify_network import is_own, network_problems

if TYPE_CHECKING:
    from torch import nn


def verify_network(folder: RunFolder, run: dict[str, Any], network: nn.Module | None, findings: Findings) -> None:
    """Whether the weights are those of the network that run.json names."""
    content = folder.content(MODEL)
    if isinstance(content, Problem):
        return  # which is told where the weights are read
    if not is_own(run):
        findings.check("network", network_problems(content, run), "names, types and shapes of the weights")
    elif network is None:
        findings.leave("the weights against the owner's network (its module was not given)")
    else:
        loaded = loaded_network(content, run, network)
        findings.check("network", loaded if isinstance(loaded, list) else (), "names, types and shapes of the weights")

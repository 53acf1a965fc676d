"""The methods of the comparison, in the order of the table."""

from importlib.metadata import PackageNotFoundError, version

from speed.peers.jax_vmap import JAX
from speed.peers.opacus_modes import OPACUS
from speed.peers.ours import OURS, WHOLE_STEP
from speed.peers.peer import Peer
from speed.peers.torch_modes import SGD, VMAP_GRAD

PEERS: tuple[Peer, ...] = (*SGD, *OURS, *WHOLE_STEP, *OPACUS, *VMAP_GRAD, *JAX)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(peer.family for peer in PEERS))


def peer_versions() -> dict[str, str]:
    """The installed version of each package that a peer needs."""
    found = {}
    for package in {peer.package for peer in PEERS if peer.package is not None}:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found

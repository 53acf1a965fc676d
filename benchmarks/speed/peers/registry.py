"""The methods of the comparison, in the order of the table."""

from speed.peers.jax_vmap import JAX
from speed.peers.opacus_modes import OPACUS
from speed.peers.ours import OURS
from speed.peers.peer import Peer
from speed.peers.sgd import SGD
from speed.peers.vmap_grad import VMAP_GRAD
from speed.peers.whole_step import WHOLE_STEP

PEERS: tuple[Peer, ...] = (*SGD, *OURS, *WHOLE_STEP, *OPACUS, *VMAP_GRAD, *JAX)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(peer.family for peer in PEERS))

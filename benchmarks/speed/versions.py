"""Versions of the peers, for the record."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from speed.peers.registry import PEERS


def peer_versions() -> dict[str, str]:
    """The installed version of each package that a peer needs."""
    found = {}
    for package in {peer.package for peer in PEERS if peer.package is not None}:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found

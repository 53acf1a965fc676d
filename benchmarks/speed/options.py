"""The options of ``run.py`` and what they select."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speed.peers.peer import Peer
from speed.peers.registry import FAMILIES, PEERS
from speed.workloads import WORKLOADS, Workload
from twinproof.certification.method import Sampling

CERTIFICATION = "certification"


@dataclass(frozen=True)
class Selection:
    """What one run measures; an empty ``batches`` stands for each workload's own."""

    workloads: tuple[str, ...]
    batches: tuple[int, ...]
    copies: tuple[int, ...]
    peers: tuple[Peer, ...]
    turns: int
    threads: int
    device: str
    records_per_pass: int | None
    images: int | None
    sampling: Sampling
    out: Path | None

    def tasks(self, device: str) -> list[tuple[Workload, int, int]]:
        """Workload, batch and copies of every private step to measure on this kind of device."""
        chosen = [WORKLOADS[name] for name in self.workloads if name != CERTIFICATION]
        return [
            (work, batch, copies) for work in chosen for batch in self.batches or work.batches[device] for copies in self.copies
        ]

    def certification_images(self, device: str) -> int:
        """How many images to certify; 0 where certification was not asked for."""
        if CERTIFICATION not in self.workloads:
            return 0
        return self.images or {"cpu": 10, "cuda": 500}[device]


def parse(arguments: Sequence[str] | None, description: str) -> Selection:
    """Reads the command line; ``--quick`` changes the defaults, never what is said explicitly."""
    given = _parser(description).parse_args(arguments)
    workloads = given.workload or (["mnist-cnn", CERTIFICATION] if given.quick else [*WORKLOADS, CERTIFICATION])
    return Selection(
        workloads=tuple(workloads),
        batches=tuple(given.batch or ((64, 256) if given.quick else ())),
        copies=tuple(given.copies or (1, 3)),
        peers=tuple(peer for peer in PEERS if peer.family in (given.peer or FAMILIES)),
        turns=given.turns,
        threads=given.threads,
        device=given.device,
        records_per_pass=given.records_per_pass,
        images=given.images or (3 if given.quick else None),
        sampling=Sampling(n0=100, n=given.draws or (2000 if given.quick else 10_000)),
        out=given.out,
    )


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a couple of minutes: the small network and a few certificates")
    parser.add_argument("--workload", nargs="+", choices=[*WORKLOADS, CERTIFICATION], help="default: all")
    parser.add_argument("--batch", nargs="+", type=_positive, help="records of a step; default: by workload and device")
    parser.add_argument("--copies", nargs="+", type=_positive, help="copies of each record; default: 1 3")
    parser.add_argument("--peer", nargs="+", choices=FAMILIES, help="families of methods; default: all")
    parser.add_argument("--turns", type=_positive, default=3, help="turns that count, after one that warms up; default: 3")
    parser.add_argument("--threads", type=_positive, default=1, help="threads on a CPU; default: 1")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--records-per-pass", type=_positive, help="records in memory at a time, for every method")
    parser.add_argument("--images", type=_positive, help="images to certify")
    parser.add_argument("--draws", type=_positive, help="draws n of a certificate; default: 10000, quick 2000")
    parser.add_argument("--out", type=Path, help="write everything as JSON to this file")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value

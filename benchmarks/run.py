"""Measures twinproof beside its peers on this machine, in one run: private steps and certification.

    make bench                                        (all networks: an estimated half hour on a CPU core)
    python benchmarks/run.py --quick                  (a couple of minutes)
    python benchmarks/run.py --workload wrn-16-4 --batch 64 --copies 1 --peer twinproof opacus --out result.json

Only ratios inside one run mean anything elsewhere. docs/benchmarks.md says what is measured and how to read it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

# Before torch starts its threads: two that spin on a busy machine slow each other down by orders of magnitude.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from speed.certification import measure_certification
from speed.options import Selection, parse
from speed.peers.registry import peer_versions
from speed.private_step import measure_task
from speed.table import certification_table, step_table
from speed.timing import measure_limits
from speed.workloads import make_task
from twinproof.compute.devices import describe_device, resolve_device
from twinproof.errors import UserError
from twinproof.files import write_json
from twinproof.runs.layout import software_versions, utc_now

FORMAT = "twinproof-benchmark/1"


def measure(selection: Selection) -> dict[str, Any]:
    """Runs the selection, prints each table when it is ready, and returns all of it; written after every table if asked."""
    device = resolve_device(selection.device)
    torch.set_num_threads(selection.threads)
    limits = measure_limits(device)
    result: dict[str, Any] = {
        "format": FORMAT,
        "date": utc_now(),
        "device": describe_device(device),
        "versions": {**software_versions(), **peer_versions()},
        "threads": selection.threads,
        "turns": selection.turns,
        "limits": limits.as_dict(),
        "private_step": [],
        "certification": [],
    }
    print(f"{result['device']}; matrix product {limits.operations_per_second / 1e9:,.0f} GFLOP/s,", end=" ")
    print(f"copy {limits.bytes_per_second / 1e9:,.1f} GB/s; {selection.turns} turns\n", flush=True)
    for workload, batch, copies in selection.tasks(device.type):
        task = make_task(workload, batch, copies, device, selection.records_per_pass)
        rows = measure_task(task, selection.peers, selection.turns, limits)
        result["private_step"] += [row.as_dict() for row in rows]
        print(step_table(rows), "\n", sep="", flush=True)
        _store(result, selection)
        _release(device)
    images = selection.certification_images(device.type)
    if images:
        certified = measure_certification(device, images, selection.sampling, selection.turns, limits)
        result["certification"] = [row.as_dict() for row in certified]
        print(certification_table(certified), flush=True)
        _store(result, selection)
    return result


def _store(result: dict[str, Any], selection: Selection) -> None:
    if selection.out is not None:
        write_json(selection.out, result)


def _release(device: torch.device) -> None:
    """Gives back what the last task's methods held, so that the next one starts with the whole device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    try:
        measure(parse(arguments, __doc__ or ""))
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

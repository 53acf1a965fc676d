"""Tests of ranks, interruption and federation, again and again beside busy processes: what fails now and then fails here.

    python benchmarks/busy_tests.py --times 20 --out results/busy-tests.json

Two processes spin while the tests run, one for each core of a small machine. Exits with 1 if any round fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = (
    "tests/compute/test_ranks.py",
    "tests/compute/test_heartbeat.py",
    "tests/training/test_distributed_sums.py",
    "tests/recipes/test_recipes_ranks.py",
    "tests/recipes/test_recipes_kill.py",
    "tests/certification/test_certify_ranks.py",
    "tests/evaluation/test_under_attack_ranks.py",
    "tests/cli/test_cli_ranks.py",
    "tests/cli/test_cli.py::test_ctrl_c_says_how_to_go_on",
    "tests/federated",
)


def spin() -> None:
    """Keeps a core busy."""
    while True:
        pass


def rounds(times: int) -> list[dict[str, Any]]:
    """Seconds, load and outcome of each round."""
    done: list[dict[str, Any]] = []
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *TESTS]
    for number in range(1, times + 1):
        began = time.monotonic()
        # In the background, as a shell starts it: SIGINT is ignored there.
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        last = result.stdout.strip().splitlines()[-1:]
        seconds = round(time.monotonic() - began)
        done.append({"passed": result.returncode == 0, "seconds": seconds, "load": round(os.getloadavg()[0], 1), "said": last})
        print(f"round {number}: {last} (load {done[-1]['load']})", flush=True)
        if result.returncode:
            print(result.stdout[-20_000:], flush=True)
    return done


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="processes that spin beside the tests")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    spinners = [multiprocessing.Process(target=spin, daemon=True) for _ in range(arguments.busy)]
    for spinner in spinners:
        spinner.start()
    try:
        done = rounds(arguments.times)
    finally:
        for spinner in spinners:
            spinner.kill()
    made = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": platform.machine(), "cores": os.cpu_count()}
    passed = sum(entry["passed"] for entry in done)
    record = {"made": made, "busy": arguments.busy, "tests": TESTS, "passed": passed, "times": len(done), "rounds": done}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(0 if passed == len(done) else 1)


if __name__ == "__main__":
    main()

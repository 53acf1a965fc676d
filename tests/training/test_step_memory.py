"""A private step takes the same memory for 256 and for 65,536 drawn records, in passes of one size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MORE_RECORDS = 65_536 - 256
# The draw itself is a list of record numbers, of which a few copies exist for a moment; one input alone has 1,024 bytes.
BYTES_PER_DRAWN_RECORD = 64


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    program = Path(__file__).with_name("step_memory.py")
    # Freed memory goes back to the system at once, so that the kernel's mark is of what the step holds.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "131072"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, env=environment)
    found: dict[str, int | None] = json.loads(done.stdout)
    if None in found.values():
        pytest.skip("this system does not tell a process its peak memory")
    return {name: value for name, value in found.items() if value is not None}


def grows_with_the_draw(few: int, many: int) -> bool:
    return many - few > BYTES_PER_DRAWN_RECORD * MORE_RECORDS


def test_memory_does_not_grow_with_the_draw(peaks: dict[str, int]) -> None:
    assert not grows_with_the_draw(peaks["few"], peaks["all"])


def test_planted_path_that_keeps_every_pass_is_seen(peaks: dict[str, int]) -> None:
    assert grows_with_the_draw(peaks["few"], peaks["all, kept"])
    assert peaks["all, kept"] > 20 * peaks["all"]

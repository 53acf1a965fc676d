"""The three distributions as wheels, and the verifier alone in an empty environment, without PyTorch, on a run of each format.

    python benchmarks/verifier_alone.py --out results/verifier-alone.json

Needs a package index for the verifier's few dependencies. A time is that of the whole command, start of Python included; the
least of three.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import venv
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
RUNS = {number: ROOT / "tests" / "fixtures" / f"format-{number}" / "demo" for number in (1, 2, 3)}
DISTRIBUTIONS = {"twinproof": ROOT, "twinproof-verify": ROOT / "verifier", "twinproof-papers": ROOT / "papers"}


# Nothing of this process's own packages.
LEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


class NoIndex(RuntimeError):
    """Packages cannot be downloaded here."""


def pip(python: str, *arguments: str) -> None:
    """Calls pip; raises ``NoIndex`` where nothing can be downloaded."""
    done = subprocess.run([python, "-m", "pip", *arguments, "--quiet"], capture_output=True, text=True, env=LEAN)
    if done.returncode and re.search(r"No matching distribution|Connection|ConnectTimeout|Temporary failure", done.stderr):
        raise NoIndex(done.stderr)
    if done.returncode:
        raise SystemExit(done.stderr)


def build_wheels(folder: Path) -> dict[str, Path]:
    """A wheel of each distribution."""
    for place in DISTRIBUTIONS.values():
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), str(place))
    return {name: next(folder.glob(f"{name.replace('-', '_')}-[0-9]*.whl")) for name in DISTRIBUTIONS}


def requirements(wheel: Path) -> tuple[str, list[str]]:
    """A wheel's version, and what it requires of the other two distributions."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = HeaderParser().parsestr(archive.read(name).decode())
    needed = said.get_all("Requires-Dist") or []
    return str(said["Version"]), [line for line in needed if line.startswith("twinproof") and "extra ==" not in line]


def empty_environment(folder: Path, wheel: Path) -> Path:
    """The Python of a new environment that holds the verifier and what it requires, in the versions of constraints.txt."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip(str(python), "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    return python


def verify_alone(python: Path, root: Path, times: int = 1) -> dict[str, Any]:
    """The verdict of ``twinproof-verify`` on a run, and how long the command took at best."""
    seconds = []
    for _ in range(times):
        began = time.monotonic()
        command = [str(python.parent / "twinproof-verify"), str(root), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=LEAN, cwd=root)
        seconds.append(time.monotonic() - began)
    answer = json.loads(done.stdout)
    return {"exit code": done.returncode, "ok": answer["ok"], "problems": len(answer["problems"]), "seconds": min(seconds)}


def has_torch(python: Path) -> bool:
    """Whether PyTorch can be imported in an environment."""
    return subprocess.run([python, "-c", "import torch"], capture_output=True, env=LEAN, cwd=python.parent).returncode == 0


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels = build_wheels(Path(folder))
        python = empty_environment(Path(folder) / "alone", wheels["twinproof-verify"])
        found = {f"format {number}": verify_alone(python, root, times=3) for number, root in RUNS.items()}
        made = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": platform.machine(), "cores": os.cpu_count()}
        answer = {"made": made, "torch": has_torch(python), "wheels": {n: requirements(w) for n, w in wheels.items()}}
        arguments.out.write_text(json.dumps({**answer, "runs": found}, indent=1) + "\n")
    sys.stdout.write(arguments.out.read_text())


if __name__ == "__main__":
    main()

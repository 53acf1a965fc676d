"""The verifier stands alone: it imports neither the library nor torch, is quick, and few modules are crossed."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import twinproof_verify
from synthetic_run import bind

SOURCE = Path(twinproof_verify.__file__).parent
FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"
RUNS = ["format-1/demo", "format-1/hgm-pixeldp", "format-1/stobatch", "format-2/demo", "format-3/demo"]
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "twinproof"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def imported(text: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(text)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


def test_the_source_imports_neither_the_library_nor_torch() -> None:
    assert imported("from twinproof.errors import RunError\nimport torch.nn\n") == {"twinproof", "torch"}
    own = {"__future__", "twinproof_verify", "dp_accounting", "numpy", "pydantic", "safetensors", "scipy", "typer"}
    for path in SOURCE.glob("*.py"):
        assert imported(path.read_text()) <= own | set(sys.stdlib_module_names), path.name


@pytest.mark.parametrize("name", RUNS)
def test_kept_runs_verify_where_both_are_blocked(name: str) -> None:
    call = f"sys.argv = ['twinproof-verify', {str(FIXTURES / name)!r}, '--json']"
    program = f"{BLOCKED}\nfrom twinproof_verify.cli import run\n{call}\nrun()"
    made = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    answer = json.loads(made.stdout)
    assert (answer["ok"], answer["problems"]) == (True, [])


def test_the_simplest_run_crosses_few_modules(tmp_path: Path) -> None:
    root = Path(shutil.copytree(FIXTURES / "format-2" / "demo", tmp_path / "run"))
    for path in root.glob("attacks.*"):
        path.unlink()
    bind(root)
    program = f"""
import sys
from twinproof_verify import verify
assert verify({str(root)!r}).ok
print(*sorted(name for name in sys.modules if name.startswith("twinproof_verify")))
"""
    made = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert len(made.stdout.split()) <= 15, made.stdout


def test_library_and_verifier_are_of_one_version() -> None:
    root = Path(__file__).parents[2]
    library, verifier = (tomllib.loads((root / name / "pyproject.toml").read_text())["project"] for name in (".", "verifier"))
    assert library["version"] == verifier["version"] == twinproof_verify.__version__
    assert f"twinproof-verify=={verifier['version']}" in library["dependencies"]

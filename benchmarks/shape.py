"""The shape of the house: lines, files, longest pieces, and how many modules the simplest work crosses.

python benchmarks/shape.py --out results/shape.json
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
PLACES = {
    "library": "src/twinproof",
    "verifier": "verifier/src/twinproof_verify",
    "papers": "papers/src/twinproof_papers",
    "tests": "tests",
    "verifier tests": "verifier/tests",
    "papers tests": "papers/tests",
    "benchmarks": "benchmarks",
}
SETTINGS_BASES = ("BaseModel", "Settings", "Record")


def functions_of(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module."""
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many arguments a function takes, ``self`` and ``cls`` aside."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def lazy_imports(tree: ast.Module) -> int:
    """Imports inside functions."""
    return sum(isinstance(node, (ast.Import, ast.ImportFrom)) for function in functions_of(tree) for node in ast.walk(function))


def fields(node: ast.ClassDef) -> int:
    """Annotated fields of a class."""
    return sum(isinstance(line, ast.AnnAssign) for line in node.body)


def is_record(node: ast.ClassDef) -> bool:
    """Whether a class is a frozen dataclass or a pydantic model."""
    words = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
    return any("dataclass" in word or word.endswith(SETTINGS_BASES) for word in words)


def measured(folder: Path) -> dict[str, Any]:
    """Counts over all files below a folder."""
    files = sorted(path for path in folder.rglob("*.py") if "fixtures" not in path.parts)
    texts = {path: path.read_text() for path in files}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    functions = [(path, f) for path, tree in trees.items() for f in functions_of(tree)]
    length = [(f.end_lineno or 0) - f.lineno + 1 for _, f in functions]
    exempt = ("cli", "kernel")
    wide = [
        f"{path.stem}.{f.name}: {parameters(f)}"
        for path, f in functions
        if parameters(f) > 10 and not any(word in str(path.relative_to(folder)) for word in exempt)
    ]
    records = [
        (n.name, fields(n)) for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and is_record(n)
    ]
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        "median file": median(lines.values()) if lines else 0,
        "longest file": max(lines.values(), default=0),
        "longest function": max(length, default=0),
        "functions above 10 parameters": wide,
        "lazy imports": sum(lazy_imports(tree) for tree in trees.values()),
        "records": len(records),
        "records above 15 fields": sorted(f"{name}: {count}" for name, count in records if count > 15),
    }


def crossed(work: Callable[[], Any]) -> list[str]:
    """The modules of ours in which some function runs while ``work`` does."""
    seen: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_globals.get("__name__", ""))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(name for name in seen if name.startswith("twinproof"))


def crossings() -> dict[str, Any]:
    """The simplest private training, its certification and its verification."""
    import twinproof as tp

    settings = {"data": {"source": "digits"}, "recipe": "dpsgd", "model": "mlp", "steps": 3, "epsilon": 3.0, "delta": 1e-4}
    with tempfile.TemporaryDirectory() as folder:
        # Importing runs functions as well: everything is loaded by a first round, and counted in a second.
        first, root = Path(folder) / "first", Path(folder) / "run"
        _ = tp.train({**settings, "performance": {"device": "cpu"}}, first)
        training = crossed(lambda: tp.train({**settings, "performance": {"device": "cpu"}}, root))
        certify = getattr(tp, "certify", None) or tp.certify_run
        run = getattr(tp, "open", tp.Run.open)(root)
        dataset = tp.load_run_data(run)
        sampling = tp.Sampling(n0=20, n=100)
        certify(getattr(tp, "open", tp.Run.open)(first), dataset, sampling=sampling, sigma=0.25, limit=4, device="cpu")
        certification = crossed(lambda: certify(run, dataset, sampling=sampling, sigma=0.25, limit=4, device="cpu"))
        verify = getattr(tp, "verify", None) or tp.verify_run
        verify(first)
        verification = crossed(lambda: verify(root))
    named = {"training": training, "certification": certification, "verification": verification}
    return {name: {"modules": len(found), "names": found} for name, found in named.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file to write the numbers to")
    arguments = parser.parse_args()
    shape = {name: measured(ROOT / place) for name, place in PLACES.items() if (ROOT / place).is_dir()}
    answer = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "shape": shape, "crossed": crossings()}
    text = json.dumps(answer, indent=1) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()

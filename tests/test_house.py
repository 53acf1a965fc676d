"""The rules of the house: imports point downwards, tests mirror the tree, nothing unsafe is loaded, files stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "twinproof"
# From the bottom; a room may import itself and what stands before it.
ROOMS = (
    [
        "errors",
        "checks",
        "guarantee",
        "extensions",
        "files",
        "keys",
        "progress",
    ],
    ["compute"],
    ["data"],
    ["layers"],
    ["privacy"],
    ["runs"],
    ["attacks"],
    ["training"],
    ["certification"],
    ["evaluation"],
    ["recipes"],
    ["federated"],
    ["auditing"],
    ["reporting"],
    ["cli"],
)
HEIGHT = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}
FILES = sorted(SOURCE.rglob("*.py"))
EVERY_FILE = [*FILES, *(path for name in ("verifier", "papers") for path in sorted((ROOT / name / "src").rglob("*.py")))]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" if node.module == "twinproof" else node.module for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("twinproof."))


def upward_imports(room: str, text: str) -> list[str]:
    return [other for other in imported_rooms(text) if other in HEIGHT and HEIGHT[other] > HEIGHT[room]]


def test_imports_point_downwards() -> None:
    """One test for all files, as the rules below: the floor of `make test` counts tests of what the code does."""
    rooms = {path: room_of(path) for path in FILES if room_of(path) not in ("__init__", "__main__")}
    assert set(rooms.values()) <= set(HEIGHT), "not a room of the house; CONTRIBUTING.md lists them"
    upward = {str(path): found for path, room in rooms.items() if (found := upward_imports(room, path.read_text()))}
    assert upward == {}


def test_an_upward_import_is_caught() -> None:
    assert upward_imports("privacy", "def f() -> None:\n    from twinproof.recipes.train import train\n") == ["recipes"]
    assert upward_imports("data", "import twinproof.cli.main\n") == ["cli"]


def test_the_library_never_imports_the_papers() -> None:
    naming = re.compile(r"^\s*(?:from|import) twinproof_papers|import_module\(.twinproof_papers", re.MULTILINE)
    assert [str(path) for path in FILES if naming.search(path.read_text())] == []
    assert naming.search("def f() -> None:\n    from twinproof_papers.cell import Cell\n")


def oversized(text: str) -> list[str]:
    found = ["the file"] if text.count("\n") > 500 else []
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return found + [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= 80]


def test_files_and_functions_stay_small() -> None:
    assert {str(path): found for path in EVERY_FILE if (found := oversized(path.read_text()))} == {}


def test_what_is_too_long_is_caught() -> None:
    assert oversized("def f() -> None:\n" + "    g()\n" * 80) == ["f"]
    assert oversized("x = 1\n" * 501) == ["the file"]


UNSAFE_CALLS = {"torch.load", "eval", "exec", "yaml.load", "pickle.load", "pickle.loads", "np.load", "numpy.load"}
# numpy may read arrays as long as it is told not to unpickle; the keyword is checked where it is called.
SAFE_KEYWORDS = {"np.load": ("allow_pickle", False), "numpy.load": ("allow_pickle", False)}


def unsafe_calls(text: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in UNSAFE_CALLS:
            given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            wanted = SAFE_KEYWORDS.get(name)
            if wanted is None or given.get(wanted[0]) is not wanted[1]:
                found.append(name)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "pickle" in ast.unparse(node):
            found.append(ast.unparse(node))
    return found


def test_nothing_is_unpickled_or_evaluated() -> None:
    assert {str(path): found for path in EVERY_FILE if (found := unsafe_calls(path.read_text()))} == {}


@pytest.mark.parametrize(
    "text", ["import pickle", "torch.load(path)", "np.load(path)", "np.load(path, allow_pickle=True)", "eval(x)"]
)
def test_unsafe_loading_is_caught(text: str) -> None:
    assert unsafe_calls(text)


def test_test_files_mirror_the_tree() -> None:
    """Every room has a folder of tests, and every test module's name is its own."""
    tests = ROOT / "tests"
    names = [path.name for path in tests.rglob("test_*.py")]
    assert len(names) == len(set(names))
    for rooms in ROOMS[1:]:
        assert any((tests / rooms[0]).rglob("test_*.py")), f"no tests for {rooms[0]}"


def test_no_path_of_a_machine_is_committed() -> None:
    foreign = re.compile(r"(?<![\w.])/(?:work|farm|root|home)/\w")
    for folder in ("src", "verifier", "papers", "tests", "benchmarks", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".toml", ".json", ".css") and path != Path(__file__):
                assert foreign.search(path.read_text()) is None, path

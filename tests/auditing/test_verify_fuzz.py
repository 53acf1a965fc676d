"""No bytes whatever make the verifier raise; fixed seed, thousands of mutations over every file of a run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_attacks import write_attacked_run
from synthetic_methods import SOFT, write_made
from synthetic_promise import in_format_2
from synthetic_run import ATTACK_FILES, CORE_FILES, bind, write_run

from twinproof.auditing import verify_epsilon
from twinproof.auditing.verify import verify_run
from twinproof.auditing.verify_epsilon import Spent

MUTATIONS = 250
# A run with attacks takes several times longer; what lies in the other files is read together with the attacks here too.
ATTACKED_MUTATIONS, ATTACKED_PLACES = 80, 12
# As does a run whose first layer is rebuilt.
NOISY_MUTATIONS, NOISY_EACH = 60, 2
SNIPPETS = (
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b"null",
    b'"\\ud800"',
    b"\xff\xfe",
    b"\x00",
    b"[",
    b"{",
    b"\n",
    b",",
    b"true",
    b"",
)
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    1e308,
    1e200,
    5e-324,
    10**400,
    2**53,
    "",
    "\ud800",
    "x" * 500,
    [],
    [[]],
    [None],
    {},
    {"a": 1},
    -0.0,
)


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountants have a test of their own below; here their half second each would buy few mutations."""
    monkeypatch.setattr(verify_epsilon, "account", lambda mechanisms, delta: Spent(0.5, 0.6))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def attacked(tmp_path: Path) -> Path:
    write_attacked_run(tmp_path / "attacked")
    return tmp_path / "attacked"


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    """Scores, a union over classes, and noise of the network's own behind its first layer."""
    write_made(tmp_path / "noisy", SOFT)
    return tmp_path / "noisy"


def mutated(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content) + 1)
    choice = draws.randrange(5)
    if choice == 0:
        return content[:at] + bytes([draws.randrange(256)]) + content[at + 1 :]
    if choice == 1:
        return content[:at] + draws.choice(SNIPPETS) + content[at + draws.randrange(8) :]
    if choice == 2:
        return content[:at]
    if choice == 3:
        return content[:at] + content[at + draws.randrange(1, 40) :]
    end = min(len(content), at + draws.randrange(1, 80))
    return content[:at] + content[at:end] * 2 + content[end:]


def mutate(root: Path, name: str, mutations: int) -> None:
    """Verifies the run with ``name`` mutated in many ways; a changed file never has the digest that is bound."""
    draws = random.Random(name)
    original = (root / name).read_bytes()
    quiet = 0
    for _ in range(mutations):
        broken = mutated(original, draws)
        (root / name).write_bytes(broken)
        result = verify_run(root)
        json.dumps(result.as_dict(), allow_nan=False).encode()
        quiet += name != "run.json" and broken != original and "digests" in {c.name for c in result.checks if c.passed}
    assert quiet == 0


@pytest.mark.parametrize("name", CORE_FILES)
def test_mutated_bytes_never_raise(root: Path, name: str) -> None:
    mutate(root, name, MUTATIONS)


@pytest.mark.parametrize("name", [*ATTACK_FILES, "run.json", "certificates.json", "certificates.csv"])
def test_mutated_bytes_beside_attacks_never_raise(attacked: Path, name: str) -> None:
    mutate(attacked, name, ATTACKED_MUTATIONS)


@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "certificates.json", "certificates.csv"])
def test_mutated_bytes_of_a_network_with_noise_never_raise(noisy: Path, name: str) -> None:
    mutate(noisy, name, NOISY_MUTATIONS)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def replace_values(root: Path, name: str, spots: list[tuple[Any, ...]], *, each: int, passes: bool = True) -> None:
    """Verifies the run with each of ``spots`` of a JSON file taken by ``each`` of the hostile values, digests put right."""
    original, draws = json.loads((root / name).read_text()), random.Random(name)
    for path in spots:
        for value in draws.sample(HOSTILE, each):
            record = json.loads(json.dumps(original))
            at = record
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            (root / name).write_text(json.dumps(record).replace("1e+308", "1e999"))
            if name != "run.json":
                bind(root)
            result = verify_run(root)
            json.dumps(result.as_dict(), allow_nan=False)
            assert passes or record == original or not result.ok, path


@pytest.mark.parametrize("name", [name for name in CORE_FILES if name.endswith("json")])
def test_every_value_replaced_by_a_hostile_one_never_raises(root: Path, name: str) -> None:
    replace_values(root, name, list(places(json.loads((root / name).read_text()))), each=len(HOSTILE))


def test_values_of_promises_replaced_never_raise_and_never_pass(root: Path) -> None:
    in_format_2(root)
    spots = [path for path in places(json.loads((root / "run.json").read_text())) if path[0] in ("guarantees", "own_network")]
    replace_values(root, "run.json", spots, each=6, passes=False)


@pytest.mark.parametrize("name", ["certificates.json", "run.json"])
def test_values_of_a_network_with_noise_replaced_never_raise(noisy: Path, name: str) -> None:
    every = list(places(json.loads((noisy / name).read_text())))
    spots = [path for path in every if name != "run.json" or path[0] in ("config", "data", "files")]
    replace_values(noisy, name, spots, each=NOISY_EACH)


@pytest.mark.parametrize("name", ["attacks.json", "audit.json"])
def test_values_beside_attacks_replaced_never_raise(attacked: Path, name: str) -> None:
    """Every value at the top, which the rest is computed from, and some of the many below."""
    every = list(places(json.loads((attacked / name).read_text())))
    top = [path for path in every if len(path) <= 1 or (path[0] == "certificates" and len(path) <= 2)]
    below = [path for path in every if path not in top]
    spots = top + random.Random(name).sample(below, min(len(below), ATTACKED_PLACES))
    replace_values(attacked, name, spots, each=8)


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl"])
def test_every_value_of_a_line_replaced_never_raises(root: Path, name: str) -> None:
    lines = (root / name).read_text().splitlines()
    for number, line in enumerate(lines):
        for path in places(json.loads(line)):
            for value in HOSTILE:
                record = json.loads(line)
                at = record
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = value
                changed = [*lines[:number], json.dumps(record), *lines[number + 1 :]]
                (root / name).write_text("\n".join(changed) + "\n")
                result = verify_run(root)
                json.dumps(result.as_dict(), allow_nan=False)
                assert not result.ok

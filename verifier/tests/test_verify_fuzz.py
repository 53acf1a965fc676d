"""No bytes whatever make the verifier raise; fixed seed, many mutations over every file of a run."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from fuzzing import HOSTILE, mutate, places, replace_values
from synthetic_attacks import write_attacked_run
from synthetic_promise import in_format_2
from synthetic_run import ATTACK_FILES, CORE_FILES, write_run
from twinproof_verify import epsilon
from twinproof_verify import verify as verify_run
from twinproof_verify.epsilon import Spent

KEPT = Path(__file__).parents[2] / "tests" / "fixtures" / "format-1"
MUTATIONS = 120
HOSTILE_EACH = 7
# A run with attacks takes several times longer; what lies in the other files is read together with the attacks here too.
ATTACKED_MUTATIONS, ATTACKED_PLACES = 40, 12
# As does a run whose first layer is rebuilt.
NOISY_MUTATIONS, NOISY_EACH = 30, 1


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountants have a test of their own below; here their half second each would buy few mutations."""
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: Spent(0.5, 0.6))


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
    """Noise of the network's own behind its first layer."""
    return Path(shutil.copytree(KEPT / "hgm-pixeldp", tmp_path / "noisy"))


@pytest.mark.parametrize("name", CORE_FILES)
def test_mutated_bytes_never_raise(root: Path, name: str) -> None:
    mutate(root, name, MUTATIONS)


@pytest.mark.parametrize("name", [*ATTACK_FILES, "run.json", "certificates.json", "certificates.csv"])
def test_mutated_bytes_beside_attacks_never_raise(attacked: Path, name: str) -> None:
    mutate(attacked, name, ATTACKED_MUTATIONS)


NAMED = ("certificates/l2/certificates.json", "attacks/l2/attacks.json", "audits/l2.json")


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Two certifications under their names, attacks and an audit."""
    return Path(shutil.copytree(KEPT.parent / "format-3" / "demo", tmp_path / "several"))


@pytest.mark.parametrize("name", [*NAMED, "certificates/linf-hgm/certificates.csv", "run.json"])
def test_mutated_bytes_of_named_files_never_raise(several: Path, name: str) -> None:
    mutate(several, name, ATTACKED_MUTATIONS)


@pytest.mark.parametrize("name", [*NAMED, "run.json"])
def test_values_of_named_files_replaced_never_raise(several: Path, name: str) -> None:
    every = [
        path for path in places(json.loads((several / name).read_text())) if "results" not in path and "config" not in path
    ]
    replace_values(several, name, random.Random(name).sample(every, min(len(every), 40)), each=2)


@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "certificates.json", "certificates.csv"])
def test_mutated_bytes_of_a_network_with_noise_never_raise(noisy: Path, name: str) -> None:
    mutate(noisy, name, NOISY_MUTATIONS)


@pytest.mark.parametrize("name", [name for name in CORE_FILES if name.endswith("json")])
def test_every_value_replaced_by_a_hostile_one_never_raises(root: Path, name: str) -> None:
    replace_values(root, name, list(places(json.loads((root / name).read_text()))), each=HOSTILE_EACH)


def test_values_of_promises_replaced_never_raise_and_never_pass(root: Path) -> None:
    in_format_2(root)
    spots = [path for path in places(json.loads((root / "run.json").read_text())) if path[0] in ("guarantees", "own_network")]
    replace_values(root, "run.json", spots, each=6, passes=False)


@pytest.mark.parametrize("name", ["epsilon", "delta"])
@pytest.mark.parametrize("value", [1e308, 1e200, 5e-324, -1.0])
def test_a_promise_of_any_epsilon_and_delta_never_raises(several: Path, name: str, value: float) -> None:
    record = json.loads((several / "run.json").read_text())
    record["privacy"][name] = value
    (several / "run.json").write_text(json.dumps(record))
    assert not verify_run(several).ok


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
    lines, draws = (root / name).read_text().splitlines(), random.Random(name)
    for number, line in enumerate(lines):
        for path in places(json.loads(line)):
            for value in draws.sample(HOSTILE, HOSTILE_EACH):
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

"""The package as a library: few names, the same words as the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import twinproof as tp
from twinproof.guarantee import Status


def test_every_public_name_can_be_used() -> None:
    for name in tp.__all__:
        assert getattr(tp, name) is not None
    assert set(tp.__all__) <= set(dir(tp))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tp.nonsense  # noqa: B018


def undocumented(name: str, thing: object) -> list[str]:
    members = vars(thing).items() if isinstance(thing, type) else ()
    own = [(name, thing), *((f"{name}.{each}", member) for each, member in members if not each.startswith("_"))]
    return [each for each, member in own if (callable(member) or isinstance(member, property)) and not member.__doc__]


def test_public_names_have_a_docstring() -> None:
    """Inner functions have one only where their name and types leave a question."""
    assert [missing for name in tp.__all__ for missing in undocumented(name, getattr(tp, name))] == []

    class Planted:
        """Without a word about what it does."""

        def work(self) -> None: ...

    assert undocumented("Planted", Planted) == ["Planted.work"]


def test_no_public_name_is_hidden_by_a_room() -> None:
    """A room of the same name would replace the function as soon as anything imports it."""
    code = (
        "import twinproof.certification.run, twinproof.reporting.run, twinproof.data.load, twinproof.cli.main; "
        "import twinproof as tp, types; names = [n for n in tp.__all__ if n != 'data']; "
        "assert not [n for n in names if isinstance(getattr(tp, n), types.ModuleType)]; assert callable(tp.data.load)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_is_quick() -> None:
    code = "import sys, twinproof; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "numpy", "scipy", "dp_accounting"} & set(loaded)


def test_train_certify_verify_from_python(tmp_path: Path) -> None:
    settings = {"data": {"source": "digits"}, "epsilon": 3.0, "delta": 1e-4, "model": "mlp", "steps": 5}
    run = tp.train(settings, tmp_path / "run")
    assert run.guarantee.status is Status.PROVEN
    assert run.epsilon is not None
    assert run.epsilon <= 3
    result = tp.certify(run, sampling=tp.Sampling(n0=20, n=200), limit=5)
    assert len(result.certificates) == 5
    assert tp.verify(tmp_path / "run").ok
    assert tp.report(tmp_path / "run").html.is_file()
    assert tp.open(str(tmp_path / "run")).robustness["l2"].status is Status.PROVEN


def test_any_module_can_be_certified() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    certificates = tp.smooth(model, sigma=0.5, levels=255).certify(torch.randint(0, 256, (3, 1, 2, 2), dtype=torch.uint8))
    assert [certificate.index for certificate in certificates] == [0, 1, 2]

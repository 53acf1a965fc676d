"""Fixtures that the tests of the library and those of its plug-ins share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from twinproof.data.record import Dataset
from twinproof.recipes.train import train
from twinproof.runs.run import Run, load_run_data


@pytest.fixture(scope="module", autouse=True)
def forked_ranks_have_no_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ranks of tests are forked, and CUDA does not survive that; what they are compared with runs on the CPU as well."""
    with pytest.MonkeyPatch.context() as patched:
        if hasattr(request.module, "run_ranks"):
            patched.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small networks are faster on one thread than on several, and do not wait for those of other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the simplest kind; tests that change it work on a copy."""
    root = tmp_path_factory.mktemp("trained") / "run"
    settings = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 5, "seed": 1}
    train({**settings, "performance": {"device": "cpu"}}, root)
    return root


@pytest.fixture(scope="session")
def dataset(trained: Path) -> Dataset:
    """The data of that run."""
    return load_run_data(Run.open(trained))


class Answer:
    """What a call of the command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> dict[str, Any]:
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls the command as a user does: ``call("certify", root, "--json")``."""
    from twinproof.cli.main import run

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Answer(int(ended.value.code or 0), printed.out, printed.err)

    return call

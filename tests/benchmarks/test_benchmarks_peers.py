"""The methods of the benchmark: each gives the right answer or a reason, and a wrong one is never timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import benchmarks_path  # noqa: F401  (first: it makes `speed` importable)
import pytest
import torch
from opacus import GradSampleModule

import run
from speed.peers.opacus_modes import _samples
from speed.peers.peer import NotRun, Peer, Step, relative_difference
from speed.peers.registry import PEERS
from speed.peers.torch_modes import per_record
from speed.private_step import measure_task
from speed.timing import Limits
from speed.workloads import CLIP, WORKLOADS, Task, make_task

CPU = torch.device("cpu")
LIMITS = Limits(1e11, 1e10)
PRIVATE = [peer for peer in PEERS if peer.private]


def _task(copies: int, records: int = 6, records_per_pass: int | None = 4) -> Task:
    return make_task(WORKLOADS["mnist-cnn"], records, copies, CPU, records_per_pass)


@pytest.fixture
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("peer", PRIVATE, ids=lambda peer: peer.name)
def test_every_method_gives_the_same_clipped_sum(peer: Peer, copies: int) -> None:
    task = _task(copies)
    try:
        step = peer.step_for(task)
    except NotRun as reason:
        pytest.skip(str(reason))
    wanted = per_record(task).run()
    first, second = step.run(), step.run()
    assert relative_difference(first, wanted) < 1e-4
    assert relative_difference(second, wanted) < 1e-4, "nothing is left over from the step before"
    length = sum(float(value.double().square().sum()) for value in first.values()) ** 0.5
    assert 0 < length <= task.records * CLIP * 1.0001


@pytest.mark.parametrize("peer", [peer for peer in PEERS if not peer.private], ids=lambda peer: peer.name)
def test_plain_training_gives_the_gradient_of_the_batch(peer: Peer) -> None:
    task = _task(2)
    try:
        found = peer.step_for(task).run()
    except NotRun as reason:
        pytest.skip(str(reason))
    model = task.model()
    logits = model(task.inputs.flatten(0, 1))
    loss = torch.nn.functional.cross_entropy(logits, task.labels.repeat_interleave(2)) * task.records
    names = [name for name, _ in model.named_parameters()]
    wanted = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    assert relative_difference(found, wanted) < 1e-4


def test_stock_opacus_on_channels_last_is_not_timed() -> None:
    """The fault that the control row mends: the check before the timing sees it."""

    def unmended(task: Task) -> Step:
        model = task.model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _samples(task, GradSampleModule(model, loss_reduction="sum"), torch.channels_last)

    row = measure_task(_task(1), [Peer("unmended", "opacus", unmended)], 1, LIMITS)[0]
    assert "wrong answer" in row.note
    assert row.records_per_second is None


def _raises(error: Exception) -> Peer:
    def prepare(_: Task) -> Step:
        raise error

    return Peer("broken", "none", prepare, private=False)


@pytest.mark.parametrize(
    ("peer", "note"),
    [
        (Peer("absent", "none", per_record, package="no-such-package-anywhere"), "not installed: no-such-package-anywhere"),
        (_raises(NotRun("for a reason")), "for a reason"),
        (_raises(RuntimeError("it broke\nat length")), "failed: it broke"),
        (_raises(torch.OutOfMemoryError("too much")), "out of memory"),
        (next(peer for peer in PEERS if peer.name == "twinproof, CUDA graph"), "CUDA graphs need a GPU"),
    ],
    ids=["absent", "refused", "broken", "memory", "graph"],
)
def test_a_method_that_cannot_run_has_a_row_with_the_reason(peer: Peer, note: str) -> None:
    if "CUDA" in note and torch.cuda.is_available():
        pytest.skip("there is a GPU, but this test works on the CPU")
    row = measure_task(_task(1), [peer], 1, LIMITS)[0]
    assert (row.note, row.seconds, row.records_per_second) == (note, (), None)


@pytest.mark.usefixtures("same_threads")
def test_the_command_prints_tables_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    arguments = [
        "--workload",
        "mnist-cnn",
        "--batch",
        "4",
        "--copies",
        "2",
        "--peer",
        "sgd",
        "twinproof",
        "jax",
        "--turns",
        "2",
        "--device",
        "cpu",
        "--out",
    ]
    assert run.main([*arguments, str(out)]) == 0
    shown = capsys.readouterr().out
    assert "mnist-cnn, batch 4, copies 2" in shown
    stored = json.loads(out.read_text())
    assert stored["format"] == "twinproof-benchmark/1"
    assert {"date", "device", "versions", "threads", "turns", "limits"} <= stored.keys()
    assert {"opacus", "jax", "torch", "twinproof"} <= stored["versions"].keys()
    rows = {row["method"]: row for row in stored["private_step"]}
    assert rows["twinproof"]["records_per_second"] > 0
    assert len(rows["twinproof"]["seconds"]) == 2
    assert rows["plain SGD"]["ratio_to_sgd"] == 1.0
    assert rows["twinproof"]["ratio_to_opacus"] is None


def test_an_absent_gpu_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert run.main(["--quick", "--device", "cuda"]) == 2
    assert "no GPU" in capsys.readouterr().err

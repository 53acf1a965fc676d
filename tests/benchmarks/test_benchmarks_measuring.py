"""The helpers that turn work into numbers: turns, memory, costs, limits, options and tables."""

from __future__ import annotations

import benchmarks_path  # noqa: F401  (first: it makes `speed` importable)
import pytest
import torch

from speed.certification import OURS, PAPER, CertificationRow, _ours, _paper_loop, measure_certification
from speed.costs import Cost, forward_cost, training_cost
from speed.limits import Limits
from speed.memory import resident_bytes, step_bytes
from speed.options import CERTIFICATION, parse
from speed.peers.registry import FAMILIES, PEERS
from speed.private_step import Row
from speed.table import certification_table, step_table
from speed.timing import Times, calls_for, take_turns
from speed.workloads import WORKLOADS, make_task
from twinproof.certification.method import Sampling
from twinproof.runs.records import ABSTAIN

CPU = torch.device("cpu")
LIMITS = Limits(operations_per_second=1e11, bytes_per_second=1e10)


def test_each_turn_runs_every_method_once_the_machine_is_warm() -> None:
    order: list[str] = []
    times = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3, CPU, shortest=0.0)
    assert order == ["a", "b", *["a", "b"] * 3]
    assert [len(value.seconds) for value in times.values()] == [3, 3]


def test_ratios_are_taken_inside_a_turn() -> None:
    """The machine was three times slower in the second turn: the ratio does not notice, medians of each side would."""
    ours, theirs = Times((1.0, 3.0)), Times((2.0, 6.0))
    assert ours.speed_over(theirs) == 2.0
    assert theirs.speed_over(ours) == 0.5
    assert Times((1.0, 9.0, 2.0)).median == 2.0


@pytest.mark.parametrize(
    ("seconds", "shortest", "calls"), [(0.01, 0.1, 10), (0.03, 0.1, 4), (5.0, 0.1, 1), (0.0, 0.1, 1000), (0.01, 0.0, 1)]
)
def test_calls_fill_a_turn(seconds: float, shortest: float, calls: int) -> None:
    assert calls_for(seconds, shortest) == calls


def test_memory_of_a_step_is_what_it_takes_on_top() -> None:
    held = torch.ones(20_000_000)
    found = step_bytes(lambda: torch.ones(16_000_000), CPU)
    if found is None:
        pytest.skip("this system does not tell a process its peak memory")
    assert 60e6 <= found <= 72e6
    assert held[0] == 1


def test_resident_bytes_reads_the_right_line() -> None:
    status = "VmPeak:\t 9 kB\nVmHWM:\t    300 kB\nVmRSS:\t 200 kB\n"
    assert (resident_bytes(status, "VmHWM"), resident_bytes(status, "VmRSS")) == (300 * 1024, 200 * 1024)


def test_costs_of_the_small_network() -> None:
    """By hand: 0.789 million operations forward; the first layer needs no input gradient, so training is less than 3 x that."""
    work = WORKLOADS["mnist-cnn"]
    conv1, conv2, linear = 13 * 13 * 16 * 64, 5 * 5 * 32 * 256, 512 * 32 + 32 * 10
    forward = 2.0 * (conv1 + conv2 + linear)
    assert forward_cost(work.model(CPU), torch.rand(3, 1, 28, 28)).operations == forward
    one = training_cost(make_task(work, 4, 1, CPU, None))
    assert one.operations == 3 * forward - 2 * conv1
    three = training_cost(make_task(work, 4, 3, CPU, None))
    assert three.operations == 3 * one.operations
    assert three.bytes_moved == pytest.approx(3 * one.bytes_moved, rel=0.01)
    assert training_cost(make_task(work, 64, 1, CPU, None)) == one, "the cost of a record does not depend on the batch"
    activations = 4 * (28 * 28 + 16 * 13 * 13 + 16 * 12 * 12 + 32 * 5 * 5 + 32 * 4 * 4)
    assert 2 * activations <= one.bytes_moved <= 4 * activations


@pytest.mark.parametrize(("cost", "rate", "by"), [(Cost(1e6, 1e3), 1e5, "arithmetic"), (Cost(1e6, 1e6), 1e4, "bandwidth")])
def test_the_scarcer_resource_limits(cost: Cost, rate: float, by: str) -> None:
    found, limited_by = cost.fastest(LIMITS)
    assert (found, limited_by) == (rate, by)


def test_passes_cover_the_batch_in_order() -> None:
    task = make_task(WORKLOADS["mnist-cnn"], 10, 2, CPU, records_per_pass=4)
    parts = list(task.passes())
    assert [len(labels) for _, labels in parts] == [4, 4, 2]
    assert torch.equal(torch.cat([inputs for inputs, _ in parts]), task.inputs)
    assert (task.records, task.copies) == (10, 2)


def test_quick_is_small_and_gives_way_to_what_is_said() -> None:
    quick = parse(["--quick"], "")
    assert quick.tasks("cpu") == [(WORKLOADS["mnist-cnn"], batch, copies) for batch in (64, 256) for copies in (1, 3)]
    assert quick.certification_images("cpu") > 0
    assert quick.peers == PEERS
    said = parse(["--quick", "--workload", "small-vit", "--batch", "8", "--copies", "2", "--peer", "sgd", "--turns", "1"], "")
    assert said.tasks("cpu") == [(WORKLOADS["small-vit"], 8, 2)]
    assert {peer.family for peer in said.peers} == {"sgd"}
    assert (said.turns, said.certification_images("cpu")) == (1, 0)


def test_everything_is_measured_by_default() -> None:
    selection = parse([], "")
    assert set(selection.workloads) == {*WORKLOADS, CERTIFICATION}
    batches = [batch for _, batch, _ in selection.tasks("cuda")]
    assert (min(batches), max(batches)) == (64, 8192)
    assert set(FAMILIES) == {"sgd", "twinproof", "opacus", "vmap", "jax"}


@pytest.mark.parametrize("arguments", [["--batch", "0"], ["--workload", "nope"], ["--peer", "nope"], ["--turns", "-1"]])
def test_a_wrong_option_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(arguments, "")
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_tables_show_numbers_or_the_reason() -> None:
    measured = Row(
        "w", 64, 3, 16, "ours", True, "", (0.5,), 128.0, ratio_to_opacus=2.5, fraction_of_limit=0.25, step_bytes=3_000_000
    )
    text = step_table([measured, Row("w", 64, 3, 16, "theirs", True, "not installed: theirs")])
    lines = text.splitlines()
    assert lines[0] == "w, batch 64, copies 3, passes of 16"
    assert lines[2].split() == ["ours", "128", "2.50", "-", "25.0%", "3"]
    assert lines[3].split() == ["theirs", "-", "-", "-", "-", "-", "not", "installed:", "theirs"]
    certified = certification_table([CertificationRow("m", 3, 1100, "", (1.0,), 3.0, 1.5, 0.125, 1.0)])
    assert certified.splitlines()[2].split() == ["m", "3", "1.50", "12.5%", "100.0%"]


def test_certification_without_mnist_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    rows = measure_certification(CPU, 2, Sampling(n0=10, n=100), 1, LIMITS)
    assert [row.method for row in rows] == [PAPER, OURS]
    assert all(row.images_per_second is None and "TWINPROOF_DATA" in row.note for row in rows)


@pytest.mark.parametrize(("lead", "answer"), [(5.0, 3), (0.0, ABSTAIN)])
def test_both_ways_to_certify_answer_alike(lead: float, answer: int) -> None:
    """A network that prefers class 3 whatever it sees, and one that splits its votes over two classes."""
    layer = torch.nn.Linear(16, 10)
    model = torch.nn.Sequential(torch.nn.Flatten(), layer)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(-100.0)
        layer.bias[3:5] = torch.tensor([lead, 0.0])
        layer.weight[4, 0] = 1.0 if lead == 0 else 0.0
    stored = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    sampling = Sampling(n0=20, n=1500)
    torch.manual_seed(0)
    assert [_paper_loop(model, image, sampling) for image in stored.float()] == [answer] * 2
    assert _ours(model, stored, sampling).tolist() == [answer] * 2

"""The promises of the loop over generated inputs, and planted mistakes that break them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from attack_problems import CLASSES, FEATURES, KEY, Constant, NoisyInput, batch_of, float64_length, smooth_network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from twinproof.attacks.objective import Expectation, Objective, Plain, Smoothed
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import Attack, AttackResult, Keep, fgsm, ifgsm, mim, pgd
from twinproof.attacks.threat import Neighbourhood, Threat, per_row
from twinproof.errors import CheckFailed, ConfigError, DataError, ModelError
from twinproof.keys import Key

NORMS = ("linf", "l2", "l1")
ATTACKS = (fgsm(), ifgsm(4), mim(4), pgd(4, restarts=2), ifgsm(3, step_size=3.0), fgsm(random_start=True))
PROMISED = settings(max_examples=60, deadline=None, derandomize=True)


class Wavy(nn.Module):
    """Scores with many hills, on which long steps often go down."""

    def __init__(self) -> None:
        super().__init__()
        self.network = smooth_network()

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.network(torch.sin(25 * inputs)) * 3
        return scores


class BrokenGradient(nn.Module):
    """The gradient of the first row is NaN, its scores are not."""

    def __init__(self) -> None:
        super().__init__()
        self.network = smooth_network()

    def forward(self, inputs: Tensor) -> Tensor:
        nothing = (inputs[:1, :1] - inputs[:1, :1].detach()).sqrt() * 0
        return torch.cat([self.network(inputs[:1]) + nothing, self.network(inputs[1:])])


def objectives(model: nn.Module) -> list[Objective]:
    return [Plain(model), Expectation(NoisyInput(model, 0.1), 2, judged_on=4), Smoothed(model, 0.1, 2, judged_on=4)]


def attacked(
    attack: Attack, target: nn.Module | Objective, threat: Threat, rows: int = 6, *, targeted: bool = False
) -> AttackResult:
    inputs, labels = batch_of(rows)
    return run_attack(attack, target, inputs, labels, threat, targeted=targeted, key=KEY)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", range(3), ids=["plain", "expectation", "smoothed"])
@PROMISED
@given(
    seed=st.integers(0, 10**6),
    size=st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 1e-6)),
    attack=st.sampled_from(ATTACKS),
    targeted=st.booleans(),
    ends=st.sampled_from([(0.0, 1.0), (-0.5, 0.5), (0.1, 0.3)]),
)
def test_guarantees(
    norm: str, kind: int, seed: int, size: float, attack: Attack, targeted: bool, ends: tuple[float, float]
) -> None:
    """Size and range, in float64; the kept loss; size zero; the recorded lengths."""
    inputs, labels = batch_of(5, seed)
    inputs = (inputs * (ends[1] - ends[0]) + ends[0]).clamp(*ends)
    inputs[0], inputs[1], inputs[2, ::2] = ends[0], ends[1], ends[1]
    result = run_attack(
        attack, objectives(Wavy())[kind], inputs, labels, Threat(norm, size, *ends), targeted=targeted, key=Key.from_seed(seed)
    )
    lengths = float64_length(result.inputs, inputs, norm)
    assert (lengths <= size).all()
    np.testing.assert_allclose(result.lengths.numpy(), lengths, rtol=1e-12)
    assert (result.inputs >= ends[0]).all()
    assert (result.inputs <= ends[1]).all()
    gained = result.losses <= result.starting_losses if targeted else result.losses >= result.starting_losses
    assert gained.all()
    if size == 0:
        assert result.inputs.numpy().tobytes() == inputs.numpy().tobytes()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attacks_raise_the_loss_and_targets_lower_it(norm: str, attack: Attack) -> None:
    threat = Threat(norm, {"linf": 0.1, "l2": 0.3, "l1": 0.5}[norm])
    away = attacked(attack, smooth_network(), threat, 40)
    assert away.losses.mean() > away.starting_losses.mean() + 0.01
    towards = attacked(attack, smooth_network(), threat, 40, targeted=True)
    assert towards.losses.mean() < towards.starting_losses.mean() - 0.01


@dataclass(frozen=True)
class Descending(Attack):
    """Planted: the sign is wrong."""

    def propose(self, points: Tensor, gradient: Tensor, gathered: Tensor, threat: Threat) -> Tensor:
        return super().propose(points, -gradient, gathered, threat)


def test_planted_sign_error_is_caught() -> None:
    result = attacked(Descending(4, relative_step=0.25), smooth_network(), Threat("linf", 0.1), 40)
    assert not result.losses.mean() > result.starting_losses.mean() + 0.01


def test_planted_last_instead_of_best_is_caught() -> None:
    """The check of the kept loss could fail: without keeping the best it does, on a network with hills."""
    long = ifgsm(4, step_size=0.2)
    kept = attacked(long, Wavy(), Threat("linf", 0.3), 40)
    assert (kept.losses >= kept.starting_losses).all()
    last = attacked(replace(long, keep=Keep.LAST), Wavy(), Threat("linf", 0.3), 40)
    assert not (last.losses >= last.starting_losses).all()
    assert kept.success.sum() >= last.success.sum()


@dataclass(frozen=True)
class Escaping(Attack):
    """Planted: a method that goes anywhere."""

    def propose(self, points: Tensor, gradient: Tensor, gathered: Tensor, threat: Threat) -> Tensor:
        return points + gradient.sign() * 10


@pytest.mark.parametrize("norm", NORMS)
def test_a_method_of_somebody_else_is_brought_back(norm: str) -> None:
    inputs, _ = batch_of(6)
    result = attacked(Escaping(3, keep=Keep.LAST), smooth_network(), Threat(norm, 0.2))
    assert (float64_length(result.inputs, inputs, norm) <= 0.2).all()
    assert (result.lengths > 0.1).all()


@dataclass(frozen=True)
class LooseThreat(Threat):
    """Planted: admits without projecting (``single`` False), or projects in float32 alone."""

    single: bool = False

    def around(self, original: Tensor) -> Neighbourhood:
        loose = self

        class Loose(Neighbourhood):
            def admit(self, candidate: Tensor) -> Tensor:
                inside = candidate.clamp(loose.low, loose.high)
                if not loose.single:
                    return inside
                delta = inside - original
                length = torch.linalg.vector_norm(delta, ord=loose.ball.order, dim=1).clamp(min=1e-12)
                return original + delta * per_row((loose.size / length).clamp(max=1.0), delta)

        return Loose()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("single", [False, True])
def test_planted_threat_without_exact_projection_is_caught(norm: str, single: bool) -> None:
    with pytest.raises(CheckFailed, match="left what its threat allows"):
        attacked(ifgsm(8, step_size=0.2), smooth_network(), LooseThreat(norm, 0.3, single=single), 60)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_nan_gradients_and_constant_networks(norm: str, attack: Attack) -> None:
    inputs, _ = batch_of(6)
    constant = attacked(attack, Constant(), Threat(norm, 0.2))
    assert torch.equal(constant.inputs, inputs)
    broken = attacked(attack, BrokenGradient(), Threat(norm, 0.2))
    assert (broken.losses >= broken.starting_losses).all()
    assert (broken.losses[1:] > broken.starting_losses[1:]).any()
    if not attack.random_start:
        assert torch.equal(broken.inputs[0], inputs[0])


def test_rows_that_turn_nan_on_the_way_keep_their_best() -> None:
    class Edge(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            scores = inputs[:, :CLASSES] * 2
            return torch.where(inputs[:, :1] < 0.2, torch.full_like(scores, float("nan")), scores)

    inputs, labels = torch.full((3, FEATURES), 0.5), torch.zeros(3, dtype=torch.int64)
    result = run_attack(ifgsm(10), Edge(), inputs, labels, Threat("linf", 0.5), key=KEY)
    assert result.losses.isfinite().all()
    assert (result.losses > result.starting_losses).all()
    assert (result.inputs[:, 0] >= 0.2).all()


@pytest.mark.parametrize("kind", range(3))
def test_a_rows_result_does_not_depend_on_the_others(kind: int) -> None:
    """Same place, same batch size; on networks of this size a CPU adds up each row in the same order."""
    inputs, labels = batch_of(5)
    others, other_labels = batch_of(5, seed=77)
    others[2], other_labels[2] = inputs[2], labels[2]
    for attack in (mim(5), pgd(5, restarts=2)):
        target = objectives(smooth_network())[kind]
        one = run_attack(attack, target, inputs, labels, Threat("l2", 0.4), key=KEY)
        two = run_attack(attack, target, others, other_labels, Threat("l2", 0.4), key=KEY)
        assert torch.equal(one.inputs[2], two.inputs[2])
        assert not torch.equal(one.inputs[1], two.inputs[1])


@pytest.mark.parametrize("kind", range(3))
def test_results_follow_from_the_key_and_leave_the_generators_alone(kind: int) -> None:
    inputs, labels = batch_of(7)
    target, threat = objectives(smooth_network())[kind], Threat("linf", 0.1)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = run_attack(pgd(3), target, inputs, labels, threat, key=KEY, batch=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    again = run_attack(pgd(3), target, inputs, labels, threat, key=KEY, batch=3)
    other = run_attack(pgd(3), target, inputs, labels, threat, key=Key.from_seed(5), batch=3)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    rest = run_attack(pgd(3), target, inputs[3:], labels[3:], threat, key=KEY, batch=3, first_index=3)
    assert torch.equal(first.inputs[3:], rest.inputs)


@pytest.mark.parametrize("labels", [None, torch.empty(0, dtype=torch.int64)])
def test_nothing_to_attack(labels: Tensor | None) -> None:
    result = run_attack(pgd(3), smooth_network(), torch.empty(0, FEATURES), labels, Threat("l1", 0.1), key=KEY)
    assert len(result) == 0
    assert result.inputs.shape == (0, FEATURES)
    assert result.success.shape == (0,)


def test_predicted_labels_are_the_default() -> None:
    model, (inputs, _) = smooth_network(), batch_of(9)
    labels = predicted_labels(model, inputs, key=KEY, batch=4)
    assert torch.equal(labels, model(inputs).argmax(dim=1))
    result = run_attack(ifgsm(5), model, inputs, None, Threat("linf", 0.3), key=KEY)
    assert torch.equal(result.labels, labels)
    assert torch.equal(result.predictions, model(result.inputs).argmax(dim=1))
    assert torch.equal(result.success, result.predictions != labels)


def test_smoothed_predictions_are_votes() -> None:
    """One draw in ten screams for class 1: the mean score follows it, the votes do not."""

    class Screaming(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            loud = (inputs[:, 0] > 1.28 * 0.5).float() * 1e6
            return torch.stack([torch.ones_like(loud), loud], dim=1)

    inputs = torch.zeros(4, 3)
    assert predicted_labels(Smoothed(Screaming(), 0.5, judged_on=500), inputs, key=KEY).tolist() == [0, 0, 0, 0]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.forwards, self.backwards = smooth_network(), 0, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.forwards += 1
        scores: Tensor = self.network(inputs)
        if scores.requires_grad:
            scores.register_hook(self._count)  # type: ignore[no-untyped-call]
        return scores

    def _count(self, gradient: Tensor) -> None:
        self.backwards += 1


def test_evaluating_costs_two_looks_more_and_no_gradient() -> None:
    model = Counting()
    attacked(mim(9), model, Threat("linf", 0.1))
    assert model.backwards == 9
    assert model.forwards == 9 + 3  # the number of classes, the start, the last point


def test_no_graph_grows_through_the_steps() -> None:
    """Inputs and parameters that learn, as in a training step: what comes back hangs on nothing."""
    inputs, labels = batch_of(4)
    learning, model, threat = inputs.clone().requires_grad_(), smooth_network(), Threat("l2", 0.2)
    result = run_attack(mim(3), model, learning, labels, threat, key=KEY)
    assert not result.inputs.requires_grad
    assert learning.grad is None
    assert torch.equal(result.inputs, run_attack(mim(3), model, inputs, labels, threat, key=KEY).inputs)


def test_restarts_only_help() -> None:
    """The first start of three is the same as the only one of one."""
    few, many = (attacked(pgd(3, restarts=n), Wavy(), Threat("linf", 0.2), 30) for n in (1, 3))
    assert (many.success | ~few.success).all()
    assert many.success.sum() >= few.success.sum()


def test_thousands_of_steps_keep_their_bounds() -> None:
    inputs, _ = batch_of(3)
    result = attacked(mim(2000), smooth_network(), Threat("l2", 0.3), 3)
    assert (float64_length(result.inputs, inputs, "l2") <= 0.3).all()


NAN = float("nan")


class Nan(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :CLASSES] * NAN


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"labels": None, "targeted": True}, ConfigError, "targeted attack needs targets"),
        ({"labels": torch.tensor([0, 1, CLASSES])}, DataError, r"no class of the network(.|\n)*row 2"),
        ({"labels": torch.tensor([0, -1, 1])}, DataError, "no class of the network"),
        ({"labels": torch.tensor([0, 1])}, DataError, "labels do not fit the inputs"),
        ({"labels": torch.tensor([0.0, 1.0, 2.0])}, DataError, "labels do not fit the inputs"),
        ({"target": Nan()}, ModelError, "NaN scores"),
        ({"target": Nan(), "labels": None}, ModelError, "NaN scores"),
        ({"target": nn.Flatten(0)}, ModelError, "one score per class"),
        ({"inputs": torch.full((3, FEATURES), 1.5)}, DataError, "outside their range"),
        ({"inputs": torch.full((3, FEATURES), NAN)}, DataError, "outside their range"),
        ({"inputs": torch.zeros(3, FEATURES, dtype=torch.uint8)}, DataError, "no floats"),
        ({"inputs": torch.zeros(3)}, DataError, "no batch"),
        ({"batch": 0}, ConfigError, "batch cannot"),
    ],
)
def test_bad_input_is_one_clear_error(change: dict[str, object], error: type[Exception], match: str) -> None:
    inputs, labels = batch_of(3)
    given: dict[str, object] = {"target": smooth_network(), "inputs": inputs, "labels": labels, "threat": Threat("linf", 0.1)}
    with pytest.raises(error, match=match):
        run_attack(fgsm(), key=KEY, **{**given, **change})  # type: ignore[arg-type]

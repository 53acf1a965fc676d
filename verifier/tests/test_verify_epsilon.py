"""The recomputed epsilon against a closed formula, its limits, and the rule for printed values."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from synthetic_run import BLOCKS, chain, epsilons, events
from twinproof_verify import epsilon
from twinproof_verify.epsilon import Mechanism, Spent, account, printed_problems, recompute
from twinproof_verify.findings import Problem
from twinproof_verify.ledger import Ledger, Open, Spending, read_ledger


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism by the exact formula for its delta (the analytic Gaussian mechanism)."""

    def excess(epsilon: float) -> float:
        first = norm.cdf(0.5 / noise - epsilon * noise)
        return float(first - math.exp(epsilon) * norm.cdf(-0.5 / noise - epsilon * noise) - delta)

    return float(brentq(excess, 0.0, 100.0, xtol=1e-12))


def ledger_of(*spendings: Spending, delta: float | None = 1e-5) -> Ledger:
    opening = Open(format=1, config_sha256="0" * 64, delta=delta, neighbours="add-or-remove-one")
    return Ledger((), 3, opening, None, spendings, countable=True)


def step(noise: float, rate: float, steps: int) -> Spending:
    return Spending(noise, rate, steps, sampled=True)


@pytest.mark.parametrize(("noise", "times"), [(2.0, 1), (4.0, 1), (10.0, 9)])
def test_without_sampling_the_exact_formula_is_met(noise: float, times: int) -> None:
    spent = account({Mechanism(1.0, noise): times}, 1e-5)
    truth = gaussian_epsilon(noise / math.sqrt(times), 1e-5)
    assert truth * (1 - 1e-9) <= spent.epsilon <= truth * 1.001
    assert truth < spent.epsilon_rdp < 1.3 * truth


def test_blocks_compose_as_one() -> None:
    whole = recompute(ledger_of(step(4.0, 0.05, 30)))
    parts = recompute(ledger_of(*[step(4.0, 0.05, 10)] * 3))
    assert isinstance(whole, Spent)
    assert whole == parts


def test_sampling_and_steps_both_count() -> None:
    base, sparse, longer = (
        account({Mechanism(rate, 4.0): steps}, 1e-5) for rate, steps in ((0.05, 30), (0.01, 30), (0.05, 60))
    )
    assert sparse.epsilon < base.epsilon < longer.epsilon
    assert sparse.epsilon_rdp < base.epsilon_rdp < longer.epsilon_rdp


def test_an_honest_ledger_gives_the_honest_numbers() -> None:
    spent = recompute(read_ledger(chain(events("0" * 64)).encode()))
    assert isinstance(spent, Spent)
    assert (spent.epsilon, spent.epsilon_rdp) == pytest.approx(epsilons(sum(BLOCKS)), abs=2e-6)


HOSTILE = [
    (step(1e-9, 0.01, 3), "noise multiplier"),
    (step(1e300, 0.01, 3), "noise multiplier"),
    (step(1.0, 0.01, 2**53), "steps"),
]


@pytest.mark.parametrize(("spending", "got"), HOSTILE)
def test_what_would_stop_the_machine_is_refused_at_once(spending: Spending, got: str) -> None:
    started = time.thread_time()
    outcome = recompute(ledger_of(spending))
    assert isinstance(outcome, Problem)
    assert got in outcome.got
    assert time.thread_time() - started < 0.5


def test_too_many_different_mechanisms_are_refused() -> None:
    outcome = recompute(ledger_of(*(step(1.0 + at / 100, 0.01, 1) for at in range(100))))
    assert isinstance(outcome, Problem)
    assert "100 different mechanisms" in outcome.got


def test_an_epsilon_beyond_use_is_infinite_not_slow() -> None:
    spent = recompute(ledger_of(step(0.2, 1.0, 1000)))
    assert isinstance(spent, Spent)
    assert spent.epsilon == math.inf


@pytest.mark.parametrize(("rate", "noise", "delta"), [(1e-300, 1e9, 1e-5), (0.05, 4.0, 1e-300), (0.05, 4.0, 1 - 1e-9)])
def test_extreme_values_give_a_number_or_a_problem(rate: float, noise: float, delta: float) -> None:
    outcome = recompute(ledger_of(step(noise, rate, 3), delta=delta))
    assert isinstance(outcome, Problem) or (outcome is not None and outcome.epsilon >= 0 and outcome.epsilon_rdp >= 0)


def test_a_ledger_that_cannot_be_counted_gives_no_epsilon() -> None:
    assert isinstance(recompute(replace(ledger_of(step(1.0, 0.1, 3)), countable=False)), Problem)
    assert isinstance(recompute(ledger_of(step(1.0, 0.1, 3), delta=None)), Problem)
    assert recompute(ledger_of()) is None


@pytest.mark.parametrize("error", [MemoryError("too large"), ValueError("no"), OverflowError("far")])
def test_an_accountant_that_gives_up_is_a_problem(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(mechanisms: object, delta: float) -> Spent:
        raise error

    monkeypatch.setattr(epsilon, "account", fails)
    outcome = recompute(ledger_of(step(4.0, 0.05, 3)))
    assert isinstance(outcome, Problem)
    assert type(error).__name__ in outcome.got


def test_the_log_level_of_the_library_is_put_back() -> None:
    before = logging.getLogger("absl").level
    recompute(ledger_of(step(4.0, 0.05, 3)))
    assert logging.getLogger("absl").level == before


@pytest.mark.parametrize(
    ("printed", "truth", "what"),
    [
        (1.234568, 1.2345671, None),
        (1.234567, 1.2345671, "smaller"),
        (1.24, 1.2345671, None),
        (1.25, 1.2345671, "more than 1 %"),
        (1.2345675, 1.2345671, "not rounded"),
        (1e-6, 1e-9, None),
        (0.0, 0.0, None),
        (5.0, math.inf, "smaller"),
        (5.0, math.nan, "smaller"),
        (None, 1.0, "not a number"),
        (True, 1.0, "not a number"),
    ],
)
def test_printed_values(printed: object, truth: float, what: str | None) -> None:
    found = [problem.what for problem in printed_problems("run.json", "epsilon", printed, truth)]
    assert found == [] if what is None else what in found[0]


COSTLY = {
    "small noise": {Mechanism(0.01, 0.4): 50},
    "all records": {Mechanism(1.0, 0.5): 1, Mechanism(1.0, 0.6): 2},
    "many steps": {Mechanism(0.01, 0.7): 3000},
    "Laplace too": {Mechanism(1.0, 0.5, True): 3, Mechanism(0.2, 0.8): 20},
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_coarser_grid_errs_upwards_and_by_no_more_than_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = account(COSTLY[name], 1e-5)
    assert fine.error == 0
    monkeypatch.setattr(epsilon, "SECONDS", 0.1)
    coarse = account(COSTLY[name], 1e-5)
    assert 0 < coarse.error < 2e-3 * fine.epsilon
    assert coarse.epsilon - coarse.error <= fine.epsilon <= coarse.epsilon * (1 + 1e-9)
    assert not list(printed_problems("run.json", "epsilon", math.ceil(fine.epsilon * 1e6) / 1e6, coarse.epsilon, coarse.error))
    less = math.floor((coarse.epsilon - coarse.error) * 1e6 - 2) / 1e6
    assert [one.what for one in printed_problems("run.json", "epsilon", less, coarse.epsilon, coarse.error)] == [
        "epsilon is smaller than what the ledger spends"
    ]


def test_a_ledger_that_would_take_too_long_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epsilon, "SECONDS", 0.1)
    outcome = recompute(ledger_of(step(0.7, 0.01, 3000)))
    assert isinstance(outcome, Problem)
    assert "too long" in outcome.what


def test_steps_that_are_composed_in_parts_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = account({Mechanism(0.01, 4.0): 1234}, 1e-5).epsilon
    monkeypatch.setattr(epsilon, "_STEPS_AT_ONCE", 100)
    assert account({Mechanism(0.01, 4.0): 1234}, 1e-5).epsilon == pytest.approx(whole, rel=1e-7)


# What took 40 seconds to minutes: much to compute, or (steps) a number with millions of digits in the library.
STALLS = {
    "16 mechanisms at noise 0.3": {Mechanism(1.0, 0.3 + at / 100): 1 for at in range(16)},
    "16 samples at noise 0.3": {Mechanism(0.5, 0.3 + at / 100): 1 for at in range(16)},
    "the smallest noise": {Mechanism(0.001, 0.1): 100},
    "ten million steps": {Mechanism(1e-12, 0.5): 10**7},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STALLS)
def test_no_ledger_stalls_the_verifier(name: str) -> None:
    started = time.thread_time()
    account(STALLS[name], 1e-5)
    assert time.thread_time() - started < 20


@pytest.mark.parametrize("name", STALLS)
def test_ledgers_that_would_stall_get_a_coarser_grid_or_are_composed_in_parts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work that is asked of the library: points of the grid, and steps at once."""
    asked: list[float] = []

    class Losses:
        def self_compose(self, times: int) -> Losses:
            assert times <= 10**6
            return self

        def compose(self, other: Losses) -> Losses:
            return self

        def get_epsilon_for_delta(self, delta: float) -> float:
            return 1.0

    def losses(mechanism: Mechanism, step: float) -> Losses:
        asked.append(20 / mechanism.noise_multiplier / step)
        return Losses()

    monkeypatch.setattr(epsilon, "_losses", losses)
    monkeypatch.setattr("dp_accounting.pld.privacy_loss_distribution.identity", lambda **named: Losses())
    account(STALLS[name], 1e-5)
    assert sum(asked) < 5e6

"""A calibration that was made once is not made again, and answers for its own question alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest

from twinproof.errors import ConfigError
from twinproof.privacy import accounting as calibration
from twinproof.privacy.accounting import Event, GaussianEvent, PoissonGaussianEvent, calibrate_noise_multiplier

Question = tuple[float, float, float, int, list[Event]]
# (epsilon, delta, sample rate, steps, already spent): the first, and each with one change
FIRST: Question = (3.0, 1e-5, 0.2, 10, [])
QUESTIONS: list[Question] = [
    FIRST,
    (2.0, 1e-5, 0.2, 10, []),
    (3.0, 1e-6, 0.2, 10, []),
    (3.0, 1e-5, 0.3, 10, []),
    (3.0, 1e-5, 0.2, 12, []),
    (3.0, 1e-5, 0.2, 10, [GaussianEvent(5.0)]),
    (3.0, 1e-5, 0.2, 10, [GaussianEvent(6.0)]),
    (3.0, 1e-5, 0.2, 10, [GaussianEvent(5.0), GaussianEvent(5.0)]),
    (3.0, 1e-5, 0.2, 10, [PoissonGaussianEvent(1.0, 5.0, 3)]),
]


def quick(events: Sequence[Event], delta: float) -> float:
    """Stands for the accountants, which take seconds: every argument matters, and more noise costs less."""
    squares = 0.0
    for event in events:
        each = 1 / event.noise_multiplier**2
        squares += each * (event.steps * event.sample_rate**2 if isinstance(event, PoissonGaussianEvent) else 1)
    return squares / 2 + math.sqrt(2 * squares * math.log(1 / delta))


@pytest.fixture(autouse=True)
def accounted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    """The last event of every evaluation of epsilon; nothing is remembered from one test to the next."""
    found: list[Event] = []

    def counting(events: Sequence[Event], delta: float) -> float:
        found.append(events[-1])
        return quick(events, delta)

    monkeypatch.setattr(calibration, "epsilon_pld", counting)
    monkeypatch.setattr(calibration, "epsilon_rdp", quick)
    clear = calibration._calibrated.cache_clear
    clear()
    yield found
    clear()


def _asked(question: Question) -> float:
    epsilon, delta, rate, steps, already = question
    return calibrate_noise_multiplier(epsilon, delta, sample_rate=rate, steps=steps, already=already)


def test_the_second_call_is_free_and_answers_the_same(accounted: list[Event]) -> None:
    answer, evaluations = _asked(FIRST), len(accounted)
    assert evaluations > 2
    assert _asked(FIRST) == answer
    assert len(accounted) == evaluations
    calibration._calibrated.cache_clear()
    assert _asked(FIRST) == answer, "what is remembered is what would be found"
    assert len(accounted) == 2 * evaluations


def test_a_list_and_a_tuple_of_the_same_spending_are_one_question(accounted: list[Event]) -> None:
    spent = [GaussianEvent(5.0)]
    answer, evaluations = calibrate_noise_multiplier(3.0, 1e-5, sample_rate=0.2, steps=10, already=spent), len(accounted)
    assert calibrate_noise_multiplier(3.0, 1e-5, sample_rate=0.2, steps=10, already=tuple(spent)) == answer
    assert len(accounted) == evaluations
    spent.append(GaussianEvent(5.0))
    assert calibrate_noise_multiplier(3.0, 1e-5, sample_rate=0.2, steps=10, already=spent) > answer, "a list that grew"


def _confused() -> list[Question]:
    """Questions whose answer, asked after all the others, does not keep their own target or wastes noise."""
    wrong = []
    for question in QUESTIONS:
        _asked(question)
    for question in QUESTIONS:
        epsilon, delta, rate, steps, already = question
        share = quick([*already, PoissonGaussianEvent(rate, _asked(question), steps)], delta) / epsilon
        if not 0.995 <= share <= 1:
            wrong.append(question)
    return wrong


def test_different_questions_are_not_confused() -> None:
    assert _confused() == []


@pytest.mark.parametrize("forgotten", range(5), ids=["epsilon", "delta", "sample rate", "steps", "already"])
def test_planted_cache_that_forgets_an_argument_is_caught(monkeypatch: pytest.MonkeyPatch, forgotten: int) -> None:
    known: dict[tuple[object, ...], float] = {}
    inner = calibration._calibrated.__wrapped__

    def forgetful(*question: object) -> float:
        key = question[:forgotten] + question[forgotten + 1 :]
        if key not in known:
            known[key] = inner(*question)
        return known[key]

    monkeypatch.setattr(calibration, "_calibrated", forgetful)
    assert _confused() != []


def test_a_question_without_an_answer_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be reached"):
            calibrate_noise_multiplier(0.5, 1e-5, sample_rate=0.01, steps=10, already=[GaussianEvent(5.0)])

"""A party: its sums, its draw, its key, the requests that it refuses, and what it remembers of its answers."""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import NAMES, Bench, agreed, bench, digits, party, public, shares
from numpy.typing import NDArray

from twinproof.data.record import Split
from twinproof.errors import ConfigError, DataError, RunError
from twinproof.federated import party as answered_module
from twinproof.federated.agreement import Agreement
from twinproof.federated.messages import Expected, Reply, Request, refusal
from twinproof.federated.party import AnsweredSteps, Party, repeatable_key
from twinproof.keys import Key
from twinproof.privacy.step_randomness import poisson_sample
from twinproof.recipes.registry import RECIPES
from twinproof.training.loop import weights_digest


@pytest.fixture
def whole(tmp_path: Path) -> Bench:
    """A federation that draws every record in every step, so that sums can be compared."""
    return bench(agreed(batch_size=len(digits().train)), tmp_path)


def length(sums: Mapping[str, NDArray[Any]]) -> float:
    return math.sqrt(sum(float(np.square(value).sum()) for value in sums.values()))


def distance(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> float:
    return length({name: left[name] - right[name] for name in left})


def with_weights(request: Request, scale: float) -> Request:
    return replace(request, weights={name: value * scale for name, value in request.weights.items()})


def test_the_parties_sums_are_the_clipped_gradients_of_all_records(whole: Bench) -> None:
    """Against plain autograd, record by record."""
    updates = [party(name, whole.agreement).answer(whole.request()) for name in NAMES]
    threshold = whole.agreement.plan.clip_threshold(sum(value.numel() for value in whole.model.parameters()))
    train = digits().train
    inputs, labels = torch.from_numpy(train.inputs).float() / digits().levels, torch.from_numpy(train.labels)

    def loss(parameters: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(whole.model, parameters, (one.unsqueeze(0),))
        return torch.nn.functional.cross_entropy(logits, label.unsqueeze(0))

    parameters = {name: value.detach() for name, value in whole.model.named_parameters()}
    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, inputs, labels)
    norms = torch.stack([value.flatten(1).double().square().sum(1) for value in each.values()]).sum(0).sqrt()
    weights = torch.clamp(threshold / norms, max=1)
    for name, value in each.items():
        wanted = torch.einsum("m,m...->...", weights, value.double())
        found = sum(update.sums[name] for update in updates)
        torch.testing.assert_close(torch.as_tensor(found), wanted, rtol=1e-5, atol=1e-7)
    assert sum(update.drawn for update in updates) == len(train)


@pytest.mark.parametrize("cap", [None, 5, 60])
def test_a_record_moves_the_sums_by_at_most_the_clipping_norm(
    whole: Bench, cap: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the cap: bringing a long sum down moves no two sums apart."""
    agreement, share = whole.agreement, shares()["party-1"]
    if cap is not None:
        monkeypatch.setitem(agreement.caps, "party-1", cap)
    honest = party("party-1", agreement).answer(whole.request())
    bound = agreement.plan.clip_norm
    assert cap is None or (honest.drawn == cap and length(honest.sums) <= cap * bound)
    for gone in range(0, len(share), 23):
        kept = Split(np.delete(share.inputs, gone, axis=0), np.delete(share.labels, gone))
        other = Party("party-1", kept, agreement, public()).answer(whole.request())
        assert distance(honest.sums, other.sums) <= bound


def test_cutting_the_draw_at_the_cap_instead_would_move_more(whole: Bench) -> None:
    """The planted bug: keep the first ``cap`` records; one record less lets another one in."""
    share, cap, bound = shares()["party-1"], 20, whole.agreement.plan.clip_norm

    def first(rows: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        kept = Split(share.inputs[rows[:cap]], share.labels[rows[:cap]])
        return Party("party-1", kept, whole.agreement, public()).answer(whole.request()).sums

    everybody = np.arange(len(share))
    assert max(distance(first(everybody), first(np.delete(everybody, gone))) for gone in range(cap)) > 1.01 * bound


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_answer_passes_every_check(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw far above the cap, too: a refusal would tell something about records."""
    work = bench(agreed(), tmp_path)
    shapes = {key: tuple(value.shape) for key, value in work.model.named_parameters()}
    for cap in (None, 3):
        if cap is not None:
            monkeypatch.setitem(work.agreement.caps, name, cap)
        update = party(name, work.agreement).answer(work.request())
        expected = Expected(work.agreement, 0, weights_digest(work.model), shapes)
        assert refusal(Reply(name, update), expected) is None
        assert cap is None or update.drawn == cap


def draws(agreement: Agreement, keys: Mapping[str, Key], steps: int = 60) -> NDArray[np.bool_]:
    """Which of the first hundred records each party draws: (parties, steps, records)."""
    taken = np.zeros((len(keys), steps, 100), dtype=np.bool_)
    for row, key in enumerate(keys.values()):
        for step in range(steps):
            taken[row, step, poisson_sample(key, step, records=100, sample_rate=agreement.plan.sample_rate)] = True
    return taken


def strongest_dependence(taken: NDArray[np.bool_]) -> float:
    """The largest correlation of two parties' draws, in standard errors."""
    flat = taken.reshape(len(taken), -1).astype(float)
    correlations = np.corrcoef(flat) - np.eye(len(flat))
    return float(np.abs(correlations).max() * math.sqrt(flat.shape[1]))


def test_parties_draw_independently_of_each_other() -> None:
    keys = {name: repeatable_key(3, name) for name in NAMES}
    assert strongest_dependence(draws(agreed(), keys)) < 5.5


def test_parties_with_one_key_are_caught() -> None:
    """The planted bug: whoever knows its own draw knows the others', and amplification by sampling is gone."""
    assert strongest_dependence(draws(agreed(), {name: Key.from_seed(3) for name in NAMES})) > 50


def test_a_party_draws_from_a_key_of_its_own(tmp_path: Path) -> None:
    """Same records, no key given: two parties of one name draw differently."""
    work = bench(agreed(), tmp_path)
    first, second = (Party("party-4", shares()["party-4"], work.agreement, public()).answer(work.request()) for _ in range(2))
    assert distance(first.sums, second.sums) > 0


def test_one_key_draws_independently_in_two_agreements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draw twice would be counted as two: amplification by sampling takes them for independent."""

    def drawn() -> list[bytes]:
        seen: list[bytes] = []
        for number, rate in enumerate((0.5, 0.25)):
            (folder := tmp_path / f"{len(list(tmp_path.iterdir()))}-{number}").mkdir()
            work = bench(agreed(learning_rate=rate), folder)
            update = party("party-3", work.agreement).answer(replace(work.request(), agreement=work.agreement.sha256))
            seen.append(b"".join(value.tobytes() for value in update.sums.values()))
        return seen

    first, second = drawn()
    assert first != second
    monkeypatch.setattr(Key, "within", lambda key, name: key)  # the planted bug: a key without the agreement's name
    first, second = drawn()
    assert first == second


def test_a_key_that_outlives_the_party_needs_a_memory(tmp_path: Path) -> None:
    secret = agreed(seed=None)
    with pytest.raises(ConfigError, match="must remember what it has answered"):
        Party("party-1", SHARE, secret, public(), key=Key.from_system())
    Party("party-1", SHARE, secret, public(), key=Key.from_system(), memory=tmp_path / "memory")
    Party("party-1", SHARE, secret, public())
    with pytest.raises(ConfigError, match="memory without a key"):
        Party("party-1", SHARE, secret, public(), memory=tmp_path / "memory")


def test_a_party_started_anew_answers_no_step_for_other_weights_or_records(tmp_path: Path) -> None:
    work, key = bench(agreed(seed=None), tmp_path), Key.from_system()

    def started(memory: Path, records: Split = SHARE, key: Key = key) -> Party:
        return Party("party-1", records, work.agreement, public(), key=key, memory=memory)

    first = started(tmp_path / "memory").answer(work.request(2))
    again = started(tmp_path / "memory")
    assert distance(again.answer(work.request(2)).sums, first.sums) == 0
    with pytest.raises(RunError, match="again with other weights"):
        again.answer(with_weights(work.request(2), 2.0))
    with pytest.raises(RunError, match="again with other weights"):
        started(tmp_path / "memory").answer(work.request(1))
    other = Split(SHARE.inputs[::-1].copy(), SHARE.labels[::-1].copy())
    for changes in ({"records": other}, {"key": Key.from_system()}):
        with pytest.raises(RunError, match="other records or another key"):
            started(tmp_path / "memory", **changes)
    # What it would do without its memory: the same numbers for the same step, on other records.
    started(tmp_path / "lost", records=other).answer(with_weights(work.request(2), 2.0))


def test_the_same_request_has_the_same_answer(tmp_path: Path) -> None:
    work = bench(agreed(recipe="dpcert-gaussian", copies=2), tmp_path)
    one = party("party-2", work.agreement)
    first, second = one.answer(work.request(2)), one.answer(work.request(2))
    assert first.drawn == second.drawn
    assert distance(first.sums, second.sums) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agreement": "0" * 64}, "another agreement"),
        ({"step": 6}, "no such step"),
        ({"step": -1}, "no such step"),
        ({"weights": {}}, "do not fit the network"),
    ],
)
def test_requests_that_nobody_agreed_to_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    work = bench(agreed(), tmp_path)
    with pytest.raises(RunError, match=message):
        party("party-1", work.agreement).answer(replace(work.request(), **change))


SHARE = shares()["party-1"]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (shares()["party-2"], "more records than it has declared"),
        (Split(SHARE.inputs[:, :, :4], SHARE.labels), "another shape"),
        (Split(SHARE.inputs.astype(np.float32), SHARE.labels), "not stored as levels"),
        (Split(SHARE.inputs + np.uint8(200), SHARE.labels), "not stored as levels"),
        (Split(SHARE.inputs, SHARE.labels + 1), "does not fit the classes"),
        (Split(SHARE.inputs[:-1], SHARE.labels), "number of inputs and labels"),
    ],
)
def test_records_of_another_kind_are_refused(records: Split, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Party("party-1", records, agreed(), public())


def test_a_party_need_not_have_every_class(tmp_path: Path) -> None:
    work, zeros = bench(agreed(), tmp_path), SHARE.labels == 0
    few = Split(SHARE.inputs[zeros], SHARE.labels[zeros])
    assert Party("party-1", few, work.agreement, public()).answer(work.request()).drawn <= len(few)


@pytest.mark.parametrize("recipe", [recipe.name for recipe in RECIPES.values() if recipe.private])
def test_every_private_recipe_answers(tmp_path: Path, recipe: str) -> None:
    """StoBatch among them, whose second scenario this is; AdLM with equal shares of its noise."""
    pools = RECIPES[recipe].defaults.get("noise_layer", {}).get("redistribution") == "training"
    changes: dict[str, Any] = {"noise_layer": {"redistribution": "uniform"}} if pools else {}
    work = bench(agreed(recipe=recipe, model=None, copies=2, batch_size=40, **changes), tmp_path)
    update = party("party-1", work.agreement).answer(work.request())
    assert 0 < length(update.sums) <= update.drawn * work.agreement.plan.clip_norm


AGREEMENT = "ab" * 32


def memory(folder: Path | None, records: str = "mine") -> AnsweredSteps:
    return AnsweredSteps("north", AGREEMENT, records, folder)


def test_steps_only_go_up_and_weights_stay(tmp_path: Path) -> None:
    for found in (memory(None), memory(tmp_path / "memory")):
        for step, digest in ((0, "a"), (0, "a"), (4, "b")):
            found.take(step, digest)
        for step, digest in ((4, "c"), (3, "b"), (0, "a")):
            with pytest.raises(RunError, match=r"again with other weights(.|\n)*party north"):
                found.take(step, digest)
        found.take(4, "b")


def test_the_memory_outlives_the_process(tmp_path: Path) -> None:
    memory(tmp_path / "memory").take(4, "b")
    assert stat.S_IMODE((tmp_path / "memory").stat().st_mode) == 0o700
    with pytest.raises(RunError, match="again with other weights"):
        memory(tmp_path / "memory").take(4, "c")
    with pytest.raises(RunError, match="other records or another key"):
        memory(tmp_path / "memory", records="others")
    AnsweredSteps("north", "cd" * 32, "others", tmp_path / "memory").take(0, "c")


def test_two_parties_with_one_memory_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower may have an old process of a party beside a new one. Planted: a memory that is read once."""
    old, new = memory(tmp_path), memory(tmp_path)
    new.take(7, "x")
    for step, digest in ((7, "y"), (4, "y")):
        with pytest.raises(RunError, match="again with other weights"):
            old.take(step, digest)
    old.take(8, "z")
    with pytest.raises(RunError, match="again with other weights"):
        memory(tmp_path).take(7, "x")
    with monkeypatch.context() as planted:
        planted.setattr(AnsweredSteps, "_read", lambda self: None)
        new.take(8, "another")


def test_one_memory_for_two_sets_of_records_is_refused_at_the_answer(tmp_path: Path) -> None:
    mine, others = memory(tmp_path), memory(tmp_path, records="others")
    mine.take(0, "a")
    with pytest.raises(RunError, match="other records or another key"):
        others.take(1, "b")


def test_parties_that_answer_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """Of many that take one step, each for other weights, one may."""

    def taken(number: int) -> bool:
        try:
            memory(tmp_path).take(3, str(number))
        except RunError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(taken, range(40))) == 1


def test_a_memory_that_is_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match="directory cannot be made"):
            memory(place)


def test_a_step_is_on_the_disk_before_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full: then nothing is answered, and nothing is taken for answered."""

    def full(path: Path, value: object) -> None:
        raise OSError("no space left")

    found = memory(tmp_path)
    monkeypatch.setattr(answered_module, "write_json", full)
    with pytest.raises(RunError, match=r"cannot write down what it answers(.|\n)*no space left"):
        found.take(0, "a")
    monkeypatch.undo()
    found.take(0, "b")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"records": "mine", "step": "x", "weights_sha256": ""}'])
def test_a_broken_memory_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / f"answered-{AGREEMENT}.json").write_text(content)
    with pytest.raises(RunError, match="cannot be read"):
        memory(tmp_path)

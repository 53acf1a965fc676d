"""A run that several ranks train is the run of one: model, ledger, epsilon; and what a lost rank leaves can be gone on with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from recipe_fixtures import on_one_thread as on_one_thread
from safetensors.torch import load
from small_runs import announced_steps, ledger_lines, model_bytes, run_json, tiny, with_other_record, write_blobs
from torch import Tensor, nn

from rank_processes import Ended, die, quick_to_part, run_ranks
from twinproof.auditing.verify import verify_run
from twinproof.compute.ranks import Ranks
from twinproof.errors import RunError
from twinproof.privacy.plan import Draw, PrivateExecution
from twinproof.recipes import train as train_module
from twinproof.recipes.train import train

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
TOLERANCE = 1e-6
RECIPES: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "dpcert-gaussian": {"recipe": "dpcert-gaussian", "sigma": 0.1, "copies": 2},
    "securesgd": {"recipe": "securesgd", "sigma": None},
    "regular": {"recipe": "regular", "noise_multiplier": None},
}


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_to_part():
        yield


def settings_of(recipe: str, folder: Path, **more: Any) -> dict[str, Any]:
    changes = {"model": "mlp", **RECIPES[recipe], **more}
    chosen = tiny(write_blobs(folder / "data"), **changes)
    chosen["performance"] = {**chosen["performance"], "physical_batch": 4}
    return {name: value for name, value in chosen.items() if value is not None}


def shared(settings: dict[str, Any], out: Path, **more: Any) -> Callable[[Ranks], str]:
    return lambda ranks: str(train(settings, out, ranks=ranks, **more).root)


def weights(root: Path) -> dict[str, Tensor]:
    return load(model_bytes(root))


def farthest(one: Path, other: Path) -> float:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


@pytest.mark.parametrize(
    ("recipe", "world"), [("dpsgd", 2), ("dpcert-gaussian", 2), ("dpcert-gaussian", 4), ("securesgd", 2), ("regular", 2)]
)
def test_any_number_of_ranks_trains_the_same_model(recipe: str, world: int, tmp_path: Path) -> None:
    settings = settings_of(recipe, tmp_path)
    alone = train(settings, tmp_path / "alone")
    ends = run_ranks(world, shared(settings, tmp_path / "together"))
    assert [ended.error for ended in ends] == [None] * world
    assert farthest(tmp_path / "alone", tmp_path / "together") < TOLERANCE
    record = run_json(tmp_path / "together")
    assert record["privacy"] == alone.record["privacy"], "the same epsilon"
    assert record["device"].endswith(f"{world} ranks")
    # The last line holds the digest of the weights, which may differ in their last bits.
    assert ledger_lines(tmp_path / "together")[:-1] == ledger_lines(tmp_path / "alone")[:-1]
    assert verify_run(tmp_path / "together").problems == ()


def test_a_private_run_draws_its_key_once(tmp_path: Path) -> None:
    """Without a seed rank 0 draws the key and the others get it; with keys of their own they would part at once."""
    settings = settings_of("dpcert-gaussian", tmp_path, seed=None)
    assert [ended.error for ended in run_ranks(2, shared(settings, tmp_path / "run"))] == [None, None]
    assert run_json(tmp_path / "run")["guarantees"]["privacy"]["status"] == "proven"
    assert not (tmp_path / "run" / "private" / "key").exists()


def killed_at(step: int, victim: int, settings: dict[str, Any], out: Path) -> Callable[[Ranks], str]:
    def work(ranks: Ranks) -> str:
        if ranks.rank == victim:
            honest = PrivateExecution.draw

            def deadly(self: PrivateExecution, number: int) -> Draw:
                if number == step:
                    die()
                return honest(self, number)

            cast(Any, PrivateExecution).draw = deadly
        return str(train(settings, out, ranks=ranks, resume=True).root)

    return work


@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_that_lost_a_rank_goes_on_with_any_number(victim: int, tmp_path: Path) -> None:
    settings, root = settings_of("dpcert-gaussian", tmp_path), tmp_path / "run"
    train(settings, tmp_path / "alone")
    began = time.monotonic()
    ends = run_ranks(2, killed_at(5, victim, settings, root))
    assert time.monotonic() - began < 30
    left = ends[1 - victim]
    assert left.error is not None
    assert (left.error["what"], left.error["where"]) == ("a rank was lost", f"rank {victim}")
    assert announced_steps(root) >= 5
    assert run_json(root)["state"] == "training"
    together = run_ranks(2 if victim else 4, shared(settings, root, resume=True))
    assert [ended.error for ended in together] == [None] * len(together)
    assert farthest(tmp_path / "alone", root) < TOLERANCE
    assert announced_steps(root) == 6
    assert verify_run(root).problems == ()


def test_what_ranks_left_one_process_goes_on_with(tmp_path: Path) -> None:
    settings, root = settings_of("dpsgd", tmp_path), tmp_path / "run"
    train(settings, tmp_path / "alone")
    run_ranks(2, killed_at(3, 1, settings, root))
    train(None, root, resume=True)
    assert farthest(tmp_path / "alone", root) < TOLERANCE


def test_the_same_ranks_resume_to_the_same_bits(tmp_path: Path) -> None:
    settings = settings_of("dpcert-gaussian", tmp_path)
    run_ranks(2, shared(settings, tmp_path / "whole"))
    run_ranks(2, killed_at(4, 1, settings, tmp_path / "run"))
    run_ranks(2, shared(settings, tmp_path / "run", resume=True))
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_a_complete_run_is_nobodys_work(tmp_path: Path) -> None:
    settings, root = settings_of("dpsgd", tmp_path), tmp_path / "run"
    train(settings, root)
    before = model_bytes(root)
    assert [ended.value for ended in run_ranks(2, shared(settings, root, resume=True))] == [str(root)] * 2
    assert model_bytes(root) == before


def refused(ends: list[Ended]) -> tuple[str, str]:
    """What rank 0 tells; the others know and keep quiet."""
    assert all(ended.error is not None and ended.quiet == (number > 0) for number, ended in enumerate(ends))
    error = ends[0].error or {}
    return error["what"], error["where"]


def test_a_rank_with_other_records_stops_everybody(tmp_path: Path) -> None:
    settings, root = settings_of("dpsgd", tmp_path), tmp_path / "run"
    other = str(write_blobs(tmp_path / "other", with_other_record(3)))

    def work(ranks: Ranks) -> str:
        if ranks.rank == 1:  # the same path holds other records on its machine
            honest = vars(train_module)["load_again"]
            vars(train_module)["load_again"] = lambda data, *rest: honest(data.model_copy(update={"source": other}), *rest)
        return str(train(settings, root, ranks=ranks).root)

    assert refused(run_ranks(2, work)) == ("the ranks do not agree on the training records", "rank 1")
    assert announced_steps(root) == 0, "nothing was drawn"


def test_a_rank_with_other_settings_stops_everybody(tmp_path: Path) -> None:
    settings = settings_of("dpsgd", tmp_path)

    def work(ranks: Ranks) -> str:
        mine = {**settings, "learning_rate": 0.1 + ranks.rank}
        return str(train(mine, tmp_path / "run", ranks=ranks).root)

    ends = run_ranks(2, work)
    what, where = refused(ends)
    assert "not the settings" in what
    assert where.startswith("rank 1, ")
    assert (ends[0].error or {})["got"] == "other settings: learning_rate"


def test_a_network_that_differs_between_ranks_is_refused_before_the_first_step(tmp_path: Path) -> None:
    settings = {name: value for name, value in settings_of("dpsgd", tmp_path).items() if name != "model"}

    def work(ranks: Ranks) -> str:
        torch.manual_seed(ranks.rank)
        return str(train(settings, tmp_path / "run", ranks=ranks, network=nn.Linear(4, 3)).root)

    what, _ = refused(run_ranks(2, work))
    assert what == "the ranks do not agree on the weights before step 1"
    assert announced_steps(tmp_path / "run") == 0


def test_weights_that_part_on_the_way_are_noticed(tmp_path: Path) -> None:
    """The bug: one rank adds noise of its own."""
    settings = settings_of("dpsgd", tmp_path)

    def work(ranks: Ranks) -> str:
        if ranks.rank == 1:
            honest = PrivateExecution.release

            def other(self: PrivateExecution, draw: Draw, sums: Any) -> dict[str, Tensor]:
                return {name: value + 1e-3 for name, value in honest(self, draw, sums).items()}

            cast(Any, PrivateExecution).release = other
        return str(train(settings, tmp_path / "run", ranks=ranks).root)

    what, where = refused(run_ranks(2, work))
    assert (what, where) == ("the ranks do not agree on the weights after step 1", "rank 1")


def test_rank_0_refuses_for_all(tmp_path: Path) -> None:
    settings, root = settings_of("dpsgd", tmp_path), tmp_path / "run"
    root.mkdir()
    (root / "letter.txt").write_text("mine")
    what, where = refused(run_ranks(2, shared(settings, root)))
    assert (what, where) == ("the directory is not empty", str(root))
    with pytest.raises(RunError, match="not empty"):
        train(settings, root)

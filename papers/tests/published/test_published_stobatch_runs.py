"""StoBatch's published variant as a run: trained as printed, called refuted, no epsilon, certified by the noise it draws."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from small_runs import ledger_lines, model_bytes, one_thread

import twinproof as tp
from rank_processes import run_ranks
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import Method, Sampling
from twinproof.data.load import load
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.layers.fixed_draws import PSI, fixed_draws_of
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.recipe import Variant
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_papers.published import variants
from twinproof_papers.published.stobatch import PublishedStoBatch
from twinproof_verify.run_json import PRINTED

SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "stobatch",
    "variant": "published",
    "delta": 1e-4,
    "epsilon": 100.0,
    "learning_rate": 1e-3,
    "regulariser": {"attack_steps": 1, "attack_size": 0.1},
    "performance": {"device": "cpu", "checkpoint_every": 2, "report_every": 1000},
}


@pytest.fixture(scope="module")
def printed_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with one_thread():
        return train(SETTINGS | {"steps": 60, "seed": 7}, tmp_path_factory.mktemp("printed") / "run")


def test_it_learns_and_is_called_refuted_without_an_epsilon(printed_run: Run) -> None:
    assert printed_run.record["accuracy"]["value"] >= 0.35
    assert printed_run.guarantee.status is Status.REFUTED
    assert "one draw of noise is added to every record" in printed_run.guarantee.reason
    assert printed_run.guarantee.values == ()
    assert printed_run.epsilon is None
    assert printed_run.record["privacy"] is None
    assert [line["kind"] for line in ledger_lines(printed_run.root)] == ["open", "close"], "nothing is counted as spent"
    assert RECIPES["stobatch"].variant_status("published") is Status.REFUTED


def test_it_is_certified_for_the_noise_that_is_drawn_and_not_for_psi_times_that(printed_run: Run) -> None:
    two, draws = fixed_draws_of(Run.open(printed_run.root).model())
    stored = load_file(printed_run.root / "model.safetensors")
    assert float(stored["fixed_draws.on_input"].abs().mean()) == pytest.approx(PSI * float(two.input_noise.deviation), rel=0.5)
    assert float(two.hidden.noise.deviation) == pytest.approx(2 * float(two.input_noise.deviation))
    assert draws.offset.abs().sum() > 0
    for bound in ("pure-epsilon", "composition"):
        made = tp.certify(
            printed_run,
            load("digits"),
            sampling=Sampling(20, 200),
            limit=8,
            method=Method(norm="linf", bound=bound),
            overwrite=True,
            key=Key.from_seed(1),
        )
        assert made.settings.noise.sigma == float(two.input_noise.deviation)
        verification = verify_run(printed_run.root)
        assert verification.ok, [str(problem) for problem in verification.problems]
    assert Run.open(printed_run.root).guarantee.status is Status.REFUTED, "certificates change nothing about privacy"


@pytest.mark.parametrize("status", ["proven", "published"])
def test_a_record_that_says_more_is_a_lie(printed_run: Run, tmp_path: Path, status: str) -> None:
    record = json.loads((printed_run.root / "run.json").read_text())
    before = (printed_run.root / "run.json").read_bytes()
    record["guarantees"]["privacy"]["status"] = status
    try:
        (printed_run.root / "run.json").write_text(json.dumps(record))
        assert any("steps as a paper printed them" in str(problem) for problem in verify_run(printed_run.root).problems)
    finally:
        (printed_run.root / "run.json").write_bytes(before)


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS | {"steps": 5, "seed": 4, "model": "mlp"}
    whole = train(settings, tmp_path / "whole")
    honest = PublishedStoBatch.gradient

    def gradient(source: PublishedStoBatch, step: int) -> Any:
        if step == 3:
            raise KeyboardInterrupt
        return honest(source, step)

    monkeypatch.setattr(PublishedStoBatch, "gradient", gradient)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "broken")
    monkeypatch.undo()
    assert model_bytes(train(None, tmp_path / "broken", resume=True).root) == model_bytes(whole.root)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"noise_multiplier": 1.0, "epsilon": None}, "takes no DP-SGD steps"),
    ({"epsilon": 0.05}, "cannot claim this epsilon"),
    ({"batch_size": 1000}, "there are no two batches"),
    ({"noise_layer": {"place": "first-layer"}}, "needs both of its noises"),
    ({"trainers": {"count": 3, "per_step": 1}}, "more trainers than pairs of batches"),
    ({"trainers": {"count": 2, "per_step": 3}}, "picks more trainers than there are"),
    ({"variant": "sound", "trainers": {"count": 2, "per_step": 1}}, r"stobatch \(variant sound\) know no trainers"),
    ({"recipe": "adlm", "regulariser": None, "trainers": {"count": 2, "per_step": 1}}, "know no trainers"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_settings_that_cannot_be_used_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(SETTINGS | {"steps": 2} | changes, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_verify_knows_every_recipe_whose_paper_no_plan_can_count() -> None:
    assert {
        variant.recipe for variant in vars(variants).values() if isinstance(variant, Variant) and variant.steps is not None
    } == set(PRINTED)


FOUR: dict[str, Any] = {"batch_size": 100, "steps": 4, "seed": 4, "model": "mlp"}


def test_one_trainer_is_algorithm_1_to_the_bit(tmp_path: Path) -> None:
    plain = train(SETTINGS | FOUR, tmp_path / "plain")
    one = train(SETTINGS | FOUR | {"trainers": {"count": 1, "per_step": 1}}, tmp_path / "one")
    assert model_bytes(one.root) == model_bytes(plain.root)
    assert one.record["config"]["trainers"] == {"count": 1, "per_step": 1}
    assert "trainers" not in plain.record["config"], "settings without trainers keep their digest"
    two = train(SETTINGS | FOUR | {"trainers": {"count": 6, "per_step": 2}}, tmp_path / "two")
    assert model_bytes(two.root) != model_bytes(plain.root)
    assert two.guarantee.status is Status.REFUTED
    assert verify_run(two.root).ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("world", "trainers"), [(2, None), (4, {"count": 6, "per_step": 2})])
def test_ranks_train_the_model_of_one_process(tmp_path: Path, world: int, trainers: dict[str, int] | None) -> None:
    settings = SETTINGS | FOUR | ({} if trainers is None else {"trainers": trainers})
    alone = load_tensors(model_bytes(train(settings, tmp_path / "alone").root))
    ends = run_ranks(world, lambda ranks: str(train(settings, tmp_path / "together", ranks=ranks).root))
    assert [ended.error for ended in ends] == [None] * world
    together = load_tensors(model_bytes(tmp_path / "together"))
    # Adam moves a weight by at most the rate in a step, and by that much however small its gradient is.
    assert max(float((alone[name] - together[name]).abs().max()) for name in alone) < 1e-5


DIGITS: dict[str, Any] = {"data": {"source": "digits"}}
TRAINERS: list[tuple[dict[str, Any], str, str]] = [
    ({"recipe": "dpsgd", "trainers": {"per_step": 0}}, "dpsgd (variant sound)", "trainers.per_step = 0"),
    (
        {"recipe": "dpsgd", "trainers": {"count": 2, "per_step": 1}},
        "dpsgd (variant sound)",
        "trainers.count = 2, trainers.per_step = 1",
    ),
    ({"recipe": "adlm", "variant": "published", "trainers": {"count": 2}}, "adlm (variant published)", "trainers.count = 2"),
    ({"recipe": "twinproof", "trainers": 3}, "twinproof (variant sound)", "trainers = 3"),
    ({"trainers": {}}, "dpcert-gaussian (variant sound)", "trainers = {}"),
]


@pytest.mark.parametrize(("wrong", "steps", "got"), TRAINERS, ids=[steps + ": " + got for _, steps, got in TRAINERS])
def test_trainers_of_the_wrong_recipe_are_refused(wrong: dict[str, Any], steps: str, got: str) -> None:
    """For the recipe, and not for what they lack; those of the right one are asked for that."""
    with pytest.raises(ConfigError, match=re.escape(f"the steps of {steps} know no trainers")) as caught:
        parse_train_config(DIGITS, wrong)
    assert (caught.value.where, caught.value.got) == ("trainers", got)
    assert caught.value.wanted == "stobatch with variant published"
    right = DIGITS | {"recipe": "stobatch", "variant": "published"}
    with pytest.raises(ConfigError) as caught:
        parse_train_config(right, {"trainers": {"count": 2}})
    assert (caught.value.where, caught.value.got) == ("trainers.per_step", "trainers.per_step = nothing")
    assert "trainers" not in parse_train_config(right, {"trainers": None}).model_dump()

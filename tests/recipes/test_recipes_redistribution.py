"""The redistribution vector r from gradients: Eq. 7 by hand, its sensitivity, its price, and what tells neighbours apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from recipe_fixtures import noisy_start, parts_of, resolved
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import source as source
from safetensors.torch import load_file
from small_runs import RECORDS, blobs, ledger_lines, released, run_json, tiny, with_other_record, write_blobs
from torch import Tensor

from twinproof.auditing.verify import verify_run
from twinproof.data.record import Split
from twinproof.errors import DataError, RunError
from twinproof.guarantee import Status, round_up
from twinproof.keys import Key
from twinproof.layers.noise import NoiseLayer, Place
from twinproof.layers.noise_placement import with_noise
from twinproof.privacy.accounting import GaussianEvent, PoissonGaussianEvent, epsilon_pld
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import Plan
from twinproof.recipes import redistribution, resolve
from twinproof.recipes import train as train_module
from twinproof.recipes.redistribution import clipped_steps, influences, private_mean, redistribute, scales_against, scales_from
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.passes import DeviceRecords

CPU = torch.device("cpu")
PLAN = Plan(sample_rate=1.0, noise_multiplier=5.0, clip_norm=0.3, divisor=90.0, steps=1, delta=1e-4)


def _settings(source: Path, kind: str, **changes: Any) -> dict[str, Any]:
    noise = {"redistribution": kind, "mechanism": "heterogeneous", **changes.pop("noise", {})}
    return tiny(source, recipe=changes.pop("recipe", "securesgd"), noise_layer=noise, **changes)


def _by_hand(network: torch.nn.Sequential, inputs: NDArray[Any], labels: NDArray[Any], levels: int, beta: float) -> Tensor:
    """Eq. 7 one record at a time: |dL/dh|^beta where the noise would be added: at the first layer's output, or at the input."""
    position = [type(module) for module in network].index(NoiseLayer)
    before, after = network[:position], network[position + 1 :]
    rows = []
    for stored, label in zip(inputs, labels, strict=True):
        hidden = before(torch.from_numpy(stored.astype(np.float32))[None] / levels).detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(after(hidden), torch.tensor([label]))
        rows.append(torch.autograd.grad(loss, hidden)[0][0].double().abs() ** beta)
    return torch.stack(rows)


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("beta", [1.0, 2.5])
def test_the_influence_of_each_record_is_the_one_written_by_hand(source: Path, beta: float, alone: bool, place: Place) -> None:
    config, dataset = resolved(_settings(source, "training", noise={"place": place}))
    network = noisy_start(config, dataset)
    split = parts_of(network)
    records = DeviceRecords(dataset.train, dataset.levels, CPU)
    found = torch.cat(list(influences(split, records, mean_cross_entropy, beta, alone=alone)))
    wanted = _by_hand(network, dataset.train.inputs, dataset.train.labels, dataset.levels, beta)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-9)


class _Centred(torch.nn.Module):
    """Mixes the rows of a batch in evaluation mode only, where the trial of the per-example paths does not look."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if self.training else inputs - 5 * inputs.mean(dim=0)


def _moved_by_a_neighbour(source: Path, place: Place, *, alone: bool) -> bool:
    """Whether record 0's part in r changes when another record is exchanged."""
    config, dataset = resolved(_settings(source, "training", noise={"place": place}))
    assert config.noise_layer is not None
    layers = [torch.nn.Linear(4, 8), torch.nn.Tanh(), _Centred(), torch.nn.Linear(8, 3)]
    network = with_noise(torch.nn.Sequential(*layers), dataset.shape, config.noise_layer.form, config.sigma).eval()
    split = parts_of(network)
    inputs = dataset.train.inputs.copy()
    inputs[7] = dataset.levels - inputs[7]
    found = [
        next(influences(split, DeviceRecords(part, dataset.levels, CPU), mean_cross_entropy, 1.0, alone=alone))
        for part in (dataset.train, Split(inputs, dataset.train.labels))
    ]
    return not torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize("place", list(Place))
def test_no_record_changes_what_another_adds_to_a_private_r(source: Path, place: Place) -> None:
    assert not _moved_by_a_neighbour(source, place, alone=True)
    assert _moved_by_a_neighbour(source, place, alone=False), "the test would not see rows that meet"


@pytest.mark.parametrize(("recipe", "alone"), [("securesgd", True), ("hgm-pixeldp", False)])
def test_a_private_recipe_takes_every_record_alone(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, alone: bool
) -> None:
    asked: list[bool] = []

    def watched(*arguments: Any, alone: bool) -> Iterator[Tensor]:
        asked.append(alone)
        return influences(*arguments, alone=alone)

    monkeypatch.setattr(redistribution, "influences", watched)
    train(_settings(source, "training", recipe=recipe, steps=1), tmp_path / "run")
    assert asked == [alone]


FROM_RECORDS = [("hgm-pixeldp", "training"), ("hgm-pixeldp", "public"), ("securesgd", "public")]


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize(("recipe", "kind"), FROM_RECORDS)
def test_r_in_the_weights_is_equation_seven(source: Path, tmp_path: Path, recipe: str, kind: str, place: Place) -> None:
    noise = {"floor": 0.2, "beta": 2.0, "place": place}
    settings = _settings(source, kind, recipe=recipe, steps=1, learning_rate=0, noise=noise)
    run = train(settings, tmp_path / "run")
    config, dataset = resolved(settings)
    split = dataset.train if kind == "training" else dataset.test
    mean = _by_hand(noisy_start(config, dataset), split.inputs, split.labels, dataset.levels, 2.0).mean(dim=0)
    lifted = mean.clamp_min(0.2 * mean.mean())
    wanted = (len(mean) * lifted / lifted.sum()).sqrt().float()
    assert torch.allclose(load_file(run.layout.model)["noise.spread.scales"], wanted, rtol=1e-4)
    assert float(wanted.max() / wanted.min()) > 1.2, "the test would see equal shares"


def test_shares_are_floored_and_normalised() -> None:
    scales = scales_from(torch.tensor([-3.0, 0.0, 1.0, 7.0], dtype=torch.float64), 0.1)
    shares = scales.double() ** 2 / 4
    assert float(shares.sum()) == pytest.approx(1, abs=1e-6)
    assert shares.tolist() == pytest.approx([value / 8.4 for value in (0.2, 0.2, 1.0, 7.0)], rel=1e-6)


@pytest.mark.parametrize("nothing", [[0.0, 0.0], [-1.0, -2.0], [float("nan"), 1.0], [float("inf"), 1.0]])
@pytest.mark.parametrize("rule", [scales_from, scales_against])
def test_shares_are_equal_where_nothing_can_be_told(rule: Any, nothing: list[float]) -> None:
    assert rule(torch.tensor(nothing, dtype=torch.float64), 0.1).tolist() == [1.0, 1.0]


def _unclipped(vectors: Tensor, plan: Plan) -> Tensor:
    """The planted bug: the clip is forgotten."""
    return torch.round(vectors / plan.grid)


def _clipped_entries(vectors: Tensor, plan: Plan) -> Tensor:
    """The planted bug: each entry is clipped, and not the vector."""
    return torch.round(vectors.clamp(max=plan.clip_norm) / plan.grid)


def _largest_move(contribution: Any) -> float:
    """How far one record moves the sum at most, over the clipping norm, for records of all sizes."""
    generator = torch.Generator().manual_seed(4)
    sizes = 10.0 ** torch.randint(-6, 12, (400, 1), generator=generator)
    vectors = torch.rand((400, 50), generator=generator, dtype=torch.float64) * sizes
    vectors[0, 3], vectors[1, 4] = float("nan"), float("inf")
    with_all = contribution(vectors, PLAN)
    moves = [(with_all[[row]].sum(dim=0) * PLAN.grid).norm() / PLAN.clip_norm for row in range(400)]
    return float(torch.stack(moves).nan_to_num(nan=float("inf")).max())


def test_one_record_moves_the_sum_by_at_most_the_clipping_norm() -> None:
    largest = _largest_move(clipped_steps)
    assert 0.999 < largest <= 1.0


@pytest.mark.parametrize("bug", [_unclipped, _clipped_entries])
def test_a_planted_sum_without_the_right_clip_is_caught(bug: Any) -> None:
    assert _largest_move(bug) > 1.5


def test_a_record_counts_the_same_whoever_stands_beside_it() -> None:
    vectors = torch.rand((30, 8), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    vectors[7] = float("nan")
    together = clipped_steps(vectors, PLAN)
    assert torch.equal(together, torch.cat([clipped_steps(row[None], PLAN) for row in vectors]))
    assert not together[7].any()
    assert torch.equal(together, together.round())


def _noise_of(mean: Any, keys: int = 400) -> Tensor:
    """The noise of many releases of one sum, in units of noise_multiplier * clip_norm."""
    vectors = torch.rand((30, 50), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact = clipped_steps(vectors, PLAN).sum(dim=0) * PLAN.grid
    drawn = [mean([vectors[:20], vectors[20:]], PLAN, Key.from_seed(seed), 50) * PLAN.divisor - exact for seed in range(keys)]
    return torch.stack(drawn).flatten() / (PLAN.noise_multiplier * PLAN.clip_norm)


def test_the_release_has_the_accounted_noise_and_the_declared_divisor() -> None:
    """20,000 draws: six deviations of the sample deviation are 3 %, of the mean 0.042."""
    noise = _noise_of(private_mean)
    assert abs(float(noise.std()) - 1) < 0.03
    assert abs(float(noise.mean())) < 0.043
    released_sum = private_mean([torch.ones((3, 50), dtype=torch.float64)], PLAN, Key.from_seed(1), 50) * PLAN.divisor
    steps = released_sum / PLAN.grid
    assert torch.allclose(steps, steps.round(), rtol=0, atol=1e-3), "the release lies on the grid"


def test_planted_noise_that_is_five_percent_too_small_is_caught() -> None:
    def quieter(parts: Any, plan: Plan, key: Key, coordinates: int) -> Tensor:
        exact = sum(clipped_steps(part, plan).sum(dim=0) for part in parts) * plan.grid / plan.divisor
        return exact + 0.95 * (private_mean(parts, plan, key, coordinates) - exact)

    assert float(_noise_of(quieter).std()) < 0.97


def _truth(config: dict[str, Any]) -> float:
    """What a run with a private r costs, from its settings alone."""
    steps = PoissonGaussianEvent(config["batch_size"] / config["records"], config["noise_multiplier"], config["steps"])
    return round_up(epsilon_pld([GaussianEvent(config["noise_layer"]["r_noise_multiplier"]), steps], config["delta"]))


def _undercharged(root: Path) -> bool:
    """Whether a run promises less than it cost, or its ledger does not hold the estimate of r."""
    lines = [line["body"] for line in ledger_lines(root) if line["kind"] == "gaussian"]
    paid = [body for body in lines if body["purpose"] == "redistribution"]
    record = run_json(root)
    return len(paid) != 1 or record["privacy"]["epsilon"] < _truth(record["config"])


@pytest.mark.parametrize("place", list(Place))
def test_a_private_r_is_paid_for(source: Path, tmp_path: Path, place: Place) -> None:
    free = train(_settings(source, "uniform"), tmp_path / "free")
    paid = train(_settings(source, "training", noise={"r_noise_multiplier": 8.0, "place": place}), tmp_path / "paid")
    assert not _undercharged(paid.root)
    assert paid.epsilon is not None
    assert free.epsilon is not None
    assert paid.epsilon == _truth(paid.record["config"]) > free.epsilon
    kinds = [line["kind"] for line in ledger_lines(paid.root)]
    assert kinds.index("gaussian") < kinds.index("poisson-gaussian")
    metrics = [json.loads(line) for line in paid.layout.metrics.read_text().splitlines()]
    assert metrics[-1]["epsilon"] == paid.epsilon


PRICES: list[tuple[str, str, list[GaussianEvent]]] = [
    ("training", "sound", [GaussianEvent(8.0)]),
    ("training", "published", []),
    ("public", "sound", []),
    ("learned", "sound", []),
]


@pytest.mark.parametrize(("kind", "variant", "price"), PRICES)
def test_the_price_of_r_is_part_of_a_target_epsilon(
    source: Path, monkeypatch: pytest.MonkeyPatch, kind: str, variant: str, price: list[GaussianEvent]
) -> None:
    asked: list[Any] = []

    def calibrated(*target: float, **plan: Any) -> float:
        asked.append(plan["already"])
        return 4.0

    monkeypatch.setattr(resolve, "calibrate_noise_multiplier", calibrated)
    settings = _settings(source, kind, variant=variant, epsilon=1.0, noise={"r_noise_multiplier": 8.0})
    del settings["noise_multiplier"]
    assert resolved(settings)[0].noise_multiplier == 4.0
    assert asked == [price]


def test_a_planted_estimate_that_is_not_charged_is_caught(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "spent_on_redistribution", lambda config: [])
    settings = _settings(source, "training", noise={"r_noise_multiplier": 8.0})
    with pytest.raises(RunError, match=r"does not count the private estimate of r(.|\n)*purpose redistribution"):
        train(settings, tmp_path / "guarded")
    monkeypatch.setattr(redistribution, "_refuse_unpaid", lambda ledger, plan: None)
    root = train(settings, tmp_path / "unguarded").root
    assert _undercharged(root)
    assert not verify_run(root).ok


def test_records_are_not_read_before_the_ledger_counts_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[dict[str, Any]]] = []

    def watched(*arguments: Any, alone: bool) -> Iterator[Tensor]:
        seen.append(ledger_lines(tmp_path / "run"))
        return influences(*arguments, alone=alone)

    monkeypatch.setattr(redistribution, "influences", watched)
    train(_settings(source, "training"), tmp_path / "run")
    assert [[line["body"].get("purpose") for line in lines] for lines in seen] == [[None, "redistribution"]]


def test_an_estimate_for_another_price_is_refused(source: Path, tmp_path: Path) -> None:
    config, dataset = resolved(_settings(source, "training"))
    ledger = Ledger.create(tmp_path / "ledger.jsonl", config_sha256="0" * 64, delta=1e-4)
    ledger.append("gaussian", {"noise_multiplier": 19.0, "purpose": "redistribution"})
    ledger.append("gaussian", {"noise_multiplier": 20.0, "purpose": "feature ranges"})
    with pytest.raises(RunError, match="does not count the private estimate"):
        redistribute(config, noisy_start(config, dataset), dataset, None, Key.from_seed(1), ledger)


def _differing(tmp_path: Path, **changes: Any) -> list[str]:
    """Released files that tell two neighbours apart, with a learning rate of zero: nothing but r may."""
    kind = changes.pop("kind")
    roots = []
    for name, arrays in (("base", blobs()), ("other", with_other_record(7))):
        settings = _settings(write_blobs(tmp_path / name, arrays), kind, records=RECORDS, learning_rate=0, **changes)
        roots.append(train(settings, tmp_path / name / "run").root)
    left, right = (released(root) for root in roots)
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("kind", ["uniform", "random", "public", "learned"])
def test_r_that_is_not_from_the_records_tells_no_neighbours_apart(tmp_path: Path, kind: str, place: Place) -> None:
    assert _differing(tmp_path, kind=kind, noise={"place": place}) == []


def test_r_that_is_paid_for_shows_in_the_weights_alone(tmp_path: Path) -> None:
    """With so much noise that r is settled by it, test figures stay; what is left is the model and what binds its digest."""
    found = _differing(tmp_path, kind="training")
    assert set(found) <= {"ledger.jsonl", "metrics.jsonl", "model.safetensors", "run.json"}
    assert "model.safetensors" in found


def _shares(root: Path) -> Tensor:
    return load_file(root / "model.safetensors")["noise.spread.scales"].double() ** 2


def test_private_r_is_noise_to_whoever_compares_neighbours(tmp_path: Path) -> None:
    """Under one key neighbours differ by one clipped record; another key moves r a hundred times as far."""
    moved = []
    for name, arrays, seed in (("base", blobs(), 3), ("other", with_other_record(7), 3), ("key", blobs(), 4)):
        source = write_blobs(tmp_path / name, arrays)
        root = train(_settings(source, "training", steps=1, learning_rate=0, seed=seed), tmp_path / name / "run").root
        moved.append(_shares(root))
    assert 0 < float((moved[0] - moved[1]).norm()) < 0.05 * float((moved[0] - moved[2]).norm())


def test_published_secure_sgd_is_refuted_and_prints_no_epsilon(source: Path, tmp_path: Path) -> None:
    run = train(tiny(source, recipe="securesgd", variant="published", seed=None), tmp_path / "run")
    guarantee = run.guarantee
    assert guarantee.status is Status.REFUTED
    assert "deterministic function of the training records" in guarantee.reason
    assert guarantee.values == ()
    assert "epsilon" not in guarantee.promise
    assert "differential" not in guarantee.promise
    assert [line["kind"] for line in ledger_lines(run.root)] == ["open", "poisson-gaussian", "close"], "nothing pays for r"
    assert set(run.record["privacy"]) >= {"epsilon", "delta", "noise_multiplier"}
    assert verify_run(run.root).ok


def test_published_r_tells_neighbours_apart_whatever_the_key(tmp_path: Path) -> None:
    """The counter-example itself: the exact r of a data set is recomputed, and no other data set has it."""
    shares = []
    for name, arrays in (("base", blobs()), ("again", blobs()), ("other", with_other_record(7))):
        settings = tiny(write_blobs(tmp_path / name, arrays), recipe="securesgd", variant="published", steps=1, learning_rate=0)
        shares.append(_shares(train(settings, tmp_path / name / "run").root))
    assert torch.equal(shares[0], shares[1])
    assert not torch.equal(shares[0], shares[2])


def _public_set(folder: Path) -> str:
    """Other records of the same kind, in a folder whose name must not get out."""
    mirrored = {name: 1 - value if name.startswith("x") else value for name, value in blobs().items()}
    return str(write_blobs(folder / "ward-nine", mirrored).rename(folder / "ward-nine" / "public.npz"))


def _rows(arrays: dict[str, NDArray[Any]], rows: slice) -> dict[str, NDArray[Any]]:
    return arrays | {name: arrays[name][rows] for name in ("x_train", "y_train")}


def _joined(left: dict[str, NDArray[Any]], right: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return left | {name: np.concatenate([left[name], right[name]]) for name in ("x_train", "y_train")}


NOT_PUBLIC = {
    "the same": blobs(),
    "one exchanged": with_other_record(0),
    "a part": _rows(blobs(), slice(0, 12)),
    "in other order": _rows(blobs(), slice(None, None, -1)),
    "more": _joined(blobs(), {name: 1 - value if name[0] == "x" else value for name, value in blobs().items()}),
}


@pytest.mark.parametrize("name", NOT_PUBLIC)
def test_training_records_do_not_pass_for_public_ones(source: Path, tmp_path: Path, name: str) -> None:
    """Otherwise r would be an exact function of them in the released weights, under a promise called proven."""
    public = str(write_blobs(tmp_path / "copy", NOT_PUBLIC[name]))
    settings = _settings(source, "public", seed=None, noise={"public_data": public})
    with pytest.raises(DataError, match=r"public data hold training records(.|\n)*noise_layer.public_data(.|\n)*learned"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_name_of_the_training_data_does_not_pass_for_public_data(tmp_path: Path) -> None:
    settings = _settings(Path("digits"), "public", seed=None, noise={"public_data": "digits"})
    with pytest.raises(DataError, match="100% of its inputs are training inputs"):
        train(settings, tmp_path / "run")


def test_without_privacy_any_records_may_give_r(source: Path, tmp_path: Path) -> None:
    settings = _settings(source, "public", recipe="hgm-pixeldp", steps=1, noise={"public_data": str(source)})
    assert train(settings, tmp_path / "run").guarantee.status is Status.NONE


def test_public_features_are_scaled_like_the_runs_own(source: Path, tmp_path: Path) -> None:
    """Twice as large values between twice as large bounds are the same records, those between the run's bounds are not."""
    doubled = {name: value * (2 if name.startswith("x") else 1) for name, value in blobs().items()}
    public = str(write_blobs(tmp_path / "public", doubled))
    settings = _settings(source, "public", noise={"public_data": public})
    settings["data"]["ranges"] = {"*": [0.0, 2.0]}
    config, dataset = resolved(settings)
    found = redistribution.public_records(config, dataset, None)
    assert found is not None
    assert found.levels == dataset.levels
    assert np.abs(found.split.inputs.astype(int) - 2 * dataset.train.inputs.astype(int)).max() <= 2


def test_the_place_of_public_data_stays_with_the_owner(source: Path, tmp_path: Path) -> None:
    settings = _settings(source, "public", noise={"public_data": _public_set(tmp_path)})
    run = train(settings, tmp_path / "run")
    assert run.record["config"]["noise_layer"]["public_data"] == "public.npz"
    assert all(b"ward-nine" not in path.read_bytes() for path in run.root.iterdir() if path.is_file())
    assert Run.open(run.root).model_sha256 == run.model_sha256

"""Certificates of every law, place, norm, bound, statistic and confidence: honest ones pass, each planted lie is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic_methods import (
    INPUTS,
    METHODS,
    SCORES,
    SOFT,
    Made,
    answer,
    largest_of,
    network_of,
    put_weights,
    reconfigure,
    rows_of,
    slack_of,
    sums_of,
    tau_of,
    write_made,
)

from planted_lies import Apply, Lie, both
from synthetic_run import ALPHA, BLOCKS, CLASSES, DRAWS, SHAPE, epsilons, forge_cell, forge_ledger, forge_run, forge_settings
from twinproof.auditing.verify import verify_run
from twinproof.layers.networks import build_network
from twinproof_verify import epsilon
from twinproof_verify.epsilon import Spent


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true epsilons, not computed anew for every lie."""
    monkeypatch.setattr(epsilon, "account", lambda mechanisms, delta: Spent(*epsilons(sum(BLOCKS))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Made], Path]:
    """Honest runs, each made once; not to be changed."""

    @cache
    def made_once(made: Made) -> Path:
        root = tmp_path_factory.mktemp("made") / "run"
        write_made(root, made)
        return root

    return made_once


@pytest.mark.parametrize("made", METHODS, ids=str)
def test_honest_certificates_of_every_method_pass(runs: Callable[[Made], Path], made: Made) -> None:
    result = verify_run(runs(made))
    assert result.problems == ()
    assert result.certificates == INPUTS
    radii = [float(row[5]) for row in rows_of(made)]
    assert len({radius for radius in radii if radius > 0}) > 3, "something to lie about"


def change(**values: Any) -> Apply:
    return forge_settings(lambda settings: settings.update(values))


def made_as(made: Made, **claimed: Any) -> Apply:
    """Lines and largest radius as if ``claimed`` were so, which the settings do not say: radii that do not follow from them."""
    other = replace(made, **claimed)

    def apply(root: Path) -> None:
        for index, row in enumerate(rows_of(other)):
            forge_cell(index, 5, row[5])(root)

    return apply


def larger_weights(root: Path) -> None:
    """The first layer of the released network is one percent larger than the one that was certified."""
    network = network_of(TIGHT)
    with torch.no_grad():
        network.get_parameter("1.weight").mul_(1.01)
    put_weights(root, network)


def smaller_scale(made: Made) -> Apply:
    """One coordinate of the released network has less noise than the certified one had."""

    def apply(root: Path) -> None:
        network = network_of(made)
        network.get_buffer("noise.spread.scales")[7] *= 0.25
        put_weights(root, network)

    return apply


def equal_scales(root: Path) -> None:
    """The released network has equal noise at its input, of which another place and another norm are recorded."""
    network = network_of(UNEQUAL)
    network.get_buffer("noise.spread.scales").fill_(1.0)
    put_weights(root, network)


def mean_scale(root: Path) -> None:
    """The radii of the mean scale where those of the smallest one are proven, told as if it had always been so."""
    scales = network_of(UNEQUAL_L2).get_buffer("noise.spread.scales").double().numpy()
    scaled(UNEQUAL_L2, "operator_norm", float(scales.min() / scales.mean()))(root)


def scaled(made: Made, name: str, factor: float) -> Apply:
    """A setting that makes radii larger, told as if it had always been so: radii are scaled along."""
    gain = {"operator_norm": 1 / factor, "sigma": factor}[name]

    def apply(root: Path) -> None:
        forge_settings(lambda s: s.update({name: s[name] * factor, "largest_radius": s["largest_radius"] * gain}))(root)
        for index, row in enumerate(rows_of(made)):
            forge_cell(index, 5, f"{float(row[5]) * gain:.6f}")(root)

    return apply


TIGHT, LINF, CONVOLVED = Made(), Made(norm="linf"), Made(norm="l1", model="small-cnn", redistribution="learned")
HGM, LAPLACE = Made(bound="hgm"), Made(law="laplace", norm="l1")
PUBLISHED, UNION = Made(bound="published", norm="linf"), Made(runner_up="union")
AT_INPUT, LAPLACE_INPUT = (
    Made(place="input", norm="linf"),
    Made(law="laplace", place="input", norm="l2", redistribution="uniform"),
)
UNEQUAL, UNEQUAL_L2 = Made(place="unequal-input", norm="linf"), Made(place="unequal-input")
SETTINGS, LINES, RUN = "certificates.json", "certificates.csv", "run.json"

NORM_LIES = [
    (
        TIGHT,
        Lie("norm of the layer lowered by one percent", scaled(TIGHT, "operator_norm", 0.99), SETTINGS, "weights of the first"),
    ),
    (LINF, Lie("linf norm lowered by one percent", scaled(LINF, "operator_norm", 0.99), SETTINGS, "weights of the first")),
    (CONVOLVED, Lie("l1 norm lowered", scaled(CONVOLVED, "operator_norm", 0.999), SETTINGS, "weights of the first")),
    (LAPLACE, Lie("Laplace norm lowered", scaled(LAPLACE, "operator_norm", 0.999), SETTINGS, "weights of the first")),
    (AT_INPUT, Lie("sqrt(d) forgotten", scaled(AT_INPUT, "operator_norm", 0.25), SETTINGS, "not that of the input itself")),
    (LAPLACE_INPUT, Lie("l2 taken for l1", scaled(LAPLACE_INPUT, "operator_norm", 0.25), SETTINGS, "not that of the input")),
    (TIGHT, Lie("another norm", change(norm="linf"), SETTINGS, "operator_norm is below")),
    (AT_INPUT, Lie("another norm at the input", change(norm="l2"), SETTINGS, "not that of the input itself")),
    (TIGHT, Lie("an unknown norm", change(norm="l0"), SETTINGS, "norm has a value")),
    (TIGHT, Lie("an operator norm of 0", change(operator_norm=0.0), SETTINGS, "operator_norm has a value")),
    (TIGHT, Lie("the weights grew", larger_weights, SETTINGS, "operator_norm is below")),
    (TIGHT, Lie("a scale shrank", smaller_scale(TIGHT), SETTINGS, "operator_norm is below")),
    (UNEQUAL, Lie("a scale of the input shrank", smaller_scale(UNEQUAL), SETTINGS, "divided by the scales of its noise")),
    (UNEQUAL, Lie("sqrt(d) in place of the scales", change(operator_norm=4.0), SETTINGS, "divided by the scales of its")),
    (UNEQUAL, Lie("l2 in place of linf", change(norm="l2"), SETTINGS, "divided by the scales of its noise")),
    (UNEQUAL_L2, Lie("the mean scale for the smallest", mean_scale, SETTINGS, "divided by the scales of its noise")),
    (UNEQUAL, Lie("equal noise called unequal", equal_scales, SETTINGS, "law and place")),
    (PUBLISHED, Lie("below what a paper claims", scaled(PUBLISHED, "operator_norm", 0.99), SETTINGS, "operator_norm is below")),
]
NOISE_LIES = [
    (TIGHT, Lie("no slack", change(slack=0.0), SETTINGS, "slack is understated")),
    (LAPLACE, Lie("slack of l2 under Laplace", change(slack=slack_of(TIGHT)), SETTINGS, "slack is understated")),
    (TIGHT, Lie("a negative slack", change(slack=-1.0), SETTINGS, "slack has a value")),
    (LAPLACE, Lie("tau of the Gaussian under Laplace", change(tau=tau_of(TIGHT)), SETTINGS, "tau is understated")),
    (TIGHT, Lie("sigma up one percent", change(sigma=2.02), LINES, "radius is below")),
    (TIGHT, Lie("sigma down one percent", change(sigma=1.98), LINES, "radius is above")),
    (TIGHT, Lie("a coarse grid", change(grid=0.0625), SETTINGS, "grid is too coarse")),
    (TIGHT, Lie("a grid beyond float32", change(grid=2.0**-24, tau=1e-6), SETTINGS, "grid is too fine")),
    (TIGHT, Lie("no power of two", change(grid=0.003), SETTINGS, "grid has a value")),
    (TIGHT, Lie("fewer coordinates", change(dimension=16), SETTINGS, "dimension is not the number")),
    (TIGHT, Lie("Laplace for Gaussian", change(law="laplace"), SETTINGS, "law and place")),
    (LAPLACE, Lie("Gaussian for Laplace", change(law="gaussian"), SETTINGS, "law and place")),
    (TIGHT, Lie("the input for the layer", change(place="input"), SETTINGS, "law and place")),
    (UNEQUAL, Lie("unequal noise called equal", change(place="input"), SETTINGS, "law and place")),
    (UNEQUAL, Lie("unequal noise without slack", change(slack=0.0), SETTINGS, "slack is understated")),
    (UNEQUAL, Lie("slack of one coordinate", change(slack=slack_of(UNEQUAL) / 8), SETTINGS, "slack is understated")),
    (UNEQUAL, Lie("a grid in levels", change(grid=0.0625), SETTINGS, "grid is too coarse")),
    (UNEQUAL, Lie("fewer coordinates than the input", change(dimension=15), SETTINGS, "dimension is not")),
    (UNEQUAL, Lie("unequal noise that is shared", change(shared_noise=True), SETTINGS, "at the input alone")),
    (AT_INPUT, Lie("equal noise called unequal, by Cohen", change(place="unequal-input"), SETTINGS, "law and place")),
    (AT_INPUT, Lie("the layer for the input", change(place="first-layer"), SETTINGS, "law and place")),
    (TIGHT, Lie("a law that is none", change(law="cauchy"), SETTINGS, "law has a value")),
]
METHOD_LIES = [
    (HGM, Lie("a stronger bound", change(bound="tight"), LINES, "radius is below")),
    (TIGHT, Lie("a weaker bound, the radii of the tight one", change(bound="hgm"), LINES, "radius is above")),
    (TIGHT, Lie("PixelDP's name, tight radii", change(bound="pixeldp"), LINES, "radius is above")),
    (HGM, Lie("radii of a stronger bound", made_as(HGM, bound="tight"), LINES, "radius is above")),
    (LAPLACE, Lie("HGM under Laplace", change(bound="hgm"), SETTINGS, "not proven for this noise")),
    (LAPLACE, Lie("published under Laplace", change(bound="published"), SETTINGS, "not proven for this noise")),
    (SOFT, Lie("votes' confidence for scores", change(confidence="clopper-pearson"), SETTINGS, "for votes, not for means")),
    (Made(confidence="hoeffding"), Lie("confidence renamed", change(confidence="clopper-pearson"), LINES, "radius is below")),
    (TIGHT, Lie("confidence of another name", change(confidence="hoeffding"), LINES, "radius is above")),
    (UNION, Lie("complement with the columns of a union", change(runner_up="complement"), LINES, "header is wrong")),
    (UNION, Lie("the union forgotten", change(classes=1), SETTINGS, "classes is not")),
    (UNION, Lie("the runner-up lowered", forge_cell(3, 9, "0"), LINES, "those of no draws")),
    (UNION, Lie("more for two than draws", both(forge_cell(0, 9, "9"), forge_cell(0, 8 + 2, "9")), LINES, "for two classes")),
    (SOFT, Lie("squares lowered", forge_cell(3, 8, str(sums_of(SOFT)[3][1] - 2**32)), LINES, "radius is below")),
    (SOFT, Lie("squares below the mean's", forge_cell(3, 8, str(sums_of(SOFT)[3][0])), LINES, "those of no draws")),
    (SOFT, Lie("squares of another parity", forge_cell(3, 8, str(sums_of(SOFT)[3][1] + 1)), LINES, "those of no draws")),
    (SOFT, Lie("squares beyond 63 bits", forge_cell(3, 8, "9" * 19), LINES, "no certificate")),
    (SOFT, Lie("scores of resolution 2", change(resolution=2), SETTINGS, "resolution is not")),
    (TIGHT, Lie("votes of a fine resolution", change(resolution=SCORES), SETTINGS, "resolution is not")),
    (SOFT, Lie("scores called votes", change(statistic="votes"), SETTINGS, "resolution is not")),
    (SOFT, Lie("looks for scores", change(target_radius=0.1), SETTINGS, "a target radius or several looks")),
    (SOFT, Lie("noise shared by scores", change(shared_noise=True), SETTINGS, "shared noise cannot")),
    (TIGHT, Lie("noise shared behind a layer", change(shared_noise=True), SETTINGS, "at the input alone")),
    (
        TIGHT,
        Lie(
            "a largest radius of another bound",
            change(largest_radius=largest_of(TIGHT) + 2e-6),
            SETTINGS,
            "largest_radius is ab",
        ),
    ),
    (TIGHT, Lie("a key missing", forge_settings(lambda s: s.pop("operator_norm")), SETTINGS, "operator_norm is missing")),
]
PROMISE_LIES = [
    (
        PUBLISHED,
        Lie(
            "published called proven", forge_run(lambda r: r["guarantees"]["robustness"].update(status="proven")), RUN, "false"
        ),
    ),
    (
        PUBLISHED,
        Lie(
            "published said softly", forge_run(lambda r: r["guarantees"]["robustness"].update(status="published")), RUN, "false"
        ),
    ),
    (
        PUBLISHED,
        Lie(
            "another bound promised",
            forge_run(lambda r: r["guarantees"]["robustness"]["values"].update(bound="tight")),
            RUN,
            "bound",
        ),
    ),
    (
        TIGHT,
        Lie("published, but private", reconfigure(lambda c: c.update(variant="published")), RUN, "as its paper printed it"),
    ),
    (
        TIGHT,
        Lie(
            "shares from the records, unpaid",
            reconfigure(lambda c: c["noise_layer"].update(redistribution="training")),
            "ledger.jsonl",
            "redistributed by the training records",
        ),
    ),
    (TIGHT, Lie("no noise layer in config", reconfigure(lambda c: c.update(noise_layer=None)), SETTINGS, "law and place")),
    (
        TIGHT,
        Lie(
            "a network of nobody's", reconfigure(lambda c: c.update(model="own:Net")), "model.safetensors", "cannot be rebuilt"
        ),
    ),
    (
        TIGHT,
        Lie(
            "a network without bound",
            reconfigure(lambda c: c.update(width=2**15)),
            "model.safetensors",
            "not that of the network mlp",
        ),
    ),
    (TIGHT, Lie("a width of no network", reconfigure(lambda c: c.update(width=2**40)), "model.safetensors", "not that of")),
    (
        TIGHT,
        Lie(
            "a noise layer that is none",
            reconfigure(lambda c: c.update(noise_layer={})),
            "model.safetensors",
            "cannot be rebuilt",
        ),
    ),
]
LIES = [*NORM_LIES, *NOISE_LIES, *METHOD_LIES, *PROMISE_LIES]


@pytest.mark.parametrize(("made", "lie"), LIES, ids=[lie.name.replace(" ", "-") for _, lie in LIES])
def test_a_lie_about_the_method_is_caught_where_it_was_told(
    runs: Callable[[Made], Path], tmp_path: Path, made: Made, lie: Lie
) -> None:
    root = Path(shutil.copytree(runs(made), tmp_path / "run"))
    lie.apply(root)
    result = verify_run(root)
    told = [problem for problem in result.problems if problem.file == lie.file and lie.what in problem.what]
    assert told, result.problems


HOSTILE_WEIGHTS = (float("nan"), float("inf"), 3e38, 1e-45, 0.0, -1.0)


@pytest.mark.parametrize("name", ["1.weight", "1.bias", "noise.spread.scales", "noise.deviation"])
@pytest.mark.parametrize("value", HOSTILE_WEIGHTS)
def test_no_weights_make_the_verifier_raise(runs: Callable[[Made], Path], tmp_path: Path, name: str, value: float) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    network = network_of(TIGHT)
    with torch.no_grad():
        network.state_dict()[name].fill_(value)
    put_weights(root, network)
    json.dumps(verify_run(root).as_dict(), allow_nan=False)


def test_a_scale_of_zero_is_a_problem(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    network = network_of(TIGHT)
    network.get_buffer("noise.spread.scales")[3] = 0.0
    put_weights(root, network)
    assert any("cannot be rebuilt" in problem.what for problem in verify_run(root).problems)


def test_certificates_of_the_first_version_are_refused_in_one_sentence(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(AT_INPUT), tmp_path / "run"))
    new = ["law", "place", "bound", "statistic", "confidence", "runner_up", "classes", "resolution"]
    new += ["operator_norm", "operator_norm_method", "slack"]
    forge_settings(lambda settings: [settings.pop(name) for name in new])(root)
    found = [problem for problem in verify_run(root).problems if problem.file == SETTINGS]
    assert len(found) == 1
    assert "do not say how they were made" in found[0].what
    assert "--overwrite" in found[0].wanted


def paid(purpose: str, noise: float) -> Apply:
    event = ("gaussian", {"noise_multiplier": noise, "purpose": purpose})
    return forge_ledger(lambda story: story.insert(1, event))


FROM_TRAINING = reconfigure(lambda config: config["noise_layer"].update(redistribution="training"))


@pytest.mark.parametrize(
    ("purpose", "noise", "honest"),
    [("redistribution", 20.0, True), ("redistribution", 21.0, False), ("feature ranges", 20.0, False)],
)
def test_shares_from_the_records_are_paid_for_with_the_noise_of_config(
    runs: Callable[[Made], Path], tmp_path: Path, purpose: str, noise: float, honest: bool
) -> None:
    """The run also pays for feature ranges, with the same noise: one event does not pay for both."""
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    both(FROM_TRAINING, paid(purpose, noise))(root)
    assert (verify_run(root).problems == ()) == honest


def test_ranges_are_not_paid_for_by_the_event_of_the_shares(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    both(FROM_TRAINING, forge_ledger(lambda story: story[1][1].update(purpose="redistribution")))(root)
    assert any("feature ranges" in problem.what for problem in verify_run(root).problems)


def test_the_published_variant_may_say_that_it_is_refuted(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    both(FROM_TRAINING, reconfigure(lambda config: config.update(variant="published")))(root)
    forge_run(lambda run: run["guarantees"]["privacy"].update(status="refuted", values={}))(root)
    assert verify_run(root).problems == ()


def test_the_published_variant_that_takes_unpaid_shares_may_not_say_less(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    both(FROM_TRAINING, reconfigure(lambda config: config.update(variant="published")))(root)
    forge_run(lambda run: run["guarantees"]["privacy"].update(status="published"))(root)
    assert any("give records away" in problem.what for problem in verify_run(root).problems)


def test_the_training_data_are_not_public_data(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))

    def name_them_public(config: dict[str, Any]) -> None:
        config["data"] = {"source": "scans"}
        config["noise_layer"].update(redistribution="public", public_data="scans")

    reconfigure(name_them_public)(root)
    assert any("under the name of public ones" in problem.what for problem in verify_run(root).problems)


def test_verifying_costs_no_random_numbers(runs: Callable[[Made], Path]) -> None:
    made = runs(CONVOLVED)
    before = torch.random.get_rng_state()
    verify_run(made)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_owners_network_can_be_given(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(runs(TIGHT), tmp_path / "run"))
    reconfigure(lambda config: config.update(model="own:Net"))(root)
    assert any("cannot be rebuilt" in problem.what for problem in verify_run(root).problems)
    network = build_network("mlp", SHAPE, CLASSES)
    assert verify_run(root, network=network).problems == ()
    scaled(TIGHT, "operator_norm", 0.99)(root)
    assert any("operator_norm is below" in problem.what for problem in verify_run(root, network=network).problems)


def test_a_union_pays_for_every_class(runs: Callable[[Made], Path], tmp_path: Path) -> None:
    """Planted bug: bounds at alpha for each class, as if only one had been looked at."""
    root = Path(shutil.copytree(runs(UNION), tmp_path / "run"))
    forge_settings(lambda settings: settings.update(alpha=ALPHA / CLASSES, looks=[{"draws": DRAWS, "alpha": ALPHA / CLASSES}]))(
        root
    )
    assert any("radius is above" in problem.what for problem in verify_run(root).problems)


@pytest.mark.parametrize("made", [TIGHT, HGM, LAPLACE, SOFT, PUBLISHED], ids=str)
def test_a_radius_is_held_to_its_last_digit(runs: Callable[[Made], Path], tmp_path: Path, made: Made) -> None:
    """Two units above what the sums prove are found on every line that has an answer, and nothing else is."""
    root = Path(shutil.copytree(runs(made), tmp_path / "run"))
    certain = [index for index, sums in enumerate(sums_of(made)) if answer(made, sums)[0]]
    for index in certain:
        forge_cell(index, 5, f"{float(rows_of(made)[index][5]) + 2e-6:.6f}")(root)
    found = [problem.what for problem in verify_run(root).problems if problem.file == LINES]
    assert found == [f"line {index + 2}: the radius is above what the votes prove" for index in certain]

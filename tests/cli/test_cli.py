"""The command line as a user meets it: real processes for what they see, the entry point in-process for the rest."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import twinproof as tp
from twinproof.cli.main import application, run
from twinproof.data.record import DataConfig
from twinproof.recipes.config import TrainConfig, parse_train_config
from twinproof.recipes.interval import IntervalConfig
from twinproof.recipes.noise_layer import NoiseLayerConfig
from twinproof.recipes.recipe import RegulariserConfig
from twinproof.recipes.registry import RECIPES
from twinproof.training.passes import Performance
from twinproof_papers.published.stobatch import TrainersConfig

SHORT = ["--data", "digits", "--set", "model=mlp", "--set", "steps=6", "--delta", "1e-4"]
# With a given multiplier no noise is searched for an epsilon, which takes longer than the training.
QUICK = [*SHORT, "--set", "noise_multiplier=3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as ended:
        run(["train", *QUICK, "--out", str(root), "--json"])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        run(["certify", str(root), "--n", "200", "--limit", "12", "--json"])
    assert ended.value.code == 0
    return root


@pytest.mark.parametrize(("given", "wanted"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_command_loads_no_slow_library_and_its_threads_wait_passively(given: str | None, wanted: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    script = "import os, sys, twinproof.cli.main; print(os.environ['OMP_WAIT_POLICY'], *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    policy, *loaded = done.stdout.split()
    assert policy == wanted
    assert not {"torch", "numpy", "scipy", "dp_accounting", "matplotlib", "sklearn", "pydantic"} & set(loaded)


VERBS = [
    *("demo", "train", "certify", "attack", "audit", "verify", "report", "reproduce", "federate"),
    *("sigma", "epsilon", "recipes", "data", "settings"),
]


def test_no_verb_is_forgotten_here() -> None:
    assert {
        command.name or getattr(command.callback, "__name__", "") for command in application([]).registered_commands
    } == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example_on_one_line_and_takes_json(call: Any, verb: str) -> None:
    answer = call(verb, "--help")
    assert answer.code == 0
    example = next(line for line in answer.out.splitlines() if line.startswith("  Example: twinproof"))
    assert example.split()[2] == verb
    assert "--json" in answer.out


def test_version_and_completion(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("--version").out == f"twinproof {tp.__version__}\n"
    assert "--install-completion" in call("--help").out
    for name, value in (("_TWINPROOF_COMPLETE", "complete_bash"), ("COMP_WORDS", "twinproof ce"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert call().out.split() == ["certify"]


def test_settings_are_those_of_the_models(call: Any) -> None:
    rows = {row["name"]: row for row in call("settings", "--json").json()["settings"]}
    sections: dict[str, type[BaseModel]] = {
        "data": DataConfig,
        "regulariser": RegulariserConfig,
        "noise_layer": NoiseLayerConfig,
    }
    sections |= {"trainers": TrainersConfig, "interval": IntervalConfig, "performance": Performance}
    wanted = {f"{section}.{name}" for section, model in sections.items() for name in model.model_fields}
    assert set(rows) == wanted | (set(TrainConfig.model_fields) - set(sections))
    assert all(row["meaning"] for row in rows.values())
    assert (rows["delta"]["default"], rows["delta"]["range"]) == (1e-5, "number above 0 and below 1")
    assert rows["clip_rule"]["range"] == "flat, psac-paper, psac-code"
    assert rows["data.source"]["default"] == "required"


@pytest.mark.parametrize("recipe", RECIPES)
def test_settings_of_a_recipe_are_those_that_it_reads(call: Any, recipe: str) -> None:
    rows = {row["name"]: row["default"] for row in call("settings", recipe, "--json").json()["settings"]}
    config = parse_train_config({"data": {"source": "digits"}, "recipe": recipe}).model_dump(mode="json")
    for name, default in rows.items():
        section, _, inner = name.rpartition(".")
        if section != "data":
            assert default == (config[section] or {})[inner] if section else default == config[name]
    read = {name.partition(".")[2] for name in rows if name.startswith("regulariser.")}
    assert read == {name for name, value in (config["regulariser"] or {}).items() if value is not None}
    assert any(name.startswith("noise_layer.") for name in rows) == (config["noise_layer"] is not None)
    assert "setting" in call("settings", recipe).out.splitlines()[0]


def test_a_target_radius_is_decided_with_fewer_draws(call: Any, trained: Path, tmp_path: Path) -> None:
    """The answer says what was decided, shows nothing beyond the target, and calls bounds bounds; so does the report."""
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    options = ["--n", "2000", "--limit", "40", "--target-radius", "0.3", "--overwrite"]
    answer = call("certify", root, *options, "--json").json()
    lines = [line.split(",") for line in (root / "certificates/l2/certificates.csv").read_text().splitlines()[1:]]
    assert answer["target_radius"] == 0.3
    assert answer["decided"] == sum(float(line[5]) >= 0.3 for line in lines) / 40
    assert answer["mean_draws"] == sum(int(line[7]) for line in lines) / 40 < 2000
    assert list(answer["certified_accuracy"]) == list(answer["intervals"]["certified_accuracy"]) == ["0", "0.25", "0.3"]
    shown = call("certify", root, *options).out
    assert all(
        words in shown for words in ("target radius", "of 2000 at most", "at least", "a lower bound", "certified at 0.3")
    )
    assert "certified at 0.25  at least" in shown
    assert call("verify", root, "--json").json()["problems"] == []
    files = call("report", root, "--json").json()
    (certified,) = json.loads(Path(files["json"]).read_text())["certifications"]
    assert max(point["radius"] for point in certified["curve"]) <= 0.3
    assert list(certified["certified"]["certified_accuracy"]) == ["0", "0.25"]
    assert "lower bounds" in Path(files["html"]).read_text()


def test_shared_noise_is_asked_for_and_said(call: Any, trained: Path, tmp_path: Path) -> None:
    """The option reaches the record, the summary, the answer for machines and the report; without it nobody mentions it."""
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    options = ["--n", "200", "--limit", "12"]
    own = call("certify", root, *options)
    assert "network as run" in own.out
    assert "shared" not in own.out
    assert call("certify", root, *options, "--json").json()["shared_noise"] is False
    refused = call("certify", root, *options, "--shared-noise")
    assert refused.code == 2, "certificates of both kinds are never mixed"
    assert "shared_noise" in refused.err
    shared = call("certify", root, *options, "--shared-noise", "--overwrite")
    assert shared.code == 0, shared.err
    assert "shared by all inputs" in shared.out
    assert "95 % interval given this noise" in shared.out
    answer = call("certify", root, *options, "--shared-noise", "--json").json()
    record = json.loads((root / "certificates/l2/certificates.json").read_text())
    assert record["sampling"]["shared_noise"] is answer["shared_noise"] is True
    assert (answer["form"], answer["arithmetic"]) == (record["network"]["form"], record["network"]["arithmetic"])
    assert call("verify", root, "--json").json()["problems"] == []
    page = Path(call("report", root, "--json").json()["html"]).read_text()
    assert "certificates may fail together" in page
    assert "given the noise that all of them shared" in answer["intervals_over"]


def test_train_certify_verify_report(call: Any, trained: Path) -> None:
    again = call("certify", trained, "--n", "200", "--limit", "12", "--json").json()
    assert set(again) >= {"acr", "certified_accuracy", "smoothed_accuracy", "abstained", "images_per_second"}
    assert (again["n"], again["alpha"], again["norm"]) == (200, 0.001, "l2")
    assert (again["target_radius"], again["decided"], again["mean_draws"]) == (None, None, 200)
    assert "target" not in call("certify", trained, "--n", "200", "--limit", "12").out
    verified = call("verify", trained, "--json")
    assert (verified.code, verified.json()["ok"], verified.json()["problems"]) == (0, True, [])
    files = call("report", trained, "--json").json()
    assert Path(files["html"]).is_file()
    assert json.loads(Path(files["json"]).read_text())
    assert call("verify", trained).code == 0, "a report must not spoil the run"


def test_train_answers_with_the_promised_keys(call: Any, tmp_path: Path) -> None:
    answer = call("train", *SHORT, "--epsilon", "2", "--out", tmp_path / "run", "--json").json()
    assert answer["run"] == str(tmp_path / "run")
    assert 0 < answer["epsilon"] <= 2
    assert answer["warning"] == ""
    assert (answer["delta"], answer["status"]) == (1e-4, "proven")
    assert 0 <= answer["accuracy"] <= 1


def test_a_large_epsilon_is_called_weak(call: Any, tmp_path: Path) -> None:
    answer = call("train", *QUICK, "--set", "noise_multiplier=0.3", "--out", tmp_path / "run", "--json").json()
    assert answer["status"] == "proven"
    assert "weak" in answer["warning"]
    promise = json.loads((tmp_path / "run" / "run.json").read_text())["guarantees"]["privacy"]["promise"]
    assert "rounds to 100 %: it says nothing. This is weak protection" in promise
    assert "almost the same" not in promise
    shown = call("epsilon", "--noise-multiplier", "0.4", "--delta", "1e-5").out
    assert "This is weak protection" in shown


def test_a_refuted_promise_is_answered_without_an_epsilon(call: Any, tmp_path: Path) -> None:
    published = ("train", *QUICK, "--recipe", "securesgd", "--set", "variant=published", "--set", "steps=1")
    answer = call(*published, "--out", tmp_path / "run", "--json").json()
    assert answer["status"] == "refuted"
    assert "deterministic function of the training records" in answer["reason"]
    assert (answer["epsilon"], answer["epsilon_rdp"], answer["delta"]) == (None, None, None)
    text = call(*published, "--out", tmp_path / "other").out
    assert "refuted: Nothing is promised" in text
    assert "epsilon" not in text


PUBLISHED_PRIVACY = [
    ("adlm", "refuted"),
    ("securesgd", "refuted"),
    ("securesgd-agm", "published"),
    ("pixeldp", "none"),
    ("dpsgd", None),
]


@pytest.mark.parametrize(("recipe", "status"), PUBLISHED_PRIVACY)
def test_recipes_says_what_the_published_variant_is_worth(call: Any, recipe: str, status: str | None) -> None:
    rows = {row["name"]: row for row in call("recipes", "--json").json()["recipes"]}
    assert rows[recipe]["published_privacy_status"] == status
    assert call("recipes").out.count("(privacy of published: refuted)") == 3


def test_a_seed_takes_the_promise_away(call: Any, tmp_path: Path) -> None:
    answer = call("train", *QUICK, "--seed", "1", "--out", tmp_path / "run", "--json").json()
    assert answer["status"] == "none"
    assert answer["reason"] == "noise is reproducible from a known seed"
    assert (answer["epsilon"], answer["epsilon_rdp"], answer["delta"]) == (None, None, None)
    text = call("train", *QUICK, "--seed", "1", "--out", tmp_path / "other").out
    assert "none: Nothing is promised" in text


def test_verify_fails_with_one_on_a_lie(call: Any, trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    record = json.loads((copy / "run.json").read_text())
    record["privacy"]["epsilon"] /= 2
    (copy / "run.json").write_text(json.dumps(record))
    answer = call("verify", copy, "--json")
    assert answer.code == 1
    assert not answer.json()["ok"]
    assert any("epsilon" in problem["what"] for problem in answer.json()["problems"])
    assert "problem  run.json" in call("verify", copy).out


def test_calculators(call: Any) -> None:
    sampling, target = ("--sample-rate", 256 / 60000, "--steps", 2350, "--delta", 1e-5), ("--epsilon", 3, "--delta", 1e-5)
    spent = call("epsilon", "--noise-multiplier", 1.1, *sampling, "--json").json()
    assert spent["epsilon"] == pytest.approx(0.920200, abs=2e-6)
    assert spent["epsilon_rdp"] == pytest.approx(1.099707, abs=2e-6)
    many = ("--sample-rate", 0.1, "--steps", 50)
    noise = call("sigma", "--mechanism", "dpsgd", *target, *many, "--json").json()["sigma"]
    back = call("epsilon", "--noise-multiplier", noise, *many, "--delta", 1e-5, "--json").json()["epsilon"]
    assert 3 * 0.995 <= back <= 3


def test_listings(call: Any) -> None:
    listed = call("recipes", "--json").json()["recipes"]
    proven = {row["name"] for row in listed if row["privacy_status"] == "proven"}
    assert proven == set(RECIPES) - {"regular", "gaussian", "pixeldp", "hgm-pixeldp"}
    assert {row["privacy_status"] for row in listed} == {"proven", "none"}
    assert all({"name", "privacy_status", "robustness", "paper"} <= set(row) for row in listed)
    assert "dpcert-gaussian" in call("recipes").out
    names = {row["name"] for row in call("data", "--json").json()["data"]}
    assert {"digits", "breast-cancer", "mnist", "fashion-mnist", "cifar10"} <= names
    assert "digits" in call("data").out


def test_config_file_sets_and_flags_in_order_of_rank(call: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'recipe = "dpsgd"\nsteps = 3\nnoise_multiplier = 3\nlearning_rate = 0.25\n[data]\nsource = "digits"\n'
    )
    call(
        "train", "--config", tmp_path / "run.toml", "--set", "steps=4", "--set", "model=mlp", "--delta", "1e-4",
        "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["recipe"], config["steps"], config["learning_rate"], config["delta"]) == ("dpsgd", 4, 0.25, 1e-4)


def test_a_users_own_csv_end_to_end(call: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = ["age,dose,outcome"]
    for _ in range(400):
        sick = int(generator.integers(2))
        rows.append(
            f"{40 + 20 * sick + generator.normal() * 5:.1f},{1 + sick + generator.normal() * 0.3:.2f},{['no', 'yes'][sick]}"
        )
    (tmp_path / "patients.csv").write_text("\n".join(rows) + "\n")
    settings = ["--set", "data.label=outcome", "--set", "noise_multiplier=3", "--set", "steps=20"]
    settings += ["--delta", "1e-4", "--set", "batch_size=64"]
    own = ["train", "--data", tmp_path / "patients.csv", *settings, "--out", tmp_path / "run"]
    refused = call(*own)
    assert refused.code == 2
    assert all(words in refused.err for words in ("--test FILE", "--public-fraction", "have no privacy", "attacks.safetensors"))
    refused = call(*own, "--public-fraction", "0.2")
    assert refused.code == 2
    assert "features need bounds" in refused.err
    ranges = ["--set", "data.ranges={age=[0,120],dose=[0,5]}"]
    refused = call(*own, *ranges, "--test", tmp_path / "patients.csv")
    assert refused.code == 2
    assert "the test file is the training file" in refused.err
    done = call(*own, *ranges, "--public-fraction", "0.2", "--json")
    assert done.code == 0, done.err
    assert "public: about 20% of the records" in done.err
    assert "raw values and labels may appear in certificates.csv" in done.err
    assert str(tmp_path) not in (tmp_path / "run" / "run.json").read_text()
    certified = call("certify", tmp_path / "run", "--n", "200", "--json")
    assert certified.code == 0, certified.err
    assert call("verify", tmp_path / "run").code == 0
    page = Path(call("report", tmp_path / "run", "--json").json()["html"])
    assert "Records of your own data are shown only if you ask for it" in page.read_text()
    assert call("report", tmp_path / "run", "--examples").code == 0
    assert "chosen as" in page.read_text()


def test_test_records_in_a_file_of_their_own(call: Any, tmp_path: Path) -> None:
    for name, shift in (("patients", 0.0), ("public", 0.5)):
        rows = [f"{i % 40 + shift},{'ny'[i % 2]}" for i in range(80)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["dose,label", *rows]) + "\n")
    settings = ["--set", "data.ranges={dose=[0,50]}", "--set", "steps=2", "--delta", "1e-3", "--set", "noise_multiplier=5"]
    arguments = ["train", "--data", tmp_path / "patients.csv", "--test", tmp_path / "public.csv", *settings]
    answer = call(*arguments, "--out", tmp_path / "run", "--json")
    assert answer.code == 0, answer.err
    assert "public.csv; the test records have no privacy" in answer.err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["data"]["records"], record["data"]["test_records"], record["config"]["data"]["test"]) == (
        80,
        80,
        "public.csv",
    )
    both = call(*arguments, "--public-fraction", "0.2", "--out", tmp_path / "x")
    assert both.code == 2
    assert "two test parts" in both.err


def test_a_warning_is_one_line_for_a_person(call: Any, tmp_path: Path) -> None:
    rows = [f"{i},{i % 2}" for i in range(60)]
    (tmp_path / "few.csv").write_text("\n".join(["dose,label", *rows]) + "\n")
    settings = ["--public-fraction", "0.2", "--delta", "1e-3"]
    for pair in ("data.ranges=private", "steps=2", "noise_multiplier=5"):
        settings += ["--set", pair]
    answer = call("train", "--data", tmp_path / "few.csv", *settings, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "warning: no values of dose stood out of the noise" in answer.err
    assert "private_ranges.py" not in answer.err


@pytest.fixture
def children_heed_ctrl_c() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("children_heed_ctrl_c")
def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "twinproof", "train", "--data", "digits", "--delta", "1e-4"]
    endless = ("model=mlp", "noise_multiplier=3", "steps=100000")
    for pair in (*endless, "performance.report_every=100000", "performance.checkpoint_every=1"):
        command += ["--set", pair]
    root = tmp_path / "run"
    command += ["--out", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (root / "private" / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "--resume" in err
    assert "Traceback" not in err
    assert json.loads((root / "run.json").read_text())["state"] == "training"


@pytest.mark.slow
def test_demo_runs_the_main_job(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twinproof", "demo", "--out", str(tmp_path / "demo"), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["verified"] is True
    assert answer["status"] == "proven"
    assert answer["epsilon"] <= 3
    assert answer["accuracy"] > 0.85
    assert answer["certified"]["certified_accuracy"]["0.25"] > 0.5
    attacked = answer["attacked"]
    assert attacked["crossing"] is False
    for size, certified in attacked["certified_accuracy"].items():
        # An answer under attack rests on fewer draws than a certificate, and an abstention is not correct.
        assert certified - 0.1 < attacked["accuracy"][size] <= attacked["clean_accuracy"]
    attacks = {path.name for path in (tmp_path / "demo/attacks/l2").iterdir()}
    assert attacks == {"attacks.json", "attacks.csv", "attacks.safetensors"}
    assert "Under attack" in (tmp_path / "demo" / "report.html").read_text()
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    assert "Traceback" not in done.stderr

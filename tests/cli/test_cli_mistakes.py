"""Mistakes in the calls of every verb: exit 2, one message, five fields with --json, no traceback, nothing written."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import twinproof as tp
from twinproof.certification.method import Sampling
from twinproof.cli.train import assignments
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.runs.run import Run

LONG = "a" * 5000
DEEP = "/".join(["a" * 200] * 40)
TRAIN = ("train", "--data", "digits", "--set", "model=mlp", "--out", "{tmp}/x")
CERTIFY = ("certify", "{run}", "--overwrite", "--limit", "2", "--n", "100")
ATTACK = ("attack", "{run}", "--overwrite", "--limit", "2", "--n", "50")
AUDIT = ("audit", "{run}", "--overwrite", "--limit", "1")
EPSILON = ("epsilon", "--noise-multiplier", "1", "--delta", "1e-5", "--sample-rate", "0.01")
SIGMA_ALONE = ("sigma", "--epsilon", "1")
SIGMA = ("sigma", "--epsilon", "1", "--delta", "1e-5")
REPRODUCE = ("reproduce", "hgm-fig3", "--quick", "--out", "{tmp}/x")
FEDERATE = ("federate", "--set", "steps=2", "--set", "model=mlp", "--out", "{tmp}/x")

SETTINGS = [
    ("lerning_rate=1", "did you mean 'learning_rate'"),
    ("learning_rate", "key=value"),
    ("model=resnet", "mlp"),
    ("model=tramer-boneh-cnn", "small-cnn"),
    ("batch_size=100000", "batch"),
    ("epochs=1e12", "a whole number from 0 to 1,000,000"),
    ("steps=1000000000000", "a whole number from 0 to 1,000,000"),
    ("steps=" + "9" * 400, "steps"),
    ("learning_rate=1e300", "less than or equal to 1000000000"),
    ("learning_rate=-1", "learning_rate"),
    ("learning_rate=" + "[" * 3000, "learning_rate"),
    ("seed=" + "9" * 5000, "seed"),
    ("epochs=nan", "epochs"),
    ("clip_norm=0", "clip_norm"),
    ("records=5", "more training records than declared"),
    ("width=1000000", "width"),
    ("model=nope", "nope"),
    ("recipe=nope", "nope"),
    ("recipe=3", "3"),
    ("performance.device=tpu", "device"),
    ("performance=3", "performance"),
    ("data.test_fraction=0.2", "public_fraction"),
    ("data.test=other.csv", "has its own test part"),
    ("x=1", "x"),
    ("a..b=1", "--set"),
    ("=1", "--set"),
    ("epochs", "--set"),
]
OPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("nonsense",), "nonsense"),
    (("train", "--data", "digits"), "--out"),
    (("train", "--data", "digitz", "--out", "{tmp}/x"), "digits"),
    (("train", "--out", "{tmp}/x", "--resume"), "nothing to resume"),
    ((*TRAIN, "--recipe", "dpsdg"), "did you mean 'dpsgd'"),
    ((*TRAIN, "--epsilon", "-1"), "epsilon"),
    ((*TRAIN, "--epsilon", "abc"), "epsilon"),
    ((*TRAIN, "--delta", "0.01"), "delta"),
    ((*TRAIN, "--epsilon", "1", "--set", "noise_multiplier=1"), "noise is set twice"),
    *(((*TRAIN, "--set", setting), words) for setting, words in SETTINGS),
    ((*TRAIN, "--set", "epochs=1", "--set", "epochs.x=2"), "both as a value and as a section"),
    ((*TRAIN, "--set", "epochs.x=2", "--set", "epochs=1"), "both as a value and as a section"),
    ((*TRAIN, "--device", "tpu"), "device"),
    ((*TRAIN, "--public-fraction", "2"), "public_fraction"),
    ((*TRAIN, "--test", "{tmp}/nowhere.csv"), "own test part"),
    (("train", "--data", "{csv}", "--out", "{tmp}/x"), "--public-fraction"),
    (("train", "--data", "{csv}", "--test", "{csv}", "--out", "{tmp}/x"), "the test file is the training file"),
    (("train", "--data", LONG, "--out", "{tmp}/x"), ""),
    (("train", "--data", "{csv}", "--test", LONG, "--out", "{tmp}/x"), ""),
    (("train", "--data", "digits", "--set", "steps=1", "--out", DEEP), ""),
    (("train", "--data", "digits", "--config", LONG, "--out", "{tmp}/x"), "cannot be read"),
    (("train", "--out", "{tmp}/x"), "no data set is named"),
    *(((*CERTIFY, "--device", name), "device") for name in ("tpu", "cuda:x", "meta", "mps")),
    *(((*CERTIFY, option, value), "") for option, value in (
        ("--statistic", "x"), ("--confidence", "x"), ("--runner-up", "x"), ("--n", "0"), ("--n0", "-1"), ("--alpha", "0"),
        ("--alpha", "nan"), ("--sigma", "nan"), ("--sigma", "1e300"), ("--target-radius", "nan"), ("--target-radius", "1e300"),
        ("--limit", "-1"), ("--data", LONG),
    )),
    *(((*CERTIFY, option, value), words) for option, value, words in (
        ("--norm", "l7", "one of: l1, l2, linf"), ("--bound", "tigth", "tight"), ("--n", "9", "never certify"),
        ("--alpha", "2", "alpha"), ("--limit", "0", "limit"), ("--sigma", "0", "sigma"),
        ("--target-radius", "0", "target radius cannot be used"), ("--target-radius", "9", "out of reach"),
        ("--data", "breast-cancer", "not the data"),
    )),
    ((*CERTIFY, "--statistic", "scores", "--confidence", "clopper-pearson"), "for votes"),
    (("certify", "{run}", "--n", "300", "--limit", "2"), "--overwrite"),
    (("certify", "{run}", "--n", "100", "--limit", "2", "--target-radius", "0.1"), "--overwrite"),
    (("certify", "{tmp}/nowhere"), "not a run directory"),
    (("certify", LONG), ""),
    ((*ATTACK, "--attack", "all", "--attack", "nope"), "nope"),
    ((*ATTACK, "--size", "1e300"), "at most 40,000"),
    *(((*ATTACK, option, value), words) for option, value, words in (
        ("--attack", "cw", "fgsm, ifgsm, mim, pgd"), ("--size", "-0.5", "size makes no sense"), ("--size", "inf", ""),
        ("--size", "nan", "size makes no sense"), ("--size", "big", "big"), ("--norm", "l3", "linf"),
        ("--protocol", "ours", "adaptive"), ("--steps", "0", "steps"), ("--step-size", "0", "step_size"),
        ("--step-size", "1e300", ""), ("--restarts", "0", ""), ("--draws", "0", "draws"), ("--paper-steps", "0", ""),
        ("--target-class", "1", "--targeted"), ("--n", "0", ""), ("--n", "3", "never certify"), ("--n0", "0", ""),
        ("--alpha", "nan", ""), ("--alpha", "2", "alpha"), ("--limit", "0", "nothing to attack"), ("--device", "tpu", ""),
        ("--data", "breast-cancer", "not the data of the run"), ("--data", "{tmp}/nothing", "nothing"),
    )),
    ((*ATTACK, "--attack", "fgsm", "--restarts", "3"), "restarts would be wasted"),
    ((*ATTACK, "--targeted"), "--target-class"),
    ((*ATTACK, "--targeted", "--target-class", "3", "--target-rule", "next"), "--target-rule"),
    ((*ATTACK, "--targeted", "--target-rule", "random"), "least-likely"),
    (("attack", "{tmp}/nowhere"), "not a run directory"),
    ((*ATTACK, "--targeted", "--target-class", "99"), "99"),
    (("attack", DEEP), ""),
    *(((*AUDIT, option, value), words) for option, value, words in (
        ("--steps", "0", "steps cannot be used"), ("--draws", "0", ""), ("--draws", "x", "draws"), ("--restarts", "-1", ""),
        ("--votes", "5", "votes cannot be used"), ("--limit", "0", "nothing to attack"), ("--device", "tpu", ""),
        ("--data", "breast-cancer", "not the data"),
    )),
    (("audit", "{tmp}/nowhere"), "not a run directory"),
    ((*AUDIT, "--certificates", "mine"), "mine"),
    ((*AUDIT, "--name", "../x"), "name"),
    ((*CERTIFY, "--name", LONG), "name"),
    (("verify", "{tmp}/nowhere"), "not a run directory"),
    (("verify", LONG), ""),
    (("verify", "{run}", "--data", LONG), ""),
    (("report", "{tmp}/nowhere"), "not a run directory"),
    (("report", "{run}", "{run}"), "--out"),
    (("report", LONG), ""),
    (("report", "{run}", "--data", LONG), ""),
    (("report", "{run}", "{run}", "--out", LONG), ""),
    (("report", "{run}", "{run}", "--out", "{tmp}/x", "--examples"), "--examples"),
    (("demo", "--out", LONG), ""),
    (("demo", "--device", "tpu", "--out", "{tmp}/x"), "device"),
    (("demo", "--out", "/"), "new directory"),
    *(((*EPSILON, option, value), words) for option, value, words in (
        ("--noise-multiplier", "-1", "noise_multiplier"), ("--noise-multiplier", "nan", ""), ("--delta", "0", "delta"),
        ("--noise-multiplier", "1e300", ""), ("--delta", "nan", ""), ("--steps", "-1", ""), ("--steps", "1000000000000", ""),
        ("--steps", "9" * 40, ""), ("--sample-rate", "2", "sample_rate"),
    )),
    *(((*SIGMA, option, value), words) for option, value, words in (
        ("--epsilon", "0", "epsilon"), ("--epsilon", "nan", "epsilon"), ("--epsilon", "inf", "epsilon"),
        ("--delta", "0", "delta"), ("--delta", "1", "delta"), ("--sensitivity", "0", "sensitivity"),
        ("--sensitivity", "nan", "sensitivity"), ("--mechanism", "magic", "magic"), ("--mechanism", "dpsgd", "both options"),
        ("--dimension", "3", "heterogeneous"), ("--r", "0.5,0.5", "heterogeneous"), ("--steps", "3", "dpsgd"),
    )),
    (SIGMA_ALONE, "needs a delta"),
    ((*SIGMA_ALONE, "--mechanism", "dpsgd", "--sample-rate", "0.1", "--steps", "5"), "needs a delta"),
    ((*SIGMA_ALONE, "--mechanism", "laplace", "--delta", "1"), "delta"),
    ((*SIGMA, "--mechanism", "classic", "--epsilon", "1.01"), "up to 1 only"),
    ((*SIGMA, "--mechanism", "laplace", "--dimension", "3"), "heterogeneous"),
    ((*SIGMA, "--mechanism", "dpsgd", "--sample-rate", "0.1", "--steps", "5", "--sensitivity", "-1"), "sensitivity"),
    ((*SIGMA, "--mechanism", "dpsgd", "--sample-rate", "0.01", "--steps", "1000000000000"), "1,000,000"),
    *(((*SIGMA, "--mechanism", "hgm", option, value), words) for option, value, words in (
        ("--steps", "3", "dpsgd"), ("--dimension", "0", "dimension"), ("--dimension", "9" * 30, "10,000,000"),
        ("--r", "0.5,0,0.5", "entry 1"), ("--r", "1.5,-0.5", "entry 1"), ("--r", "0.5,0.4", "add up to 1"),
        ("--r", "no-such-file", "cannot be read"), ("--r", "a,b", ""), ("--r", LONG, ""),
    )),
    ((*SIGMA, "--mechanism", "hgm", "--r", "0.5,0.5", "--dimension", "3"), "wrong length"),
    *(((*REPRODUCE, option, value), "") for option, value in (
        ("--seeds", "0"), ("--limit", "0"), ("--epochs", "0"), ("--epochs", "nan"), ("--processes", "0"),
        ("--methods", "nope"), ("--device", "tpu"),
    )),
    (("reproduce", "hgm-fig3", "--quick", "--out", LONG), ""),
    *(((*FEDERATE, option, value), "") for option, value in (
        ("--parties", "0"), ("--timeout", "0"), ("--timeout", "nan"), ("--recipe", "regular"), ("--recipe", "x"),
        ("--epsilon", "nan"), ("--device", "tpu"), ("--data", LONG),
    )),
    ((*FEDERATE, "--data", "{csv}"), "--public-fraction"),
    (("data", "x"), ""),
    (("recipes", "x"), ""),
    (("settings", "dpsdg"), "did you mean 'dpsgd'"),
    (("demo", "x"), ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def certified(trained: Path, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("mistakes") / "run"))
    tp.certify(Run.open(root), dataset, sampling=Sampling(10, 100), limit=2, device="cpu")
    return root


def _shown(arguments: tuple[str, ...]) -> str:
    return " ".join(argument if len(argument) < 30 else f"{argument[:8]}..." for argument in arguments)


@pytest.mark.parametrize(("arguments", "words"), OPTIONS, ids=[_shown(arguments) for arguments, _ in OPTIONS])
def test_a_wrong_value_ends_with_two(
    call: Any, certified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("dose,label\n1,a\n2,b\n3,a\n4,b\n")
    before = {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()}
    filled = [argument.format(tmp=tmp_path, run=certified, csv=tmp_path / "own.csv") for argument in arguments]
    began = time.monotonic()
    answer = call(*filled, "--json")
    assert answer.code == 2, answer.err
    error = answer.json()["error"]
    assert set(error) == {"what", "where", "got", "wanted", "fix"}
    assert words in " ".join(error.values())
    assert "Traceback" not in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"], "nothing may be half written"
    assert {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()} == before
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("arguments", [("nonsense",), ("certify", "nowhere"), ("epsilon", "--noise-multiplier", "1")])
def test_people_read_one_message(call: Any, arguments: tuple[str, ...]) -> None:
    answer = call(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err


def test_settings_of_one_section_are_put_together() -> None:
    given = assignments(["data={source='a'}", "data.label=b", "steps=3", "steps=4", "name=1\nother=2", "text=it's"])
    assert given == {"data": {"source": "a", "label": "b"}, "steps": 4, "name": "1\nother=2", "text": "it's"}
    with pytest.raises(ConfigError, match="only one of the two for data"):
        assignments(["data=3", "data.label=b"])

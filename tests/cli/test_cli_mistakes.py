"""Wrong values for the options of every verb: exit 2, one message, five fields for machines, no traceback, nothing written."""

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
SIGMA = ("sigma", "--epsilon", "1", "--delta", "1e-5")
REPRODUCE = ("reproduce", "hgm-fig3", "--quick", "--out", "{tmp}/x")
FEDERATE = ("federate", "--set", "steps=2", "--set", "model=mlp", "--out", "{tmp}/x")

SETTINGS = [
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
    (("train", "--out", "{tmp}/x"), "no data are named"),
    *(((*CERTIFY, "--device", name), "device") for name in ("tpu", "cuda:x", "meta", "mps")),
    *(((*CERTIFY, option, value), "") for option, value in (
        ("--norm", "l3"), ("--bound", "x"), ("--statistic", "x"), ("--confidence", "x"), ("--runner-up", "x"), ("--n", "0"),
        ("--n0", "-1"), ("--alpha", "0"), ("--alpha", "nan"), ("--alpha", "2"), ("--sigma", "0"), ("--sigma", "nan"),
        ("--sigma", "1e300"), ("--target-radius", "nan"), ("--target-radius", "1e300"), ("--limit", "-1"), ("--data", LONG),
    )),
    (("certify", LONG), ""),
    ((*ATTACK, "--attack", "all", "--attack", "nope"), "nope"),
    ((*ATTACK, "--size", "1e300"), "at most 40,000"),
    *(((*ATTACK, option, value), "") for option, value in (
        ("--attack", "nope"), ("--size", "-1"), ("--size", "nan"), ("--size", "inf"), ("--norm", "l3"), ("--protocol", "x"),
        ("--steps", "0"), ("--step-size", "0"), ("--step-size", "1e300"), ("--restarts", "0"), ("--draws", "0"),
        ("--paper-steps", "0"), ("--target-class", "1"), ("--n", "0"), ("--n0", "0"), ("--alpha", "nan"), ("--limit", "0"),
        ("--device", "tpu"),
    )),
    ((*ATTACK, "--targeted", "--target-class", "99"), "99"),
    (("attack", DEEP), ""),
    *(((*AUDIT, option, value), "") for option, value in (
        ("--steps", "0"), ("--draws", "0"), ("--restarts", "-1"), ("--votes", "0"), ("--limit", "0"), ("--device", "tpu"),
    )),
    ((*AUDIT, "--certificates", "mine"), "mine"),
    ((*AUDIT, "--name", "../x"), "name"),
    ((*CERTIFY, "--name", LONG), "name"),
    (("verify", LONG), ""),
    (("verify", "{run}", "--data", LONG), ""),
    (("report", LONG), ""),
    (("report", "{run}", "--data", LONG), ""),
    (("report", "{run}", "{run}", "--out", LONG), ""),
    (("report", "{run}", "{run}", "--out", "{tmp}/x", "--examples"), "--examples"),
    (("demo", "--out", LONG), ""),
    (("demo", "--device", "tpu", "--out", "{tmp}/x"), "device"),
    (("demo", "--out", "/"), "new directory"),
    *(((*EPSILON, option, value), "") for option, value in (
        ("--noise-multiplier", "-1"), ("--noise-multiplier", "nan"), ("--noise-multiplier", "1e300"), ("--delta", "0"),
        ("--delta", "nan"), ("--steps", "-1"), ("--steps", "1000000000000"), ("--steps", "9" * 40), ("--sample-rate", "2"),
    )),
    *(((*SIGMA, option, value), "") for option, value in (
        ("--epsilon", "0"), ("--epsilon", "nan"), ("--epsilon", "inf"), ("--delta", "1"), ("--sensitivity", "0"),
        ("--sensitivity", "nan"), ("--mechanism", "x"), ("--mechanism", "dpsgd"), ("--dimension", "3"),
    )),
    ((*SIGMA, "--mechanism", "hgm", "--dimension", "9" * 30), "10,000,000"),
    ((*SIGMA, "--mechanism", "hgm", "--r", "a,b"), ""),
    ((*SIGMA, "--mechanism", "hgm", "--r", LONG), ""),
    ((*SIGMA, "--mechanism", "dpsgd", "--sample-rate", "0.01", "--steps", "1000000000000"), "1,000,000"),
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


def test_settings_of_one_section_are_put_together() -> None:
    given = assignments(["data={source='a'}", "data.label=b", "steps=3", "steps=4", "name=1\nother=2", "text=it's"])
    assert given == {"data": {"source": "a", "label": "b"}, "steps": 4, "name": "1\nother=2", "text": "it's"}
    with pytest.raises(ConfigError, match="one of the two for data"):
        assignments(["data=3", "data.label=b"])

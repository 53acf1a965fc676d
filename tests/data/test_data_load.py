"""Loading by name and path, and what of it is public."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_samples import write_cifar10, write_csv, write_mnist, write_npz
from sklearn.datasets import load_breast_cancer, load_digits

from twinproof.data import DataConfig, Dataset, RangeSpending, Scaling, describe_sources, known_sources, load
from twinproof.data.load import BREAST_CANCER_BOUNDS, public_name, read_breast_cancer, read_digits
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key

OFFICIAL = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


def same(one: Dataset, other: Dataset) -> bool:
    return all(
        np.array_equal(a, b)
        for part, again in ((one.train, other.train), (one.test, other.test))
        for a, b in ((part.inputs, again.inputs), (part.labels, again.labels))
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(4)
    rows = [f"{age:.3f},{score:.4f},{'ny'[int(age > 50)]}" for age, score in generator.uniform((18, -3), (90, 3), (4000, 2))]
    return write_csv(tmp_path / "people.csv", "age,score,label", *rows)


def test_known_sources_match_what_loads() -> None:
    found = {source.name: source for source in describe_sources(Path("nowhere"))}
    assert tuple(found) == known_sources()
    for name in ("digits", "breast-cancer"):
        data, source = load(name), found[name]
        assert source.available
        assert (data.name, str(data.kind), data.shape, data.classes) == (name, source.kind, source.shape, source.classes)
    assert not any(found[name].available for name in OFFICIAL)
    assert found["mnist"].as_dict()["shape"] == [1, 28, 28]


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_standard_set_from_root_or_environment(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / folder)
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    data = load("mnist", root=tmp_path)
    assert (data.name, data.shape, len(data.train), len(data.test)) == ("mnist", (1, 28, 28), 40, 20)
    with pytest.raises(DataError, match="TWINPROOF_DATA is not set"):
        load("mnist")
    monkeypatch.setenv("TWINPROOF_DATA", str(tmp_path))
    assert same(load("mnist"), data)
    assert {source.name: source.available for source in describe_sources()}["mnist"]


def test_missing_and_incomplete_standard_sets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'fashion-mnist' is not there") as caught:
        load("fashion-mnist", root=tmp_path)
    assert str(tmp_path / "fashion-mnist") in caught.value.where
    assert "TWINPROOF_DATA" in caught.value.fix
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="no train-labels"):
        load("mnist", root=tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"")
    with pytest.raises(DataError, match="pickled form"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize("folder", ["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"])
def test_cifar10_is_found_in_each_of_its_folders(tmp_path: Path, folder: str) -> None:
    (tmp_path / "cifar10").mkdir()
    write_cifar10(tmp_path / folder)
    assert {source.name: source.available for source in describe_sources(tmp_path)}["cifar10"]
    with pytest.raises(DataError, match="30730000 bytes"):  # found, and then read with the official size in mind
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("name", "close"),
    [("minst", "mnist"), ("fashion_mnist", "fashion-mnist"), ("cifar-10", "cifar10"), ("zzzz", "choose a name from the list")],
)
def test_an_unknown_name_suggests_a_close_one(name: str, close: str) -> None:
    with pytest.raises(ConfigError, match="no data set has this name") as caught:
        load(name)
    assert close in caught.value.fix
    assert all(known in caught.value.wanted for known in known_sources())


def test_paths_and_settings_that_cannot_be_used(tmp_path: Path) -> None:
    for source in ("nowhere/data", "no.csv", Path("no.csv")):
        with pytest.raises(DataError, match="nothing at this path"):
            load(source)
    path = tmp_path / "model.pkl"
    path.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DataError, match="kind of file is not read"):
        load(str(path))
    with pytest.raises(ConfigError) as caught:
        load(DataConfig(source="digits", test="t", classes=("a", "b")))
    assert caught.value.where == "test, classes"


def test_own_data_without_a_test_part_need_a_decision(table: Path) -> None:
    config: dict[str, Any] = {"source": str(table), "ranges": {"*": (-4.0, 100.0)}}
    with pytest.raises(ConfigError, match="nobody said which records may become public") as caught:
        load(DataConfig(**config))
    assert "--test FILE" in caught.value.fix
    assert "--public-fraction" in caught.value.fix
    assert all(name in caught.value.fix for name in ("no privacy", "certificates.csv", "attacks.safetensors", "the report"))
    data = load(DataConfig(**config, public_fraction=0.25))
    assert len(data.test) == pytest.approx(1000, abs=120)
    assert not data.public
    # What is public as a whole needs no decision: a known set, or data that are named as public ones.
    assert load("digits").public
    assert len(load("digits").test) == 400
    assert len(load(DataConfig(**config), public_fraction=0.25).test) == len(data.test)


@pytest.mark.parametrize("way", ["the path", "a relative path", "a link", "a hard link"])
def test_the_training_file_is_not_a_test_file(table: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    other = table.with_name("test.csv")
    monkeypatch.chdir(table.parent)
    if way == "a link":
        other.symlink_to(table)
    elif way == "a hard link":
        other.hardlink_to(table)
    test = {"the path": str(table), "a relative path": table.name}.get(way, str(other))
    with pytest.raises(ConfigError, match="the test file is the training file"):
        load(DataConfig(source=str(table), test=test, ranges={"*": (-4.0, 100.0)}))


def test_only_the_last_part_of_a_path_becomes_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "secret-project" / "scans"
    write_mnist(folder, side=9)
    data = load(str(folder))
    assert data.name == "scans"
    assert "secret" not in str(data.public_description())
    monkeypatch.chdir(folder)
    for source in (".", "../scans", "../scans/"):
        assert load(source).name == "scans"
    assert public_name(Path("/")) == "data"
    assert public_name(folder / "..") == "secret-project"


def test_same_settings_same_arrays(table: Path) -> None:
    for config in (DataConfig(source="digits"), DataConfig(source=str(table), ranges="test", public_fraction=0.2)):
        first = load(config)
        np.random.seed(1)  # no global state may matter
        assert same(first, load(config))


def test_private_ranges_follow_the_key_and_are_replayed_for_free(table: Path) -> None:
    config = DataConfig(source=str(table), ranges="private", ranges_noise=5.0, public_fraction=0.2)
    data = load(config, key=Key.from_seed(3))
    assert data.scaling is not None
    assert data.scaling.spending == RangeSpending(5.0)
    assert same(data, load(config, key=Key.from_seed(3)))
    stored = Scaling.from_dict(data.public_description()["scaling"])
    for again in (config, DataConfig(source=str(table), public_fraction=0.2)):
        replayed = load(again, key=Key.from_seed(99), scaling=stored)
        assert same(data, replayed)
        assert replayed.scaling == data.scaling


def test_private_ranges_look_at_the_training_records_only(tmp_path: Path) -> None:
    labels = np.arange(4000) % 2
    train = write_npz(tmp_path / "train.npz", x=np.full((4000, 1), 3.0), y=labels)
    test = write_npz(tmp_path / "test.npz", x=np.full((4000, 1), 300.0), y=labels)
    data = load(DataConfig(source=str(train), test=str(test), ranges="private"), key=Key.from_seed(1))
    assert data.scaling is not None
    assert (data.scaling.low, data.scaling.high) == ((2.0,), (4.0,))


def test_replay_estimates_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Scaling:
        raise AssertionError("estimated again")

    monkeypatch.setattr("twinproof.data.assemble.private_scaling", refuse)
    config = DataConfig(source=str(table), ranges="private", public_fraction=0.2)
    load(config, scaling=Scaling((0.0, -4.0), (100.0, 4.0), "declared"))
    with pytest.raises(AssertionError, match="estimated again"):
        load(config)
    with pytest.raises(ConfigError, match="other data"):
        load(config, scaling=Scaling((0.0,), (100.0,), "declared"))
    with pytest.raises(ConfigError, match="not scaled"):
        load("digits", scaling=Scaling((0.0,), (100.0,), "declared"))


def public_side(path: Path) -> tuple[object, bytes]:
    data = load(DataConfig(source=str(path), test=str(path.with_name("test.npz")), ranges="test"))
    return data.public_description(), data.test.inputs.tobytes()


def test_training_records_change_nothing_public(tmp_path: Path) -> None:
    """The same test part with other training records (one far outside): equal description and equal test inputs."""
    generator = np.random.default_rng(8)
    write_npz(tmp_path / "test.npz", x=generator.normal(size=(20, 3)), y=np.arange(20) % 2)
    train = generator.normal(size=(50, 3))
    answers = []
    for outlier in (0.0, 1e6):
        train[7] = outlier
        answers.append(public_side(write_npz(tmp_path / "train.npz", x=train, y=np.arange(50) % 2)))
    assert answers[0] == answers[1]


@pytest.fixture(params=sorted(OFFICIAL))
def official(request: pytest.FixtureRequest) -> Dataset:
    name = str(request.param)
    if not os.environ.get("TWINPROOF_DATA"):
        pytest.skip("TWINPROOF_DATA is not set")
    if not {source.name: source.available for source in describe_sources()}[name]:
        pytest.skip(f"no {name} in the folder that TWINPROOF_DATA names")
    return load(name)


def test_official_sets(official: Dataset) -> None:
    count = 50_000 if official.name == "cifar10" else 60_000
    assert (len(official.train), len(official.test), official.shape) == (count, 10_000, OFFICIAL[official.name])
    counts = np.bincount(official.test.labels)
    assert (counts > 800).all()
    # Means published for these sets: 0.1307, 0.2860, and 0.4914 for the red channel.
    mean = float(official.train.inputs[:, 0].mean()) / 255
    assert mean == pytest.approx({"mnist": 0.1307, "fashion-mnist": 0.2860, "cifar10": 0.4914}[official.name], abs=1e-4)


def test_digits_are_the_stored_integers() -> None:
    parts = read_digits()
    bunch = load_digits()
    assert parts.train.inputs.dtype == np.uint8
    assert (parts.levels, parts.train.inputs.shape) == (16, (1797, 1, 8, 8))
    np.testing.assert_array_equal(parts.train.inputs.reshape(1797, 64), bunch.data)
    np.testing.assert_array_equal(parts.train.labels, bunch.target)


def test_declared_bounds_cover_the_published_ones_and_are_no_copies_of_them() -> None:
    """The description of the set lists the smallest and largest value of each measurement."""
    published = re.findall(r"\((?:mean|standard error|worst)\):\s+([\d.]+)\s+([\d.]+)", load_breast_cancer().DESCR)
    assert len(published) == len(BREAST_CANCER_BOUNDS) == 30
    for (low, high), (smallest, largest) in zip(BREAST_CANCER_BOUNDS.values(), published, strict=True):
        assert low <= float(smallest) < float(largest) <= high
        assert (high - low) < 2 * (float(largest) - float(smallest))
        assert len(f"{high:g}".replace(".", "").strip("0")) <= 2


def test_breast_cancer_names_and_records() -> None:
    parts = read_breast_cancer()
    bunch = load_breast_cancer()
    assert parts.feature_names == tuple(BREAST_CANCER_BOUNDS) == tuple(bunch.feature_names)
    assert parts.classes == tuple(bunch.target_names)
    low, high = np.array(list(BREAST_CANCER_BOUNDS.values())).T
    assert ((parts.train.inputs >= low) & (parts.train.inputs <= high)).all()


def test_importing_the_room_is_cheap() -> None:
    code = "import sys, twinproof.data; print([m for m in ('sklearn', 'scipy', 'PIL', 'pyarrow', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from data_samples import write_csv
from pyarrow import parquet

from twinproof.data.load import load
from twinproof.data.record import DataConfig, Dataset, InputKind
from twinproof.errors import ConfigError, DataError

HEADER = "age,ill,height"
ROWS = ("30,no,1.75", "60,yes,1.8", "90,no,1.6", "0,yes,2.0")
RANGES = {"age": (0.0, 120.0), "height": (1.0, 2.0)}


def load_table(path: Path, **settings: Any) -> Dataset:
    test = path.with_name(f"test-{path.name}")
    if path.is_file():
        test.write_bytes(path.read_bytes())
    return load(DataConfig(**({"source": str(path), "label": "ill", "ranges": RANGES, "test": str(test)} | settings)))


def write_parquet(path: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_csv(tmp_path: Path) -> None:
    data = load_table(write_csv(tmp_path / "people.csv", HEADER, *ROWS))
    assert (data.name, data.kind, data.levels) == ("people.csv", InputKind.FEATURES, 65535)
    assert (data.feature_names, data.classes) == (("age", "height"), ("no", "yes"))
    assert data.train.inputs.tolist() == [[16384, 49151], [32768, 52428], [49151, 39321], [0, 65535]]
    assert data.train.labels.tolist() == [0, 1, 0, 1]
    assert data.scaling is not None
    assert (data.scaling.low, data.scaling.source) == ((0.0, 1.0), "declared")


def test_parquet_agrees_with_csv(tmp_path: Path) -> None:
    csv = load_table(write_csv(tmp_path / "a.csv", HEADER, *ROWS))
    path = write_parquet(
        tmp_path / "a.parquet", age=[30, 60, 90, 0], ill=["no", "yes", "no", "yes"], height=[1.75, 1.8, 1.6, 2.0]
    )
    parquet = load_table(path, test=str(tmp_path / "a.csv"))
    np.testing.assert_array_equal(parquet.train.inputs, csv.train.inputs)
    np.testing.assert_array_equal(parquet.train.labels, csv.train.labels)


def test_parquet_with_whole_numbers_and_truth_values(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.pq", smoker=[True, False], label=[7, 3])
    data = load_table(path, label=None, ranges={"*": (0, 1)})
    assert data.classes == ("3", "7")
    assert data.train.inputs.tolist() == [[65535], [0]]
    assert data.train.labels.tolist() == [1, 0]


def test_test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", HEADER, *ROWS)
    turned = write_csv(tmp_path / "b.csv", "height,age,ill", *(",".join((r.split(",") * 2)[2:5:1]) for r in ROWS))
    data = load_table(path, test=str(turned))
    np.testing.assert_array_equal(data.test.inputs, data.train.inputs)
    other = write_csv(tmp_path / "c.csv", "weight,age,ill", "1,2,no", "1,2,yes")
    with pytest.raises(DataError, match="height, weight in only one"):
        load_table(path, test=str(other))


@pytest.mark.parametrize(
    ("row", "where", "got"),
    [
        ("5,no,", "line 3, column 'height'", "nothing"),
        ("tall,no,1", "line 3, column 'age'", "'tall'"),
        ("nan,no,1", "line 3, column 'age'", "'nan'"),
        ("1,no,-inf", "line 3, column 'height'", "'-inf'"),
        ("1, ,1", "line 3, column 'ill'", "nothing"),
        ("1,no", "line 3", "2 cells"),
        ("1,no,1,2", "line 3", "4 cells"),
        ("1_000,no,1", "line 3, column 'age'", "'1_000'"),
        ("1,no,1e999", "line 3, column 'height'", "'1e999'"),
        ("0x1,no,1", "line 3, column 'age'", "'0x1'"),
        ("  ", "line 3", "1 cells"),
        ("nan,no,", "line 3, column 'age'", "'nan'"),
    ],
)
def test_cells_are_named(tmp_path: Path, row: str, where: str, got: str) -> None:
    path = write_csv(tmp_path / "a.csv", HEADER, ROWS[0], row, ROWS[1])
    with pytest.raises(DataError) as caught:
        load_table(path)
    assert caught.value.where == f"{path}, {where}"
    assert caught.value.got == got


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"age": [1.0, None], "ill": ["a", "b"]}, r"row 1, column 'age'\n  got: nothing"),
        ({"age": [1.0, float("nan")], "ill": ["a", "b"]}, r"row 1, column 'age'\n  got: nan"),
        ({"age": ["x", "y"], "ill": ["a", "b"]}, "column 'age'\n  got: string"),
        ({"age": [1.0, 2.0], "ill": ["a", None]}, "row 1, column 'ill'"),
        ({"age": [1.0, 2.0], "ill": [0.5, 1.5]}, "column 'ill'\n  got: double"),
        ({"ill": ["a", "b"]}, "no features"),
    ],
)
def test_parquet_cells_are_named(tmp_path: Path, columns: dict[str, Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        load_table(write_parquet(tmp_path / "a.parquet", **columns))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "table is empty"),
        (b"age,ill,height\n", "only a header"),
        (b"age,ill,age\n1,no,1\n", "repeated: age"),
        (b"age,ill,\n1,no,1\n", "without a name"),
        (b"age,ill,height\n\xff\xfe,no,1\n", "cannot be read"),
        (b'age,ill,height\n"1,no,1\n', "cannot be read"),
        (b'age,ill,height\n1,no,1\n1,"yes,1\n', "unexpected end of data"),
        (b'age,ill,height\n1,no,1\n1,ye"s,1\n', "quotation mark is not closed"),
        (b"age,ill,height", "only a header"),
        (b"age,ill,height\r\n\r\n\n", "only a header"),
        (b"\n\n", "table is empty"),
        (b"age,ill,height\n1,no,1\n" + b"1" * 2**21, r"a line is too long\n.*\n  got: more than 1.0 MiB"),
    ],
)
def test_broken_csv(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=match) as caught:
        load_table(path)
    assert str(path) in caught.value.where


def test_broken_parquet(tmp_path: Path) -> None:
    whole = write_parquet(tmp_path / "a.parquet", age=list(range(50)), ill=["a", "b"] * 25).read_bytes()
    path = tmp_path / "b.parquet"
    for content in (whole[:-9], whole[: len(whole) // 2], b"PAR1", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="whole Parquet file"):
            load_table(path)


def test_label_column(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", HEADER, *ROWS)
    with pytest.raises(ConfigError, match="label column") as caught:
        load_table(path, label="il")
    assert (caught.value.where, caught.value.fix) == ("label", "set label = 'ill'")
    with pytest.raises(ConfigError, match="no label set"):
        load_table(path, label=None)
    quoted = tmp_path / "b.csv"
    quoted.write_text('age,label\n1,"a, ""b""\nc"\n2,d\n', newline="")
    assert load_table(quoted, label=None, ranges={"*": (0, 2)}).classes == ('a, "b"\nc', "d")


def test_ranges_test_and_none(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", HEADER, *ROWS)
    data = load_table(path, ranges="test")
    assert data.scaling is not None
    assert (data.scaling.low[0], data.scaling.high[0]) == (-4.5, 94.5)
    with pytest.raises(ConfigError, match="features need bounds") as caught:
        load_table(path, ranges=None)
    for choice in ("declared", "'test'", "'private'"):
        assert choice in caught.value.wanted


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + '"age","ill","height"\r\n\r\n"30","no","1.75"\r\n\r\n"60","yes","1.8"',
        "age,ill,height\r30,no,1.75\r60,yes,1.8\r",
        "\n\nage,ill,height\n\n30,no,1.75\n\n60,yes,1.8",
        " age , ill,height\n 30 ,no ,\t1.75\n+60, yes,1.8e0\n",
        '"age",ill,"height"\n"30",no,1.75\n60,"yes","1.8"\n',
        'age,ill,"he\night"\n30,no,1.75\n60,yes,1.8\n',
    ],
)
def test_spellings_of_one_table(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, encoding="utf-8", newline="")
    data = load_table(path, ranges={"*": (0.0, 120.0)})
    assert data.train.inputs.tolist() == [[16384, 956], [32768, 983]]
    assert data.classes == ("no", "yes")


@pytest.mark.parametrize(("bad", "got"), [("inf", "'inf'"), ("", "nothing")])
def test_a_bad_cell_far_down_is_named(tmp_path: Path, bad: str, got: str) -> None:
    """Arrow reads a megabyte at a time: the line is still the file's."""
    rows = [f"{number},{'ab'[number % 2]}" for number in range(300_000)]
    rows[100_000] += "\n"
    rows[299_000] = f"{bad},a"
    path = write_csv(tmp_path / "a.csv", "age,label", *rows)
    with pytest.raises(DataError) as caught:
        load_table(path, label=None, ranges={"*": (0, 1)})
    assert (caught.value.where, caught.value.got) == (f"{path}, line 299003, column 'age'", got)


def test_many_rows_and_long_names(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((70_000, 3))
    labels = np.random.default_rng(1).integers(0, 3, 70_000)
    names = ["a", "b" * 200, "é"]
    path = tmp_path / "a.csv"
    rows = [f"{row[0]!r},{row[1]!r},{row[2]!r},{names[label]}" for row, label in zip(values.tolist(), labels, strict=True)]
    write_csv(path, "x,y,z,label", *rows)
    table = tmp_path / "a.parquet"
    write_parquet(table, x=values[:, 0], y=values[:, 1], z=values[:, 2], label=[names[label] for label in labels])
    for source in (path, table):
        data = load_table(source, label=None, ranges={"*": (0, 1)})
        np.testing.assert_array_equal(data.train.inputs, np.rint(values * 65535))
        np.testing.assert_array_equal(np.array(data.classes)[data.train.labels], np.array(names)[labels])


def test_parquet_labels_as_categories_and_large_integers(tmp_path: Path) -> None:
    labels = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    path = write_parquet(tmp_path / "a.parquet", age=pyarrow.array([0, 2**63, 2**64 - 1], pyarrow.uint64()), label=labels)
    data = load_table(path, label=None, ranges={"*": (0, 2.0**64)})
    assert data.classes == ("a", "b")
    assert data.train.inputs.tolist() == [[0], [32768], [65535]]

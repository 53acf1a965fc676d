"""The user's own table of features: CSV or Parquet, one record a row."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.data.config import DataConfig
from twinproof.data.parts import Parts, Records
from twinproof.data.record import InputKind
from twinproof.errors import ConfigError, DataError, MissingExtra

DEFAULT_LABEL = "label"
PARQUET_SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True)
class _Table:
    features: NDArray[np.float64]
    labels: NDArray[Any]
    names: tuple[str, ...]


def read_table(path: Path, name: str, config: DataConfig) -> Parts:
    """All columns but the label's are features, by name; the label column is ``config.label``, or 'label'."""
    table = _read(path, config.label)
    test = None
    if config.test is not None:
        test_path = Path(config.test).expanduser()
        test = Records(*_in_order(_read(test_path, config.label), table.names, test_path), str(test_path))
    train = Records(table.features, table.labels, str(path))
    return Parts(name=name, kind=InputKind.FEATURES, train=train, test=test, levels=None, feature_names=table.names)


def _read(path: Path, label: str | None) -> _Table:
    return _read_parquet(path, label) if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv(path, label)


def _in_order(table: _Table, names: tuple[str, ...], path: Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Features of the test table in the order of the training table's columns."""
    if set(table.names) != set(names):
        raise DataError(
            "the test table has other columns than the training table",
            where=str(path),
            got=", ".join(sorted(set(table.names) ^ set(names))) + " in only one of them",
            wanted=f"the columns {', '.join(names)}",
        )
    return table.features[:, [table.names.index(name) for name in names]], table.labels


def _label_position(columns: list[str], label: str | None, path: Path) -> int:
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated or "" in columns:
        got = f"repeated: {', '.join(repeated)}" if repeated else "a column without a name"
        raise DataError(
            "the columns cannot be told apart", where=f"{path}, header", got=got, wanted="different, non-empty names"
        )
    wanted = label or DEFAULT_LABEL
    if wanted not in columns:
        close = difflib.get_close_matches(wanted, columns)
        raise ConfigError(
            "the table has no such label column",
            where="label",
            got=f"{wanted!r}" if label else f"no label set, and no column {DEFAULT_LABEL!r}",
            wanted=f"one of the columns of {path.name}: {', '.join(columns)}",
            fix=f"set label = {close[0]!r}" if close else "set `label` to the column that holds the class",
        )
    if len(columns) < 2:
        raise DataError("the table has no features", where=str(path), got="one column", wanted="a label and numeric columns")
    return columns.index(wanted)


def _bad_cell(path: Path, row: str, column: str, got: object, wanted: str) -> DataError:
    fix = "fill in the cell or leave out the record" if wanted == "a finite number" else "give every record a label"
    return DataError("a cell cannot be used", where=f"{path}, {row}, column {column!r}", got=got, wanted=wanted, fix=fix)


def _read_csv(path: Path, label: str | None) -> _Table:
    features: list[NDArray[np.float64]] = []
    labels: list[str] = []
    lines = _csv_lines(path)
    _, columns = next(lines, (0, []))
    columns = [column.strip() for column in columns]
    if not columns:
        raise DataError("the table is empty", where=str(path), got="no header", wanted="a header line with column names")
    position = _label_position(columns, label, path)
    names = tuple(columns[:position] + columns[position + 1 :])
    for line, cells in lines:
        if len(cells) != len(columns):
            got, wanted = f"{len(cells)} cells", f"{len(columns)} cells, as in the header"
            raise DataError("a row does not fit the header", where=f"{path}, line {line}", got=got, wanted=wanted)
        text = cells.pop(position).strip()
        if not text:
            raise _bad_cell(path, f"line {line}", columns[position], "nothing", "a label")
        labels.append(text)
        features.append(_numbers(cells, names, path, line))
    if not features:
        raise DataError("there are no records", where=str(path), got="only a header", wanted="one line for each record")
    return _Table(np.stack(features), np.array(labels), names)


def _csv_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as handle:
            reader = csv.reader(handle, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            "the table cannot be read", where=str(path), got=error, wanted="comma-separated values in UTF-8 with a header"
        ) from error


def _numbers(cells: list[str], names: tuple[str, ...], path: Path, line: int) -> NDArray[np.float64]:
    try:
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        for cell, name in zip(cells, names, strict=True):
            if not _is_finite(cell):
                raise _bad_cell(path, f"line {line}", name, repr(cell) if cell.strip() else "nothing", "a finite number")
    return numbers


def _is_finite(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _read_parquet(path: Path, label: str | None) -> _Table:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("tables", "pyarrow", f"reading {path.name}") from error
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise DataError("the table cannot be read", where=str(path), got=error, wanted="a whole Parquet file") from error
    columns = [str(column) for column in table.column_names]
    position = _label_position(columns, label, path)
    if table.num_rows == 0:
        raise DataError("there are no records", where=str(path), got="no rows", wanted="one row for each record")
    names = tuple(columns[:position] + columns[position + 1 :])
    features = np.stack([_parquet_numbers(table.column(name), name, path) for name in names], axis=1)
    return _Table(features, _parquet_labels(table.column(position), columns[position], path), names)


def _parquet_numbers(column: Any, name: str, path: Path) -> NDArray[np.float64]:
    from pyarrow import types

    kind = column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(
            "a column does not hold numbers",
            where=f"{path}, column {name!r}",
            got=str(kind),
            wanted="integers, floats or truth values",
            fix="encode the column as numbers, or leave it out",
        )
    numbers = np.array([np.nan if value is None else float(value) for value in column.to_pylist()], dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(numbers))
    if len(broken):
        row = int(broken[0])
        got = "nothing" if column[row].as_py() is None else numbers[row]
        raise _bad_cell(path, f"row {row}", name, got, "a finite number")
    return numbers


def _parquet_labels(column: Any, name: str, path: Path) -> NDArray[Any]:
    values = column.to_pylist()
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
            got = "nothing" if value is None or value == "" else f"{value!r}"
            raise _bad_cell(path, f"row {row}", name, got, "a label (an integer or text)")
    return np.array([str(value) for value in values])

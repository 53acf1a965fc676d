"""The user's own table of features: CSV or Parquet, one record a row, read by Arrow batch by batch."""

from __future__ import annotations

import csv
import difflib
import io
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from pyarrow import types as arrow_types

from twinproof.data.limits import (
    COLUMNS,
    DECODER_ERRORS,
    PARQUET_SUFFIXES,
    RECORD_BYTES,
    check_names,
    check_unpacked,
    file_size,
    listed,
    open_regular,
    reading,
    row_bytes,
    too_large,
)
from twinproof.data.record import DataConfig, InputKind, Parts, Records
from twinproof.errors import ConfigError, DataError

DEFAULT_LABEL = "label"

_CSV = "comma-separated values in UTF-8 with a header"
_PARQUET = "a whole Parquet file"
_NUMBER, _LABEL = "a finite number", "a label (an integer or text)"
_PARQUET_ROWS = 16_384
_GROWTH = 1.25
_SHORT_NAME = 32


def read_table(path: Path, name: str, config: DataConfig) -> Parts:
    """All columns but the label's are features, by name; the label column is ``config.label``, or 'label'."""
    train, names = _read(path, config.label)
    test = None
    if config.test is not None:
        test_path = Path(config.test).expanduser()
        test, test_names = _read(test_path, config.label)
        if test_names != names:
            test = replace(test, inputs=test.inputs[:, _places(test_names, names, test_path)])
    return Parts(name=name, kind=InputKind.FEATURES, train=train, test=test, levels=None, feature_names=names)


def _read(path: Path, label: str | None) -> tuple[Records, tuple[str, ...]]:
    return _read_parquet(path, label) if path.suffix.lower() in PARQUET_SUFFIXES else _read_csv(path, label)


def _places(found: tuple[str, ...], names: tuple[str, ...], path: Path) -> list[int]:
    """Where each of ``names``, the training table's columns, stands among those of the test table."""
    places = {name: place for place, name in enumerate(found)}
    if different := sorted(places.keys() ^ set(names)):
        raise DataError(
            "the test table has other columns than the training table",
            where=str(path),
            got=f"{listed(different, len(different))} in only one of them",
            wanted=f"the columns {listed(names, len(names))}",
        )
    return [places[name] for name in names]


def _label_position(columns: list[str], label: str | None, path: Path) -> int:
    if len(columns) > COLUMNS:
        raise DataError("the table has too many columns", where=str(path), got=len(columns), wanted=f"at most {COLUMNS}")
    repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
    if repeated or "" in columns:
        got = "a column without a name" if "" in columns else f"repeated: {listed(repeated, len(repeated))}"
        wanted = "different, non-empty names"
        raise DataError("the columns cannot be told apart", where=f"{path}, header", got=got, wanted=wanted)
    check_names(columns, f"{path}, header", "the name of a column")
    label_column = label or DEFAULT_LABEL
    if label_column not in columns:
        close = difflib.get_close_matches(label_column, columns)
        raise ConfigError(
            "the table has no such label column",
            where="label",
            got=repr(label) if label else f"no label set, and no column {DEFAULT_LABEL!r}",
            wanted=f"one of the columns of {path.name}: {listed(columns, len(columns))}",
            fix=f"set label = {close[0]!r}" if close else "set `label` to the column that holds the class",
        )
    if len(columns) < 2:
        raise DataError("the table has no features", where=str(path), got="one column", wanted="a label and numeric columns")
    return columns.index(label_column)


def _bad_cell(path: Path, row: str, column: str, got: object, wanted: str) -> DataError:
    fix = "fill in the cell or leave out the record" if wanted == _NUMBER else "give every record a label"
    return DataError("a cell cannot be used", where=f"{path}, {row}, column {column!r}", got=got, wanted=wanted, fix=fix)


class _Rows:
    """Rows as batches bring them: features in one growing array, labels as numbers of the names seen so far."""

    def __init__(self, columns: list[str], position: int, path: Path, expected: int = 0) -> None:
        self.names = tuple(columns[:position] + columns[position + 1 :])
        self._columns, self._position, self._path = columns, position, path
        self._features = np.empty((expected, len(self.names)))
        self._codes: list[NDArray[np.int64]] = []
        self._labels: dict[str, int] = {}
        self.count = 0

    def add(self, batch: Any) -> None:
        """A batch's rows; a cell that cannot be used ends in an error that names its row, counted from 0."""
        codes = self._label_codes(batch.column(self._position))
        end = self.count + batch.num_rows
        if end > len(self._features):
            # No view of the array exists, and memory that grows in place is not copied.
            self._features.resize((max(end, int(len(self._features) * _GROWTH)), len(self.names)), refcheck=False)
        places = [place for place in range(len(self._columns)) if place != self._position]
        for feature, place in enumerate(places):
            self._features[self.count : end, feature] = self._numbers(batch.column(place), place)
        self._codes.append(codes)
        self.count = end

    def table(self) -> tuple[Records, tuple[str, ...]]:
        """All rows, and the names of the features."""
        if self.count == 0:
            raise DataError(
                "there are no records", where=str(self._path), got="only a header", wanted="one row for each record"
            )
        self._features.resize((self.count, len(self.names)), refcheck=False)
        # NumPy pads text to the longest: one long name would cost its length in every row.
        short = max(map(len, self._labels)) <= _SHORT_NAME
        labels = np.array(list(self._labels), dtype=np.str_ if short else np.object_)
        return Records(self._features, labels[np.concatenate(self._codes)], str(self._path)), self.names

    def _numbers(self, column: Any, place: int) -> NDArray[Any]:
        if column.null_count:
            raise self._bad_cell(column.is_null().index(True).as_py(), place, "nothing", _NUMBER)
        numbers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise self._bad_cell(row, place, numbers[row], _NUMBER)
        return numbers

    def _label_codes(self, column: Any) -> NDArray[np.int64]:
        encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        indices = encoded.indices
        if indices.null_count:
            raise self._bad_cell(indices.is_null().index(True).as_py(), self._position, "nothing", _LABEL)
        numbers: NDArray[np.int64] = indices.to_numpy(zero_copy_only=False).astype(np.int64)
        mapping = np.empty(len(encoded.dictionary), dtype=np.int64)
        for number, value in enumerate(encoded.dictionary.to_pylist()):
            name = "" if value is None else str(value).strip()
            if not name and (numbers == number).any():
                row = int(np.flatnonzero(numbers == number)[0])
                raise self._bad_cell(row, self._position, "nothing", _LABEL)
            if name not in self._labels:
                check_names([name], f"{self._path}, column {self._columns[self._position]!r}", "a label")
            mapping[number] = self._labels.setdefault(name, len(self._labels))
        return mapping[numbers]

    def _bad_cell(self, row: int, place: int, got: object, wanted: str) -> DataError:
        return _bad_cell(self._path, f"row {self.count + row}", self._columns[place], got, wanted)


def _read_csv(path: Path, label: str | None) -> tuple[Records, tuple[str, ...]]:
    with open_regular(path) as handle, reading(path, _CSV):
        columns = _header(handle, path)
        position = _label_position(columns, label, path)
        rows = _Rows(columns, position, path)
        body = _Body(handle)
        try:
            for batch in _csv_batches(body, columns, position):
                rows.add(batch)
        except (ValueError, DataError) as error:
            raise _csv_fault(path, columns, position, rows.count, error) from error
        if body.quotes % 2:
            raise _csv_fault(path, columns, position, 0, ValueError("a quotation mark is not closed"))
        return rows.table()


class _Body(io.RawIOBase):
    """The rows of a CSV file. Arrow does not mind a quotation mark that is never closed, so that all of them are counted."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.quotes = 0

    def readable(self) -> bool:
        """As Arrow asks."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        content = self._handle.read(size)
        self.quotes += content.count(b'"')
        return content


def _header(handle: BinaryIO, path: Path) -> list[str]:
    """The column names; ``handle`` then stands at the first row."""
    read: list[str] = []
    with closing(_csv_rows(handle, COLUMNS, path, read)) as rows:
        _, cells = next(rows, (0, []))
    if not cells:
        raise DataError("the table is empty", where=str(path), got="no header", wanted="a header line with column names")
    handle.seek(0)
    mark = len(BOM_UTF8) if handle.read(len(BOM_UTF8)) == BOM_UTF8 else 0
    handle.seek(mark + len("".join(read).encode()))
    return [cell.strip() for cell in cells]


def _csv_rows(handle: BinaryIO, columns: int, path: Path, read: list[str] | None = None) -> Generator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not empty, by Python's own reader; ``read`` collects the lines themselves."""
    text = io.TextIOWrapper(handle, encoding="utf-8-sig", newline="")
    try:
        reader = csv.reader(_lines(text, row_bytes(columns), path, read), strict=True)
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise DataError("the file cannot be read", where=f"{path}, line {reader.line_num}", got=error, wanted=_CSV) from error
    finally:
        text.detach()


def _lines(text: IO[str], longest: int, path: Path, read: list[str] | None) -> Iterator[str]:
    while line := text.readline(longest + 1):
        if len(line) > longest:
            raise too_large("a line is too long", path, None, longest)
        if read is not None:
            read.append(line)
        yield line


def _csv_batches(body: _Body, columns: list[str], position: int) -> Iterator[Any]:
    # Arrow's own names, so that no name of the file can confuse it.
    names = [str(place) for place in range(len(columns))]
    types = {name: pyarrow.float64() for name in names}
    types[names[position]] = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    content = pyarrow.PythonFile(body, mode="r")
    try:
        yield from arrow_csv.open_csv(
            content,
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=row_bytes(len(columns)), column_names=names),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
        )
    except pyarrow.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise


def _csv_fault(path: Path, columns: list[str], position: int, good: int, reason: Exception) -> DataError:
    """The error that names the line: Arrow knows of rows alone. The first ``good`` rows are known to be whole."""
    with open_regular(path) as handle:
        for number, (line, cells) in enumerate(_csv_rows(handle, len(columns), path)):
            if number <= good:  # the header, and rows that were read
                continue
            if len(cells) != len(columns):
                got, wanted = f"{len(cells)} cells", f"{len(columns)} cells, as in the header"
                return DataError("a row does not fit the header", where=f"{path}, line {line}", got=got, wanted=wanted)
            if not cells[position].strip():
                return _bad_cell(path, f"line {line}", columns[position], "nothing", "a label")
            place = _first_bad_number(cells, position)
            if place is not None:
                got = repr(cells[place]) if cells[place].strip() else "nothing"
                return _bad_cell(path, f"line {line}", columns[place], got, _NUMBER)
    if isinstance(reason, DataError):
        return reason
    return DataError("the file cannot be read", where=str(path), got=reason, wanted=_CSV)


def _first_bad_number(cells: list[str], position: int) -> int | None:
    """The place of the first cell that Arrow does not take for a finite number."""
    numbers = [*cells[:position], "0", *cells[position + 1 :]]
    return None if _are_finite(numbers) else next(n for n, cell in enumerate(numbers) if not _are_finite([cell]))


def _are_finite(cells: list[str]) -> bool:
    try:
        numbers = pyarrow.array([cell.strip(" \t") for cell in cells]).cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return False
    return bool(np.isfinite(numbers.to_numpy()).all())


def _read_parquet(path: Path, label: str | None) -> tuple[Records, tuple[str, ...]]:
    with open_regular(path) as handle, reading(path, _PARQUET, errors=(*DECODER_ERRORS, pyarrow.ArrowException)):
        file = parquet.ParquetFile(handle, pre_buffer=False)
        columns = [str(column) for column in file.schema_arrow.names]
        position = _label_position(columns, label, path)
        _check_types(file.schema_arrow, position, path)
        declared = file.metadata.num_rows
        if declared <= 0:
            raise DataError("there are no records", where=str(path), got="no rows", wanted="one row for each record")
        # Of groups of rows, not of columns: Arrow aborts the process where one of those is broken.
        groups = [file.metadata.row_group(number).total_byte_size for number in range(file.metadata.num_row_groups)]
        needed = declared * (8 * (len(columns) - 1) + RECORD_BYTES) + max(groups, default=0)
        check_unpacked(needed, file_size(handle), path, "write it without compression and dictionaries, or as CSV")
        rows = _Rows(columns, position, path, declared)
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, use_threads=False):
            rows.add(batch)
            if rows.count > declared:
                break
        if rows.count != declared:
            got = f"{'more' if rows.count > declared else rows.count} rows"
            raise DataError("the file contradicts itself", where=str(path), got=got, wanted=f"{declared} rows, as it declares")
        return rows.table()


def _check_types(schema: Any, position: int, path: Path) -> None:
    for place, field in enumerate(schema):
        kind = field.type
        if place == position:
            kind = kind.value_type if arrow_types.is_dictionary(kind) else kind
            usable = arrow_types.is_integer(kind) or arrow_types.is_string(kind) or arrow_types.is_large_string(kind)
        else:
            usable = arrow_types.is_integer(kind) or arrow_types.is_floating(kind) or arrow_types.is_boolean(kind)
        if not usable:
            raise DataError(
                "the label column cannot be used" if place == position else "a column does not hold numbers",
                where=f"{path}, column {field.name!r}",
                got=str(field.type),
                wanted="integers or text" if place == position else "integers, floats or truth values",
                fix="convert the labels" if place == position else "encode the column as numbers, or leave it out",
            )

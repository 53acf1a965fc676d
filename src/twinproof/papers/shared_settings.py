"""What many records have in common, said once: taken out of each of them, and put back.

Cells of one table differ in a few settings out of forty. A file that repeats the others a hundred times cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twinproof.files import canonical_json

Record = dict[str, Any]


def common(records: Sequence[Mapping[str, Any]]) -> Record:
    """The entries that all ``records`` have with the same value, also inside of entries that are records in all of them."""
    if not records:
        return {}
    first, others = records[0], records[1:]
    shared: Record = {}
    for key, value in first.items():
        if not all(key in other for other in others):
            continue
        if isinstance(value, dict) and all(isinstance(other[key], dict) for other in others):
            shared[key] = common([record[key] for record in records])
        elif all(_same(value, other[key]) for other in others):
            shared[key] = value
    return shared


def without(record: Mapping[str, Any], shared: Mapping[str, Any]) -> Record:
    """``record`` less what is in ``shared``.

    Guarantees
        ``merged(shared, without(record, shared)) == record`` for every record that ``shared`` is ``common`` to.
    """
    left: Record = {}
    for key, value in record.items():
        if key not in shared:
            left[key] = value
        elif isinstance(shared[key], dict) and (rest := without(value, shared[key])):
            left[key] = rest
    return left


def merged(shared: Mapping[str, Any], record: Mapping[str, Any]) -> Record:
    """``record`` with what it has in common with others put back."""
    whole: Record = dict(shared)
    for key, value in record.items():
        both = isinstance(value, dict) and isinstance(shared.get(key), dict)
        whole[key] = merged(shared[key], value) if both else value
    return whole


def _same(one: object, other: object) -> bool:
    """Equal as text: True is not 1, nor 1 the 1.0 of another setting, in lists neither."""
    return canonical_json(one) == canonical_json(other)

"""Data sets as typed records."""

from twinproof.data.arrays import from_arrays, from_torch
from twinproof.data.load import SourceDescription, describe_sources, known_sources, load
from twinproof.data.record import DataConfig, Dataset, InputKind, RangeSpending, Scaling, Split, fingerprint, parse_data_config

__all__ = [
    "DataConfig",
    "Dataset",
    "InputKind",
    "RangeSpending",
    "Scaling",
    "SourceDescription",
    "Split",
    "describe_sources",
    "fingerprint",
    "from_arrays",
    "from_torch",
    "known_sources",
    "load",
    "parse_data_config",
]

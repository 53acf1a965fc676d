"""Data sets as typed records."""

from twinproof.data.arrays import from_arrays, from_torch
from twinproof.data.config import DataConfig, parse_data_config
from twinproof.data.load import load
from twinproof.data.record import Dataset, InputKind, RangeSpending, Scaling, Split, fingerprint
from twinproof.data.sources import SourceDescription, describe_sources, known_sources

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

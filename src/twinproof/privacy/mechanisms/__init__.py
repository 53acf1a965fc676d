"""Noise calibration of single mechanisms, with the exact privacy profile beside each (docs/mechanisms.md).

One file for each mechanism. Each is a frozen dataclass that says what it costs (``mechanism.Mechanism``) and is made for a
target by ``for_target``; ``catalogue`` knows all of them by name.
"""

"""Classifiers that are differentially private and certifiably robust at once, with proofs anybody can check."""

__version__ = "0.1.0"

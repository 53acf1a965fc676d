"""Randomized smoothing and its certificates."""

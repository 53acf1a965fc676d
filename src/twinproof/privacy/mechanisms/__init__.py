"""Noise calibration of single mechanisms, with the exact privacy profile beside each."""

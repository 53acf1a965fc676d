"""Tries to refute what a run claims."""

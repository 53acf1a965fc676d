"""Data sets as typed records."""

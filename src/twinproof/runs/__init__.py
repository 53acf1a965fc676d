"""A run on disk: layout, reading, writing."""

"""The HTML report and its machine-readable twin."""

"""Accuracies, certified radii and their confidence intervals."""

"""Gradient attacks (FGSM, I-FGSM, MIM, PGD) on networks, random networks and smoothed classifiers."""

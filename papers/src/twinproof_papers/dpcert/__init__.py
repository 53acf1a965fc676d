"""The tables and figures of DP-CERT (Wu et al. 2023)."""

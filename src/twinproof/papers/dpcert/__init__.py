"""DP-CERT (Wu et al. 2023): its methods as data, and its tables and figures as functions of their cells."""

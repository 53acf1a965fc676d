"""Speed and memory of twinproof beside its peers, on one machine, in one run."""

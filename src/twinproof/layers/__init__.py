"""Networks, and the check for layers that mix examples."""

"""Federated training: parties that may not pool their records, a coordinator that adds up, adds noise and keeps the ledger.

Nothing here but the modules named ``flower*`` imports Flower; the rest is plain Python, and tests drive it in one process.
"""

import os

# Flower reports its use to its makers unless this is set before it is imported.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

"""The plan, its accounting and the ledger."""

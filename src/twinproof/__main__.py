"""``python -m twinproof``."""

from twinproof.cli.main import run

run()

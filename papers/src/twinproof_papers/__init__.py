"""The papers' tables and figures, made again, and their systems as published; a plug-in of ``twinproof``."""

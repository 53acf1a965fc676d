"""Named, complete ways to train."""

"""Networks of the papers and small defaults."""

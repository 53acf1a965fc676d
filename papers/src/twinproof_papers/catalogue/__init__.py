"""The tables and figures of the papers, with the numbers that are printed in them."""

"""A zoo of networks that users may bring: harmless ones, and ones that would break a promise."""

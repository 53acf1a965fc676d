"""Every table and figure of the papers; one file for each paper."""

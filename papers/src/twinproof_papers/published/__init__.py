"""What the papers print and what does not hold: variants, bounds and formulas, to compare with."""

"""StoBatch as its paper prints it (Phan et al., ICML 2020, Algorithm 1): to compare with, never a promise (docs/recipes.md)."""

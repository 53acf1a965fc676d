"""The functional mechanism: Laplace noise on the coefficients of a polynomial objective, once (docs/mechanisms.md).

Zhang et al. 2012; as StoBatch (Phan et al., ICML 2020) uses it for its reconstruction and its classification objective. The
coefficients are sums over records, so one release of them with noise is private, and whatever is minimised afterwards costs
nothing more.
"""

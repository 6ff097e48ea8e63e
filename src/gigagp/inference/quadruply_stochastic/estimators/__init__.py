"""The paper's estimators of the lower bound from sampled rows and functions, and its control variates.

Evans and Nair 2020, "Quadruply stochastic Gaussian processes", arXiv:2006.03015. Nothing here knows of a fit: these are
functions of tensors.
"""

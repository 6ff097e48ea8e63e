"""Answers of a fitted estimator in the target's units: moments, quantiles, densities, samples, joint distributions."""

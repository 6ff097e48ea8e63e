"""Checks of a fit that has learned: far targets, poor optima, variances that are too small, too little noise.

Each check warns; the last one raises the noise. Checks of arguments, made before anything is computed, are in
`gigagp.estimators.arguments`.
"""

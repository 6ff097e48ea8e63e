"""Checks of a fit that has learned: far targets, poor optima, variances that are too small, too little noise.

Each check warns; the last one raises the noise. Checks of arguments, made before any work, are in
`gigagp.estimators.arguments`.
"""

"""What a fit that has learned is checked for: far targets, poor optima, too small variances, too little noise.

Each check warns; the last one raises the noise. Checks of arguments, made before any work, are in
`gigagp.estimators.arguments`.
"""

"""What makes `gigagp.GPRegressor`: its arguments, its fit, its choices, its checks, its answers and its file.

The class itself is in `gigagp.regression`. What a method of inference does is in `gigagp.inference`; here is what holds
for all of them.
"""

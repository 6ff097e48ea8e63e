"""What is fitted: a kernel, a mean, a noise and a likelihood, and the units and the transform of the target.

A `gigagp.model.model.Model` is a value. How it is learned is for `gigagp.optimization` and `gigagp.inference` to say.
"""

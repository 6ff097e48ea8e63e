"""Choices that a fit makes by the data before it learns: the noise, the transform of the target, the kernel."""

"""Inference by iterative solves: the objective, its solves from step to step, and the posterior of their solutions."""

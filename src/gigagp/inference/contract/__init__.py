"""The contract between inference methods and estimators, and code that several methods share.

`base.Inference` makes an `objective.TableObjective`, which ends in a `posterior.Posterior`.
"""

"""What a method of inference is to the others and to the estimators, and what several methods share.

`base.Inference` makes an `objective.TableObjective`, which ends in a `posterior.Posterior`.
"""

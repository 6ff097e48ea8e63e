"""A warning of noise that hides structure."""

from __future__ import annotations

from gigagp.errors import FitWarning, warn
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.structured_noise import likeness
from gigagp.inference.contract.table import TrainingTable


def warn_of_structured_noise(table: TrainingTable, posterior: Posterior, *, has_rule: bool) -> bool:
    """Warn if what a fit takes for noise is alike in neighbouring rows, and return whether it is.

    ``has_rule`` says whether a rule has chosen the kernel.
    """
    found = likeness(posterior.model, table)
    if found is None or not found.is_structure:
        return False
    remedy = (
        "Use more basis functions, inducing points or nodes of the grid"
        if posterior.replaces_kernel
        else "Use a kernel with a further component, such as kernels.Matern(nu=2.5) + kernels.Matern(nu=1.5)"
        if has_rule
        else 'Use kernel="auto", or a sum of kernels such as kernels.RBF() + kernels.Matern(nu=1.5)'
    )
    msg = (
        "The noise of this fit has structure, so error bars of the function are too small: errors of "
        f"neighbouring rows, each predicted from all others, have a correlation of {found.correlation:.2f} (standard "
        f"error {found.standard_error:.2g}) beyond what the model expects. {remedy}."
    )
    warn(msg, FitWarning)
    return True

"""Where gigagp differs from scikit-learn by design: their tests that do not hold for it, each with the reason.

Everything that is not listed must pass, and what is listed must fail. The names are those of scikit-learn 1.9.
"""

from __future__ import annotations

#: What the lists were made with; other minor versions have other tests.
VERSION = "1.9"

_NUMBERS_ALONE = "Inputs are numbers: there are no kernels on texts."
_NO_THETA_TO_WRITE = "log_marginal_likelihood changes no kernel: kernels are immutable."
_NO_WARNING = "Ending at a bound that the user gave is no warning; describe() says it. A start outside is refused."
_ONE_TARGET = "Before a fit there is one target: how many there will be is no setting."
_OTHER_WORDS = "The same error in other words: "

REGRESSOR = {
    "test_gpr_interpolation_structured": _NUMBERS_ALONE,
    "test_lml_without_cloning_kernel": _NO_THETA_TO_WRITE,
    "test_y_multioutput": "Samples of several targets are other draws than those of one at the same seed.",
    "test_gpr_correct_error_message": _OTHER_WORDS + "a variance of zero is refused before any work.",
    "test_warning_bounds": _NO_WARNING,
    "test_gpr_fit_error[params0-ValueError-alpha must be a scalar or an array with same number of entries as y]": (
        _OTHER_WORDS + "it names noise_variance and the shape that is allowed."
    ),
    "test_gpr_fit_error[params1-ValueError-requires that all bounds are finite]": (
        _OTHER_WORDS + "bounds are positive or None; restarts do not need them."
    ),
    "test_gpr_lml_error": "log_marginal_likelihood has no eval_gradient.",
    "test_gpr_predict_error": _OTHER_WORDS + "std and covariance together are an InvalidInputError, a ValueError.",
    "test_sample_y_shape_with_prior[1-2]": _ONE_TARGET,
    "test_sample_y_shape_with_prior[1-3]": _ONE_TARGET,
    "test_sample_y_shape_with_prior[5-2]": _ONE_TARGET,
    "test_sample_y_shape_with_prior[5-3]": _ONE_TARGET,
    "test_predict_shape_with_prior[2]": _ONE_TARGET,
    "test_predict_shape_with_prior[3]": _ONE_TARGET,
    "test_n_targets_error": _ONE_TARGET,
    "test_gpr_predict_input_not_modified": "Its kernel is scikit-learn code, which is no kernel of gigagp.",
}

CLASSIFIER = {
    "test_predict_consistent_structured": _NUMBERS_ALONE,
    "test_latent_mean_and_variance_works_on_structured_kernels": _NUMBERS_ALONE,
    "test_lml_without_cloning_kernel": _NO_THETA_TO_WRITE,
    "test_converged_to_local_maximum": "log_marginal_likelihood of a classifier has no eval_gradient.",
    "test_warning_bounds": _NO_WARNING,
    "test_gpc_fit_error[params0-ValueError-kernel cannot be a CompoundKernel]": (
        "There is no CompoundKernel: classes share one kernel."
    ),
    "test_gpc_latent_mean_and_variance_complain_on_more_than_2_classes": (
        "latent_ has the latent functions of any number of classes."
    ),
}

"""Log-densities of distributions, named and parametrized as in Stan, on NumPy, TensorFlow and JAX.

    from batchnuts import densities

    def log_density(p):
        prior = densities.normal(p["mu"], 0, 5) + densities.half_cauchy(p["tau"], 5)
        return prior + densities.normal(p["theta"], p["mu"], p["tau"]) + densities.normal(Y, p["theta"], SIGMA)

Rules that hold for all of them:

- **Shapes.** Arguments are those of one chain. They broadcast, and the result is the *sum* over all elements, a scalar,
  as that of Stan's `_lpdf` and `_lpmf`. With `pointwise=True` it is the array of the elements, as `log_likelihood` of a
  model wants it; of vectors (`dirichlet`, `multi_normal`, ...) one number for each vector.
- **Constants** are kept, so that densities can be compared: they are normalized.
- **Outside** of the support, or with a parameter out of its range, an element is -inf. Its gradient is zero, and those
  of other elements stay what they are. NaN stays NaN.
- **Dtypes.** Integers count as floats. Arrays of NumPy and Python's numbers take the dtype of the arrays of TensorFlow
  or JAX beside them, so that data in float64 do not change the precision of a model.
- **Categories** count from 0, as Python's indices, where Stan's count from 1.

Formulas: Stan Functions Reference; each value is that of SciPy within a few units of rounding.
"""

from batchnuts.densities.continuous import (
    beta,
    beta_proportion,
    cauchy,
    chi_square,
    double_exponential,
    exponential,
    gamma,
    gumbel,
    half_cauchy,
    half_normal,
    half_student_t,
    inv_gamma,
    laplace,
    logistic,
    lognormal,
    normal,
    pareto,
    std_normal,
    student_t,
    uniform,
    weibull,
)
from batchnuts.densities.discrete import (
    bernoulli,
    bernoulli_logit,
    beta_binomial,
    binomial,
    binomial_logit,
    categorical,
    categorical_logit,
    multinomial,
    neg_binomial_2,
    neg_binomial_2_log,
    ordered_logistic,
    poisson,
    poisson_log,
)
from batchnuts.densities.vectors import (
    dirichlet,
    lkj_corr_cholesky,
    multi_normal,
    multi_normal_cholesky,
    multi_normal_prec,
)

__all__ = [
    "bernoulli",
    "bernoulli_logit",
    "beta",
    "beta_binomial",
    "beta_proportion",
    "binomial",
    "binomial_logit",
    "categorical",
    "categorical_logit",
    "cauchy",
    "chi_square",
    "dirichlet",
    "double_exponential",
    "exponential",
    "gamma",
    "gumbel",
    "half_cauchy",
    "half_normal",
    "half_student_t",
    "inv_gamma",
    "laplace",
    "lkj_corr_cholesky",
    "logistic",
    "lognormal",
    "multi_normal",
    "multi_normal_cholesky",
    "multi_normal_prec",
    "multinomial",
    "neg_binomial_2",
    "neg_binomial_2_log",
    "normal",
    "ordered_logistic",
    "pareto",
    "poisson",
    "poisson_log",
    "std_normal",
    "student_t",
    "uniform",
    "weibull",
]

"""Expressions of Stan's functions, by family: each is added to the target of a program with the variables below."""

from __future__ import annotations

VARIABLES = """
transformed data {
  int n = 5;
  int k = 2;
  array[3] int y = {0, 2, 1};
  array[3] int yb = {0, 1, 1};
  array[3] int nn = {3, 4, 5};
  array[3] int cat = {1, 3, 2};
  vector[3] d = [0.4, -1.1, 2.3]';
  vector[3] dp = [0.4, 1.1, 2.3]';
  matrix[3, 2] X = [[0.3, -0.2], [1.1, 0.5], [-0.7, 0.9]];
  matrix[3, 3] M = [[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.1]];
  array[3] real da = {0.4, -1.1, 2.3};
  array[3] vector[3] dvs = {[0.4, 0.1, 0.3]', [1.4, -0.1, 0.2]', [-0.4, 0.6, 0.5]'};
}
parameters {
  real r1; real r2; real r3;
  real<lower=0> p1; real<lower=0> p2; real<lower=0> p3;
  real<lower=0, upper=1> u1; real<lower=0, upper=1> u2;
  real<upper=1.5> hi; real<offset=0.3, multiplier=2> om;
  vector[3] v1; vector[3] v2; row_vector[3] w1; vector[2] b2;
  vector<lower=0>[3] vp1; vector<lower=0>[3] vp2; vector<lower=0, upper=1>[3] vu;
  simplex[3] s1; simplex[3] s2; ordered[3] c1; positive_ordered[3] po; unit_vector[3] uv; sum_to_zero_vector[3] sz;
  matrix[3, 3] A; matrix[3, 2] B; matrix[2, 3] G;
  cov_matrix[3] S; corr_matrix[3] C; cholesky_factor_corr[3] L; cholesky_factor_cov[3] F;
  cholesky_factor_cov[4, 2] F2;
  array[3] real a1; array[2, 3] real a2; array[2] vector[3] av; array[2] simplex[3] as1;
}
"""
"""Data, and one parameter at least of each constraint."""

FAMILIES: dict[str, list[str]] = {
    "arithmetic": [
        *("r1 + r2", "r1 - r2", "r1 * r2", "r1 / p1", "-r1", "+r1", "p1 ^ 2", "p1 ^ r1", "v1 + v2", "v1 - r1"),
        *("v1 .* v2", "v1 ./ vp1", "vp1 .^ 2", "r1 * v1", "v1 / p1", "w1 * v1", "v1 * w1", "A * v1", "w1 * A"),
        *("A * B", "A + A'", "A / p1", "A .* A", "2 * A", "pow(p1, 3)", "pow(vp1, 1.5)", "A[2] * v1"),
        *("A[ : , 2]", "A[1 : 2, 3]", "v1[2 : ]", "v1[ : 2]", "v1[cat]", "A[cat, 2]", "av[2]"),
        *("to_vector(a2[1])", "r1 > r2", "r1 <= r2", "(r1 > 0) ? r1 : r2", "1.0 * (n %/% k)", "1.0 * (n % k)"),
        *("A \\ v1", "w1 / S", "B / p1", "1.0 * n / k", "fma(r1, r2, r3)", "fmin(r1, r2)", "fmax(r1, r2)"),
        *("fdim(r1, r2)", "hypot(r1, r2)", "atan2(r1, p1)", "fmod(p1, 0.7)", "ldexp(r1, 3)"),
        *("(r1 == r2) || (r1 < r2)", "!(r1 > 0)", "A'", "v1'", "multiply(r1, A)", "add(v1, v2)"),
        *("subtract(v1, v2)", "elt_multiply(v1, v2)", "elt_divide(v1, vp1)", "divide(v1, p1)", "om", "hi"),
        *("sz", "F2"),
    ],
    "elementary": [
        *("abs(r1)", "exp(r1)", "exp2(r1)", "log(p1)", "log2(p1)", "log10(p1)", "log1p(p1)", "log1m(u1)"),
        *("expm1(r1)", "log1p_exp(r1)", "log1m_exp(-p1)", "log_diff_exp(p1 + 1, p1)", "log_inv_logit(r1)"),
        *("log1m_inv_logit(r1)", "sqrt(p1)", "cbrt(p1)", "inv(p1)", "inv_sqrt(p1)", "inv_square(p1)"),
        *("square(r1)", "sin(r1)", "cos(r1)", "tan(r1)", "asin(u1)", "acos(u1)", "atan(r1)", "sinh(r1)"),
        *("cosh(r1)", "tanh(r1)", "asinh(r1)", "acosh(1 + p1)", "atanh(u1)", "logit(u1)", "inv_logit(r1)"),
        *("inv_cloglog(r1)", "exp(v1)", "exp(A)", "log_sum_exp(r1, r2)", "log_mix(u1, r1, r2)"),
        *("lmultiply(p1, p2)", "inv_logit(v1)", "softmax(v1)", "log_softmax(v1)", "floor(r1)", "ceil(r1)"),
        *("round(r1)", "trunc(r1)", "step(r1)", "1.0 * is_inf(r1)", "1.0 * is_nan(r1)", "pi()", "e()"),
        *("sqrt2()", "log2()", "log10()", "machine_precision()"),
    ],
    "special": [
        *("Phi(r1)", "Phi_approx(r1)", "inv_Phi(u1)", "std_normal_qf(u1)", "erf(r1)", "erfc(r1)"),
        *("inv_erfc(u1)", "lgamma(p1)", "tgamma(p1)", "digamma(p1)", "trigamma(p1)", "lbeta(p1, p2)"),
        *("beta(p1, p2)", "lmgamma(3, p1 + 3)", "lchoose(5 + p1, 2.0)", "1.0 * choose(6, 2)"),
        *("gamma_p(p1, p2)", "gamma_q(p1, p2)", "log_rising_factorial(p1, 2.0)", "rising_factorial(p1, 2)"),
        *("log_falling_factorial(5 + p1, 2.0)", "falling_factorial(5 + p1, 2)"),
    ],
    "reductions": [
        *("sum(v1)", "sum(A)", "sum(a1)", "prod(v1)", "mean(v1)", "mean(A)", "variance(v1)", "sd(v1)"),
        *("min(v1)", "max(v1)", "log_sum_exp(v1)", "log_sum_exp(A)", "dot_product(v1, v2)", "dot_self(v1)"),
        *("squared_distance(v1, v2)", "columns_dot_product(A, A')", "rows_dot_product(A, A')"),
        *("columns_dot_self(A)", "rows_dot_self(A)", "cumulative_sum(v1)", "1.0 * num_elements(A)"),
        *("1.0 * size(v1)", "1.0 * rows(B)", "1.0 * cols(B)", "1.0 * sum(dims(B))", "min(y) * r1"),
        *("max(y) * r1",),
    ],
    "containers": [
        *("rep_vector(r1, 3)", "rep_row_vector(r1, 3)", "rep_matrix(r1, 2, 3)", "rep_matrix(v1, 2)"),
        *("rep_matrix(w1, 2)", "sum(rep_array(r1, 3))", "head(v1, 2)", "tail(v1, 2)", "segment(v1, 2, 2)"),
        *("block(A, 1, 2, 2, 2)", "sub_col(A, 1, 2, 2)", "col(A, 2)", "row(A, 2)", "append_row(v1, v2)"),
        *("append_row(r1, v1)", "append_row(A, w1)", "append_col(A, v1)", "append_col(w1, r1)"),
        *("append_col(v1, v2)", "append_row(w1, w1)", "to_vector(A)", "to_vector(a1)", "to_vector(w1)"),
        *("to_row_vector(v1)", "to_matrix(v1)", "to_matrix(v1, 3, 1)", "to_matrix(A, 1, 9)"),
        *("to_matrix(a1, 1, 3)", "to_matrix(a2)", "to_vector(to_array_1d(A))", "diag_matrix(v1)"),
        *("diagonal(A)", "add_diag(A, r1)", "add_diag(A, v1)", "identity_matrix(3) * r1"),
        *("linspaced_vector(3, 1, 2) * r1", "linspaced_row_vector(3, 1, 2) * r1", "ones_vector(3) * r1"),
        *("zeros_vector(3)", "one_hot_vector(3, 2) * r1", "uniform_simplex(3) * r1", "reverse(v1)"),
        *("sort_asc(v1)", "sort_desc(v1)", "to_vector(sort_indices_asc(d)) .* v1", "[r1, r2] * b2"),
        *("[r1, r2]'", "[[r1, r2], [r3, p1]]", "sum({r1, r2})", "sum(append_array(a1, a1))"),
        *("to_vector(linspaced_array(3, 0, 1)) .* v1", "1.0 * rank(d, 2)", "sum(a1[2 : 3])"),
    ],
    "matrices": [
        *("diag_pre_multiply(v1, A)", "diag_post_multiply(A, v1)", "quad_form(S, B)", "quad_form(S, v1)"),
        *("quad_form_sym(S, B)", "quad_form_diag(S, vp1)", "log_determinant(A)", "inverse(S + A * 0.1)"),
        *("inverse_spd(S)", "cholesky_decompose(S)", "mdivide_left(A, v1)", "mdivide_left_spd(S, v1)"),
        *("mdivide_left_tri_low(F, v1)", "mdivide_right_tri_low(w1, F)", "mdivide_right_spd(w1, S)"),
        *("mdivide_right(w1, A)", "multiply_lower_tri_self_transpose(A)", "tcrossprod(A)", "crossprod(A)"),
        *("matrix_exp(A)", "eigenvalues_sym(S)", "gp_exp_quad_cov(a1, p1, p2)", "gp_exp_quad_cov(dvs, p1, p2)"),
        *("gp_exponential_cov(a1, p1, p2)", "gp_matern32_cov(a1, p1, p2)", "gp_matern52_cov(a1, p1, p2)"),
        *("csr_matrix_times_vector(2, 3, [r1, r2, r3]', {1, 3, 2}, {1, 3, 4}, v1)",),
    ],
    "continuous": [
        *("std_normal_lpdf(v1)", "normal_lpdf(v1 | r1, p1)", "exp_mod_normal_lpdf(r1 | r2, p1, p2)"),
        *("skew_normal_lpdf(r1 | r2, p1, r3)", "student_t_lpdf(v1 | p1, r2, p2)", "cauchy_lpdf(v1 | r1, p1)"),
        *("double_exponential_lpdf(r1 | r2, p1)", "skew_double_exponential_lpdf(r1 | r2, p1, u1)"),
        *("logistic_lpdf(r1 | r2, p1)", "gumbel_lpdf(r1 | r2, p1)", "lognormal_lpdf(vp1 | r1, p1)"),
        *("chi_square_lpdf(p1 | p2)", "inv_chi_square_lpdf(p1 | p2)"),
        *("scaled_inv_chi_square_lpdf(p1 | p2, p3)", "exponential_lpdf(vp1 | p1)", "gamma_lpdf(p1 | p2, p3)"),
        *("inv_gamma_lpdf(p1 | p2, p3)", "weibull_lpdf(p1 | p2, p3)", "frechet_lpdf(p1 | p2, p3)"),
        *("rayleigh_lpdf(p1 | p2)", "loglogistic_lpdf(p1 | p2, p3)", "pareto_lpdf(p1 + p2 | p2, p3)"),
        *("pareto_type_2_lpdf(r1 + p1 | r1, p2, p3)", "beta_lpdf(vu | p1, p2)"),
        *("beta_proportion_lpdf(u1 | u2, p1)", "uniform_lpdf(u1 | -p1, 1 + p2)", "von_mises_lpdf(r1 | r2, p1)"),
        *("normal_lpdf(d | v1, vp1)", "normal_lupdf(d | r1, p1)"),
    ],
    "tails": [
        *(f"{name}_{kind}({arguments})" for kind in ("lcdf", "lccdf", "cdf") for name, arguments in (
            ("normal", "r1 | r2, p1"), ("std_normal", "r1"), ("lognormal", "p1 | r1, p2"), ("cauchy", "r1 | r2, p1"),
            ("double_exponential", "r1 | r2, p1"), ("logistic", "r1 | r2, p1"), ("gumbel", "r1 | r2, p1"),
            ("exponential", "p1 | p2"), ("weibull", "p1 | p2, p3"), ("frechet", "p1 | p2, p3"),
            ("rayleigh", "p1 | p2"), ("pareto", "p1 + p2 | p2, p3"), ("uniform", "u1 | -p1, 1 + p2"),
            ("exp_mod_normal", "r1 | r2, p1, p2"), ("gamma", "p1 | p2, p3"),
            ("inv_gamma", "p1 | p2, p3"), ("chi_square", "p1 | p2"), ("inv_chi_square", "p1 | p2"),
        )),
        *("poisson_lcdf(y | p1)", "poisson_lccdf(y | p1)", "bernoulli_lcdf(0 | u1)", "bernoulli_lccdf(0 | u1)"),
        *("ordered_probit_lpmf(cat | v1, c1)",),
    ],
    "discrete": [
        *("bernoulli_lpmf(yb | u1)", "bernoulli_logit_lpmf(yb | v1)", "binomial_lpmf(y | nn, u1)"),
        *("binomial_logit_lpmf(y | nn, v1)", "beta_binomial_lpmf(y | nn, p1, p2)"),
        *("hypergeometric_lpmf(1 | 3, 4, 5) * r1", "poisson_lpmf(y | p1)", "poisson_log_lpmf(y | v1)"),
        *("neg_binomial_lpmf(y | p1, p2)", "neg_binomial_2_lpmf(y | p1, p2)"),
        *("neg_binomial_2_log_lpmf(y | v1, p2)", "discrete_range_lpmf(y | 0, 5) * r1"),
        *("categorical_lpmf(cat | s1)", "categorical_logit_lpmf(cat | v1)"),
        *("ordered_logistic_lpmf(cat | v1, c1)", "ordered_logistic_lpmf(4 | r1, c1)"),
        *("multinomial_lpmf(y | s1)", "multinomial_logit_lpmf(y | v1)", "dirichlet_multinomial_lpmf(y | vp1)"),
        *("bernoulli_logit_glm_lpmf(yb | X, r1, b2)", "binomial_logit_glm_lpmf(y | nn, X, r1, b2)"),
        *("poisson_log_glm_lpmf(y | X, r1, b2)", "neg_binomial_2_log_glm_lpmf(y | X, r1, b2, p1)"),
        *("normal_id_glm_lpdf(d | X, r1, b2, p1)", "ordered_logistic_glm_lpmf(cat | X, b2, c1)"),
        *("categorical_logit_glm_lpmf(cat | X, v1, G)", "normal_id_glm_lpdf(d | X, v1, b2, vp1)"),
        *("bernoulli_logit_glm_lpmf(yb | X, v1, b2)",),
    ],
    "multivariate": [
        *("multi_normal_lpdf(v1 | v2, S)", "multi_normal_lpdf(av | v2, S)"),
        *("multi_normal_prec_lpdf(v1 | v2, S)", "multi_normal_cholesky_lpdf(av | v2, F)"),
        *("multi_student_t_lpdf(v1 | p1, v2, S)", "multi_gp_lpdf(A | S, vp1)"),
        *("multi_student_t_cholesky_lpdf(v1 | p1, v2, F)", "multi_gp_cholesky_lpdf(A | F, vp1)"),
        *("dirichlet_lpdf(s1 | vp1)", "dirichlet_lpdf(as1 | vp1)", "lkj_corr_lpdf(C | p1)"),
        *("lkj_corr_cholesky_lpdf(L | p1)", "wishart_lpdf(S | 4 + p1, F * F')"),
        *("inv_wishart_lpdf(S | 4 + p1, F * F')", "s1", "as1[2]", "c1", "po", "uv", "sz", "S", "C", "L", "F"),
        *("F2", "vu", "av[1]", "om", "hi"),
    ],
}  # fmt: skip
"""Each gives a number or a container; its sum is added."""


OF_DATA = [
    *(
        "sum(square(eigenvectors_sym(M)))",
        "sum(to_array_1d(X))",
        "beta_lcdf(0.3 | 1.2, 2.1)",
        "beta_lccdf(0.3 | 1.2, 2.1)",
    ),
    *("student_t_lcdf(0.3 | 4, 0.1, 1.2)", "student_t_lccdf(0.3 | 4, 0.1, 1.2)", "binomial_lcdf(y | nn, 0.3)"),
    *("binomial_lccdf(y | nn, 0.3)", "neg_binomial_2_lcdf(y | 1.3, 2.1)", "neg_binomial_lcdf(y | 1.3, 2.1)"),
    *("choose(6, 2)", "sum(sort_indices_desc(d))", "sum(linspaced_int_array(3, 1, 5))"),
    *("sum(ones_int_array(3))", "sum(one_hot_int_array(3, 2))", "max({1, 4, 2})", "sum(cumulative_sum(y))"),
    *("sum(dims(X))", "sum(sort_asc(y))"),
    *(
        "positive_infinity() > 1",
        "is_nan(not_a_number())",
        "negative_infinity() < 1",
        "student_t_cdf(0.3 | 4, 0.1, 1.2)",
    ),
    *("beta_cdf(0.3 | 1.2, 2.1)", "bernoulli_cdf(0 | 0.3)", "binomial_cdf(y | nn, 0.3)"),
    *("poisson_cdf(y | 1.3)", "neg_binomial_cdf(y | 1.3, 2.1)", "neg_binomial_2_cdf(y | 1.3, 2.1)"),
    *("neg_binomial_lccdf(y | 1.3, 2.1)",),
    *(
        "neg_binomial_2_lccdf(y | 1.3, 2.1)",
        "sum(ones_row_vector(3))",
        "sum(ones_array(3))",
        "sum(zeros_row_vector(3))",
    ),
    *("sum(zeros_array(3))", "sum(zeros_int_array(3))", "sum(one_hot_row_vector(3, 2))"),
    *("sum(one_hot_array(3, 2))",),
]
"""Each gives a number of data alone."""


def program(expressions: list[str]) -> str:
    """A program whose target has a term for each, with a weight of its own."""
    terms = "\n".join(f"  target += {1 + 0.37 * i:.2f} * ({e});" for i, e in enumerate(expressions))
    return f"{VARIABLES}model {{\n{terms}\n}}\n"


def program_of_data(expressions: list[str]) -> str:
    """A program with these as transformed data, which are factors of a parameter."""
    values = "".join(f"  real t{i} = {e};\n" for i, e in enumerate(expressions))
    data = VARIABLES.partition("parameters")[0].rstrip().removesuffix("}")
    terms = "\n".join(f"  target += {1 + 0.37 * i:.2f} * t{i} * r1;" for i in range(len(expressions)))
    return f"{data}{values}}}\nparameters {{ real r1; }}\nmodel {{\n{terms}\n}}\n"

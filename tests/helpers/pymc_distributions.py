"""Log-densities of PyMC's distributions as functions of one vector, of parameters and value, and points to compare at.

`invalid` are parameters that the distribution excludes; at the first of them, its log-density is -inf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

Point = list[float]


@dataclass(frozen=True)
class Density:
    """make: PyMC's distribution `of` that name, of a vector p. Its value is the last entry of p, or constant."""

    of: str
    make: Callable[[Any], Any]
    valid: list[Point]
    invalid: list[Point]
    value: Any = None

    def model(self) -> Any:
        """Of a free vector p."""
        with pm.Model() as model:
            p = pm.Flat("p", shape=len(self.valid[0]))
            if self.value is None:
                pm.Potential("y", pm.logp(self.make(p), p[-1]))
            elif self.make(p).ndim == np.ndim(self.value):
                model.register_rv(self.make(p), "y", observed=self.value)
            else:
                for k, value in enumerate(self.value):
                    model.register_rv(self.make(p), f"y{k}", observed=value)
        return model


_W = np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
_DATA = np.array([0.3, 1.2, 0.7])
_COUNTS = np.array([2, 1, 3])
_SPD = np.array([[2.0, 0.3], [0.3, 1.0]])
_TWO = np.array([0.4, -0.9])


def _covariance(p: Any) -> Any:
    """Positive definite where both are positive and |p[2]| < sqrt(p[0] p[1])."""
    return pt.stacklists([[p[0], p[2]], [p[2], p[1]]])


def _truncated(p: Any) -> Any:
    return pm.Truncated.dist(pm.Gamma.dist(p[0], p[1]), lower=p[2], upper=5.0)


DENSITIES = [
    Density("AR", lambda p: pm.AR.dist(p[:1], sigma=p[1], init_dist=pm.Normal.dist(0, 1), shape=3),
            [[0.4, 1.2]], [[0.4, -1.0]], _DATA),
    Density("CAR", lambda p: pm.CAR.dist(p[0] * np.ones(3), _W, p[1], p[2]),
            [[0.1, 0.5, 2.0]], [[0.1, 1.5, 2.0], [0.1, 0.5, -1.0]], _DATA),
    Density("GARCH11", lambda p: pm.GARCH11.dist(p[0], p[1], p[2], p[3], shape=3),
            [[0.5, 0.2, 0.3, 1.0]], [[-0.5, 0.2, 0.3, 1.0]], _DATA),
    Density("ICAR", lambda p: pm.ICAR.dist(_W, sigma=p[0]), [[1.5]], [[-1.5]], _DATA),
    Density("AsymmetricLaplace", lambda p: pm.AsymmetricLaplace.dist(kappa=p[0], mu=p[1], b=p[2]),
            [[1.5, 0.2, 2.0, 0.9]], [[-1.5, 0.2, 2.0, 0.9], [1.5, 0.2, -2.0, 0.9]]),
    Density("Bernoulli", lambda p: pm.Bernoulli.dist(p[0]), [[0.3]], [[1.3], [-0.1]], np.array([0, 1, 1])),
    Density("Beta", lambda p: pm.Beta.dist(p[0], p[1]), [[2.0, 3.0, 0.4]], [[-2.0, 3.0, 0.4], [2.0, -3.0, 0.4]]),
    Density("Beta", lambda p: pm.Beta.dist(mu=p[0], sigma=p[1]),
            [[0.4, 0.2, 0.5], [0.4, 1e-3, 0.4]], [[0.4, 1.0, 0.5], [0.4, 1e6, 0.5], [1.4, 0.2, 0.5]]),
    Density("BetaBinomial", lambda p: pm.BetaBinomial.dist(alpha=p[0], beta=p[1], n=4),
            [[2.0, 3.0]], [[-2.0, 3.0], [2.0, -3.0]], _COUNTS),
    Density("Binomial", lambda p: pm.Binomial.dist(4, p[0]), [[0.3]], [[1.3], [-0.3]], _COUNTS),
    Density("Binomial", lambda p: pm.Binomial.dist(4, logit_p=p[0]), [[0.3], [10.0], [-10.0]], [], _COUNTS),
    Density("Categorical", lambda p: pm.Categorical.dist(pt.stack([p[0], 1.0 - p[0]])),
            [[0.3]], [[1.3], [-0.3]], np.array([0, 1, 1])),
    Density("Cauchy", lambda p: pm.Cauchy.dist(p[0], p[1]), [[0.3, 1.2, 1e4]], [[0.3, -1.2, 2.0]]),
    Density("Censored", lambda p: pm.Censored.dist(pm.Normal.dist(p[0], p[1]), lower=-1.0, upper=1.0),
            [[0.3, 1.2], [60.0, 1.0]], [[0.3, -1.2]], np.array([-1.0, 0.2, 1.0])),
    Density("Censored", lambda p: pm.Censored.dist(pm.Normal.dist(0.0, 1.0), lower=p[0], upper=p[1]),
            [[-1.0, 1.0]], [[1.0, -1.0]], np.array([-1.0, 0.2, 1.0])),
    Density("ChiSquared", lambda p: pm.ChiSquared.dist(p[0]), [[3.0, 2.0]], [[-3.0, 2.0]]),
    Density("Dirichlet", lambda p: pm.Dirichlet.dist(p),
            [[1.0, 2.0, 3.0]], [[1.0, -2.0, 3.0]], np.array([0.2, 0.3, 0.5])),
    Density("DirichletMultinomial", lambda p: pm.DirichletMultinomial.dist(6, p),
            [[1.0, 2.0, 3.0]], [[1.0, -2.0, 3.0]], _COUNTS),
    Density("DiscreteWeibull", lambda p: pm.DiscreteWeibull.dist(p[0], p[1]),
            [[0.6, 1.5]], [[1.6, 1.5], [0.6, -1.5]], _COUNTS),
    Density("EulerMaruyama", lambda p: pm.EulerMaruyama.dist(
        0.1, lambda x, k, s: (-k * x, s), (p[0], p[1]), init_dist=pm.Normal.dist(0, 1), shape=3),
            [[0.4, 1.2]], [[0.4, -1.2]], _DATA),
    Density("ExGaussian", lambda p: pm.ExGaussian.dist(p[0], p[1], nu=p[2]),
            [[0.3, 1.2, 2.0, 1.0], [0.0, 1.0, 0.01, 1.0], [0.0, 1.0, 1.0, -60.0]],
            [[0.3, -1.2, 2.0, 1.0], [0.3, 1.2, -2.0, 1.0]]),
    Density("Exponential", lambda p: pm.Exponential.dist(p[0]), [[2.0, 0.4]], [[-2.0, 0.4]]),
    Density("Gamma", lambda p: pm.Gamma.dist(p[0], p[1]), [[2.0, 3.0, 0.4]], [[-2.0, 3.0, 0.4], [2.0, -3.0, 0.4]]),
    Density("Gamma", lambda p: pm.Gamma.dist(mu=p[0], sigma=p[1]), [[2.0, 3.0, 0.4]], [[-2.0, 3.0, 0.4]]),
    Density("GaussianRandomWalk", lambda p: pm.GaussianRandomWalk.dist(
        p[0], p[1], init_dist=pm.Normal.dist(0, 1), steps=2), [[0.1, 1.2]], [[0.1, -1.2]], _DATA),
    Density("Geometric", lambda p: pm.Geometric.dist(p[0]), [[0.3]], [[1.3], [-0.3]], _COUNTS),
    Density("Gumbel", lambda p: pm.Gumbel.dist(p[0], p[1]), [[0.3, 1.2, 0.4]], [[0.3, -1.2, 0.4]]),
    Density("HalfCauchy", lambda p: pm.HalfCauchy.dist(p[0]), [[1.2, 0.4]], [[-1.2, 0.4]]),
    Density("HalfNormal", lambda p: pm.HalfNormal.dist(p[0]), [[1.2, 0.4]], [[-1.2, 0.4]]),
    Density("HalfStudentT", lambda p: pm.HalfStudentT.dist(p[0], p[1]),
            [[3.0, 1.2, 0.4]], [[-3.0, 1.2, 0.4], [3.0, -1.2, 0.4]]),
    Density("HurdleGamma", lambda p: pm.HurdleGamma.dist(p[0], p[1], p[2]),
            [[0.3, 2.0, 3.0]], [[1.3, 2.0, 3.0], [0.3, -2.0, 3.0]], np.array([0.0, 1.2])),
    Density("HurdleLogNormal", lambda p: pm.HurdleLogNormal.dist(p[0], p[1], p[2]),
            [[0.3, 0.2, 1.2]], [[1.3, 0.2, 1.2], [0.3, 0.2, -1.2]], np.array([0.0, 1.2])),
    Density("HurdleNegativeBinomial", lambda p: pm.HurdleNegativeBinomial.dist(p[0], mu=p[1], alpha=p[2]),
            [[0.3, 2.0, 3.0]], [[1.3, 2.0, 3.0], [0.3, -2.0, 3.0], [0.3, 2.0, -3.0]], np.array([0, 3])),
    Density("HurdlePoisson", lambda p: pm.HurdlePoisson.dist(p[0], p[1]),
            [[0.3, 2.0]], [[1.3, 2.0], [0.3, -2.0]], np.array([0, 3])),
    Density("InverseGamma", lambda p: pm.InverseGamma.dist(p[0], p[1]),
            [[2.0, 3.0, 0.4]], [[-2.0, 3.0, 0.4], [2.0, -3.0, 0.4]]),
    Density("KroneckerNormal", lambda p: pm.KroneckerNormal.dist(
        np.zeros(4), covs=[_SPD, p[0] * np.diag([1.0, 2.0])], sigma=p[1], shape=4),
            [[1.5, 0.5]], [], np.array([0.3, 1.2, 0.7, 0.1])),
    Density("Kumaraswamy", lambda p: pm.Kumaraswamy.dist(p[0], p[1]),
            [[2.0, 3.0, 0.4]], [[-2.0, 3.0, 0.4], [2.0, -3.0, 0.4]]),
    Density("Laplace", lambda p: pm.Laplace.dist(p[0], p[1]), [[0.3, 1.2, 0.4]], [[0.3, -1.2, 0.4]]),
    Density("LogNormal", lambda p: pm.LogNormal.dist(p[0], p[1]), [[0.3, 1.2, 0.4]], [[0.3, -1.2, 0.4]]),
    Density("Logistic", lambda p: pm.Logistic.dist(p[0], p[1]),
            [[0.3, 1.2, 0.4], [0.3, 1.2, 600.0], [0.3, 1.2, -600.0]], [[0.3, -1.2, 0.4]]),
    Density("LogitNormal", lambda p: pm.LogitNormal.dist(p[0], p[1]),
            [[0.3, 1.2]], [[0.3, -1.2]], np.array([0.4, 0.9])),
    Density("MatrixNormal", lambda p: pm.MatrixNormal.dist(np.zeros((2, 2)), rowcov=_covariance(p), colcov=_SPD),
            [[1.5, 2.0, 0.3]], [], np.array([[0.3, 1.2], [0.7, 0.1]])),
    Density("Mixture", lambda p: pm.Mixture.dist(
        pt.stack([p[0], 1.0 - p[0]]), [pm.Normal.dist(p[1], p[2]), pm.StudentT.dist(4, mu=p[1], sigma=2.0)]),
            [[0.3, 0.2, 1.2], [0.3, 500.0, 1.0]], [[1.3, 0.2, 1.2], [0.3, 0.2, -1.2]], _DATA),
    Density("Moyal", lambda p: pm.Moyal.dist(p[0], p[1]), [[0.3, 1.2, 0.4]], [[0.3, -1.2, 0.4]]),
    Density("Multinomial", lambda p: pm.Multinomial.dist(6, pt.stack([p[0], p[1], 1.0 - p[0] - p[1]])),
            [[0.3, 0.2]], [[-0.3, 0.2]], _COUNTS),
    Density("MvGaussianRandomWalk", lambda p: pm.MvGaussianRandomWalk.dist(
        np.zeros(2), cov=_covariance(p), init_dist=pm.MvNormal.dist(np.zeros(2), _SPD), steps=1),
            [[1.5, 2.0, 0.3]], [[1.5, 2.0, 9.0]], np.array([[0.3, 1.2], [0.7, 0.1]])),
    Density("MvNormal", lambda p: pm.MvNormal.dist(np.zeros(2), cov=_covariance(p)),
            [[1.5, 2.0, 0.3]], [[1.5, 2.0, 9.0]], _TWO),
    Density("MvStudentT", lambda p: pm.MvStudentT.dist(nu=p[3], mu=np.zeros(2), scale=_covariance(p)),
            [[1.5, 2.0, 0.3, 4.0]], [[1.5, 2.0, 0.3, -4.0], [1.5, 2.0, 9.0, 4.0]], _TWO),
    Density("MvStudentTRandomWalk", lambda p: pm.MvStudentTRandomWalk.dist(
        nu=p[3], mu=np.zeros(2), scale=_covariance(p), init_dist=pm.MvNormal.dist(np.zeros(2), _SPD), steps=1),
            [[1.5, 2.0, 0.3, 4.0]], [[1.5, 2.0, 0.3, -4.0]], np.array([[0.3, 1.2], [0.7, 0.1]])),
    Density("NegativeBinomial", lambda p: pm.NegativeBinomial.dist(mu=p[0], alpha=p[1]),
            [[2.0, 3.0], [2.0, 1e4]], [[-2.0, 3.0], [2.0, -3.0]], _COUNTS),
    Density("Normal", lambda p: pm.Normal.dist(p[0], p[1]), [[0.3, 1.2, 0.4]], [[0.3, -1.2, 0.4]]),
    Density("NormalMixture", lambda p: pm.NormalMixture.dist(pt.stack([p[0], 1.0 - p[0]]), p[1:3], p[3:5]),
            [[0.3, 0.1, 2.0, 1.0, 1.5]], [[0.3, 0.1, 2.0, 1.0, -1.5]], _DATA),
    Density("OrderedLogistic", lambda p: pm.OrderedLogistic.dist(p[0], p[1:3]),
            [[0.3, -1.0, 1.0], [40.0, -1.0, 1.0]], [], np.array([0, 1, 2])),
    Density("OrderedMultinomial", lambda p: pm.OrderedMultinomial.dist(p[0], p[1:3], n=6),
            [[0.3, -1.0, 1.0]], [], _COUNTS),
    Density("OrderedProbit", lambda p: pm.OrderedProbit.dist(p[0], p[1:3], sigma=p[3]),
            [[0.3, -1.0, 1.0, 1.5], [30.0, -1.0, 1.0, 1.0]], [], np.array([0, 1, 2])),
    Density("Pareto", lambda p: pm.Pareto.dist(p[0], p[1]), [[2.0, 0.5, 1.4]], [[-2.0, 0.5, 1.4], [2.0, -0.5, 1.4]]),
    Density("Poisson", lambda p: pm.Poisson.dist(p[0]), [[2.0]], [[-2.0]], _COUNTS),
    Density("RandomWalk", lambda p: pm.RandomWalk.dist(
        init_dist=pm.Normal.dist(0, 1), innovation_dist=pm.StudentT.dist(p[0], sigma=p[1]), steps=2),
            [[4.0, 1.2]], [[-4.0, 1.2], [4.0, -1.2]], _DATA),
    Density("Rice", lambda p: pm.Rice.dist(p[0], p[1]), [[0.5, 1.2, 0.4]], [[-0.5, 1.2, 0.4], [0.5, -1.2, 0.4]]),
    Density("SkewNormal", lambda p: pm.SkewNormal.dist(mu=p[0], sigma=p[1], alpha=p[2]),
            [[0.3, 1.2, 2.0, 0.4]], [[0.3, -1.2, 2.0, 0.4]]),
    Density("SkewStudentT", lambda p: pm.SkewStudentT.dist(a=p[0], b=p[1], mu=p[2], sigma=p[3]),
            [[2.0, 3.0, 0.2, 1.2, 0.4]], [[-2.0, 3.0, 0.2, 1.2, 0.4], [2.0, 3.0, 0.2, -1.2, 0.4]]),
    Density("StickBreakingWeights", lambda p: pm.StickBreakingWeights.dist(p[0], K=2),
            [[2.0]], [[-2.0]], np.array([0.2, 0.3, 0.5])),
    Density("StudentT", lambda p: pm.StudentT.dist(p[0], mu=p[1], sigma=p[2]),
            [[4.0, 0.3, 1.2, 0.4]], [[-4.0, 0.3, 1.2, 0.4], [4.0, 0.3, -1.2, 0.4]]),
    Density("Triangular", lambda p: pm.Triangular.dist(p[0], p[1], p[2]),
            [[0.0, 2.0, 1.0, 0.4], [0.0, 2.0, 1.0, 1.4]], [[0.0, 2.0, 3.0, 1.0], [2.0, 0.0, 1.0, 0.4]]),
    Density("Truncated", _truncated, [[2.0, 1.0, 0.5, 0.9]], []),
    Density("TruncatedNormal", lambda p: pm.TruncatedNormal.dist(p[0], p[1], lower=0.0),
            [[1.0, 1.2, 0.4], [170.0, 4.0, 171.0], [-170.0, 4.0, 0.1], [1000.0, 1.0, 1000.0]], [[1.0, -1.2, 0.4]]),
    Density("TruncatedNormal", lambda p: pm.TruncatedNormal.dist(p[0], p[1], upper=0.0),
            [[1.0, 1.2, -0.4], [170.0, 4.0, -0.1], [-170.0, 4.0, -171.0]], [[1.0, -1.2, -0.4]]),
    Density("TruncatedNormal", lambda p: pm.TruncatedNormal.dist(p[0], 4.0, lower=p[1], upper=p[2]),
            [[1.0, -1.0, 1.0, 0.4], [170.0, -1.0, 1.0, 0.4], [-1000.0, -1.0, 1.0, 0.4]], [[1.0, 1.0, -1.0, 0.4]]),
    Density("Uniform", lambda p: pm.Uniform.dist(p[0], p[1]), [[0.0, 2.0, 0.4]], [[2.0, 0.0, 1.0]]),
    Density("VonMises", lambda p: pm.VonMises.dist(p[0], p[1]),
            [[0.3, 1.2, 0.4], [0.3, 400.0, 0.4]], [[0.3, -1.2, 0.4]]),
    Density("Wald", lambda p: pm.Wald.dist(p[0], p[1]), [[1.3, 1.2, 0.4]], [[-1.3, 1.2, 0.4], [1.3, -1.2, 0.4]]),
    Density("Weibull", lambda p: pm.Weibull.dist(p[0], p[1]), [[1.3, 1.2, 0.4]], [[-1.3, 1.2, 0.4], [1.3, -1.2, 0.4]]),
    Density("Wishart", lambda p: pm.Wishart.dist(nu=p[3], V=_covariance(p)),
            [[1.5, 2.0, 0.3, 4.0]], [[1.5, 2.0, 0.3, -4.0]], _SPD),
    Density("ZeroInflatedBinomial", lambda p: pm.ZeroInflatedBinomial.dist(p[0], 4, p[1]),
            [[0.3, 0.6]], [[1.3, 0.6], [0.3, 1.6]], np.array([0, 3])),
    Density("ZeroInflatedNegativeBinomial", lambda p: pm.ZeroInflatedNegativeBinomial.dist(p[0], mu=p[1], alpha=p[2]),
            [[0.3, 2.0, 3.0]], [[1.3, 2.0, 3.0], [0.3, -2.0, 3.0], [0.3, 2.0, -3.0]], np.array([0, 3])),
    Density("ZeroInflatedPoisson", lambda p: pm.ZeroInflatedPoisson.dist(p[0], p[1]),
            [[0.3, 2.0]], [[1.3, 2.0], [0.3, -2.0]], np.array([0, 3])),
    Density("ZeroSumNormal", lambda p: pm.ZeroSumNormal.dist(p[0], shape=3), [[1.5]], [], np.array([0.3, 0.4, -0.7])),
]  # fmt: skip

WITHOUT = {
    "Continuous Discrete Distribution SymbolicRandomVariable": "base classes",
    "CustomDist DensityDist Simulator": "a user's own density, or none",
    "DiracDelta DiscreteUniform Flat HalfFlat HyperGeometric": "no parameter that is a real number",
    "Interpolated PolyaGamma": "computed by SciPy and by a package of its own, which JAX does not have",
    "LKJCholeskyCov LKJCorr": "its parameter is a constant; test_pymc has it",
    "Lognormal": "another name of LogNormal",
    "WishartBartlett": "made of others",
}
"""PyMC's distributions that have no line above, and why."""

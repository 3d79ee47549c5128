"""Posteriors whose moments are known: by mathematics, by quadrature, or as published with a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from batchnuts.bridges.inference_gym import STATISTICS
from batchnuts.experiments.posterior_checks import brownian_motion, stochastic_volatility
from batchnuts.experiments.posterior_checks.moments import Moment, Moments
from batchnuts.mcmc.model.model import Model


def known_moments(options: Any, model: Model) -> Moments | None:
    """What is known of a model of a config's section `model`, by label (see moments.py); None if nothing is."""
    candidates = (truth(options, model) for truth in TRUTHS)
    return next((moments for moments in candidates if moments is not None), None)


def _of_gaussian(options: Any, model: Model) -> Moments | None:
    if model.name != "correlated_gaussian":
        return None
    constants = {name: np.asarray(array) for name, (_, array) in model.constant_data.items()}
    variance = constants["true_variance"] if "true_variance" in constants else np.diag(constants["true_covariance"])
    return {"x": Moment.exact(constants["true_mean"], np.sqrt(variance))}


def _of_funnel(options: Any, model: Model) -> Moments | None:
    """Of v, and of log |x| = v / 2 + log |z|: x itself has moments too, but kurtosis 3 exp(scale^2), and no sample has
    enough of its tails."""
    if model.name != "neal_funnel":
        return None
    # log z^2 of a normal z is that of a gamma number with shape 1/2, times 2
    mean, variance = 0.5 * (special.digamma(0.5) + math.log(2)), 0.25 * special.polygamma(1, 0.5)
    ones = np.ones(options.dimension - 1)
    return {
        "v": Moment.exact(0.0, options.scale),
        "log(x)": Moment.exact(mean * ones, np.sqrt(options.scale**2 / 4 + variance) * ones),
    }


def _of_brownian_motion(options: Any, model: Model) -> Moments | None:
    """By quadrature. The means that the Inference Gym publishes were sampled; that of the noise is 18 of its own
    standard errors from the exact one, that of the innovation 7."""
    if getattr(options, "inference_gym", None) != "BrownianMotionUnknownScalesMissingMiddleObservations":
        return None
    from inference_gym.internal import data

    return brownian_motion.posterior(np.asarray(data.brownian_motion_missing_middle_observations()["observed_locs"]))


def _of_stochastic_volatility(options: Any, model: Model) -> Moments | None:
    """Of 100 days: its three parameters by quadrature, the volatilities as published.

    The published mean of mean_log_volatility is 13 of its own standard errors from the exact one, that of the
    persistence 4: whatever sampled them did not reach the tail where volatility hardly returns to its mean.
    """
    if getattr(options, "inference_gym", None) not in (
        "StochasticVolatilitySP500Small",
        "VectorizedStochasticVolatilitySP500Small",
    ):
        return None
    from inference_gym.internal import data

    returns = np.asarray(data.sp500_returns(num_points=100)["centered_returns"], np.float64)
    return {**(_published(options, model) or {}), **stochastic_volatility.posterior(returns)}


def _published(options: Any, model: Model) -> Moments | None:
    """`Model.ground_truth`: of a target of the Inference Gym. What it does not know is NaN, and not compared.

    Moments without any standard error are exact. Those that were sampled have one of the mean alone, as a rule: then
    the standard deviation is not compared, since how far off it may be is not known.
    """
    truths = {name: np.asarray(array, np.float64) for name, (_, array) in model.ground_truth.items()}
    if not truths:
        return None
    moments = {}
    for name, table in truths.items():
        by_statistic = dict(zip(STATISTICS, table, strict=True))
        mean, sd = by_statistic["mean"], by_statistic["standard_deviation"]
        errors = by_statistic["mean_standard_error"], by_statistic["standard_deviation_standard_error"]
        exact = np.isnan(errors[0]) & np.isnan(errors[1])
        mean = np.where(np.isnan(errors[0]) & ~exact, np.nan, mean)
        sd = np.where(np.isnan(errors[1]) & ~exact, np.nan, sd)
        moments[name] = Moment(mean, sd, *(np.where(exact, 0.0, error) for error in errors))
    return moments


Truth = Callable[[Any, Model], Moments | None]

TRUTHS: tuple[Truth, ...] = (_of_gaussian, _of_funnel, _of_brownian_motion, _of_stochastic_volatility, _published)
"""Each looks whether a model is one that it knows."""

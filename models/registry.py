"""Packaged models by name: the options each takes, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchnuts.mcmc.model.model import Model
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions, build_correlated_gaussian
from batchnuts.models.eight_schools import EightSchoolsOptions, build_eight_schools
from batchnuts.models.gaussian_process import GaussianProcessOptions, build_gaussian_process
from batchnuts.models.hidden_markov import HiddenMarkovOptions, build_hidden_markov
from batchnuts.models.horseshoe import HorseshoeOptions, build_horseshoe
from batchnuts.models.item_response import ItemResponseOptions, build_item_response
from batchnuts.models.logistic_regression import LogisticRegressionOptions, build_logistic_regression
from batchnuts.models.lotka_volterra import LotkaVolterraOptions, build_lotka_volterra
from batchnuts.models.neal_funnel import NealFunnelOptions, build_neal_funnel
from batchnuts.models.radon import RadonOptions, build_radon
from batchnuts.models.stochastic_volatility import StochasticVolatilityOptions, build_stochastic_volatility

ModelOptions = (
    LogisticRegressionOptions
    | CorrelatedGaussianOptions
    | NealFunnelOptions
    | EightSchoolsOptions
    | GaussianProcessOptions
    | HiddenMarkovOptions
    | HorseshoeOptions
    | ItemResponseOptions
    | LotkaVolterraOptions
    | RadonOptions
    | StochasticVolatilityOptions
)


@dataclass(frozen=True)
class PackagedModel:
    """The schema of a model's options, and its builder (which imports TensorFlow only when called)."""

    options: type[ModelOptions]
    build: Callable[[Any], Model]


REGISTRY: dict[str, PackagedModel] = {
    "logistic_regression": PackagedModel(LogisticRegressionOptions, build_logistic_regression),
    "correlated_gaussian": PackagedModel(CorrelatedGaussianOptions, build_correlated_gaussian),
    "neal_funnel": PackagedModel(NealFunnelOptions, build_neal_funnel),
    "eight_schools": PackagedModel(EightSchoolsOptions, build_eight_schools),
    "gaussian_process": PackagedModel(GaussianProcessOptions, build_gaussian_process),
    "hidden_markov": PackagedModel(HiddenMarkovOptions, build_hidden_markov),
    "horseshoe": PackagedModel(HorseshoeOptions, build_horseshoe),
    "item_response": PackagedModel(ItemResponseOptions, build_item_response),
    "lotka_volterra": PackagedModel(LotkaVolterraOptions, build_lotka_volterra),
    "radon": PackagedModel(RadonOptions, build_radon),
    "stochastic_volatility": PackagedModel(StochasticVolatilityOptions, build_stochastic_volatility),
}


def build(options: ModelOptions) -> Model:
    """Make the model that the options describe. Raises the errors of its builder (e.g. DataError)."""
    return REGISTRY[options.name].build(options)

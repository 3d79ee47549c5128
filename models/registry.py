"""Packaged models by name: the options each takes, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchnuts.mcmc.model import Model
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions, build_correlated_gaussian
from batchnuts.models.eight_schools import EightSchoolsOptions, build_eight_schools
from batchnuts.models.logistic_regression import LogisticRegressionOptions, build_logistic_regression
from batchnuts.models.neal_funnel import NealFunnelOptions, build_neal_funnel

ModelOptions = LogisticRegressionOptions | CorrelatedGaussianOptions | NealFunnelOptions | EightSchoolsOptions


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
}


def build(options: ModelOptions) -> Model:
    """Make the model that the options describe. Raises the errors of its builder (e.g. DataError)."""
    return REGISTRY[options.name].build(options)

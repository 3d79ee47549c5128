"""Models of densities that are written in another library: the bridges (bridges/) make them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Self


class FromLibraries:
    """Constructors of `Model`, which inherits them; each imports its bridge when it is called."""

    @classmethod
    def from_jax(cls, log_density: Callable[[Any], Any], example: Any, **options: Any) -> Self:
        """Make a model of a log-density in JAX: a function of one tree of arrays to a scalar (docs/jax_model.md).

        example: such a tree, of real numbers or arrays. It gives shapes, names (`group.scale`), and where chains start.
        options: `supports`, declarations such as `positive()` by name, whose Jacobians are added; or `transform`,
            which maps an unconstrained tree to one like the example, with its `inverse` and `log_jacobian` if known.
            Further `name`, `dtype` ("float32"), and fields of a Model, whose functions take and give such trees.

        Raises ModelError where JAX is not installed, for an example without numbers, options that do not fit it or are
        unknown, and functions that fail.
        """
        converted: Self = later("batchnuts.bridges.jax", "from_jax")(log_density, example, **options)
        return converted

    @classmethod
    def from_joint_distribution(
        cls, distribution: Any, pinned: Mapping[str, Any] | None = None, **keywords: Any
    ) -> Self:
        """Make a model of a joint distribution of TensorFlow Probability, given values of some of its parts.

        distribution: any `tfd.JointDistribution*`, or one that is pinned already. The values of parts by name are
        keywords, or the mapping `pinned` (for parts with the name of another argument, or `inner.x` within a nested
        one). Further keywords: `name`, `dims`, `coords`, `initializer` of the model. Free parts are reported by name;
        their supports are those of the distributions' default bijectors. The model has the functions `prior`,
        `predictive` and `log_likelihood` where the distributions have what they need.

        Raises ModelError for names, shapes and dtypes that do not fit, for free parts that are discrete or have no
        bijector, and for a model that fails.
        """
        converted: Self = later("batchnuts.bridges.joint_distribution", "from_joint_distribution")(
            distribution, pinned, **keywords
        )
        return converted

    @classmethod
    def from_inference_gym(cls, target: Any, **options: Any) -> Self:
        """Make a model of a target of the Inference Gym: an object, or the name of one that needs no arguments.

        Reported are its sample transformations, by name; the group `ground_truth` of the output has what the target
        knows of them: mean, standard deviation and their standard errors. Keywords: `name`, `dims`, `coords` of the
        model. Raises ModelError for other objects, unknown names, and targets that need a download.
        """
        converted: Self = later("batchnuts.bridges.inference_gym", "from_inference_gym")(target, **options)
        return converted

    @classmethod
    def from_numpyro(cls, model: Any, *args: Any, **kwargs: Any) -> Self:
        """Make a model of a NumPyro model that is called with these arguments (docs/numpyro_model.md).

        kwargs: the model's keyword arguments, and the options `name`, `dtype` ("float32"), `dims` (names of axes by the
            name of a site), `coords` (labels by the name of an axis) and `init_strategy` (a `numpyro.infer.init_to_*`).

        Latent and deterministic sites are reported; observed ones give data, log-likelihoods and predictions. Raises
        ModelError where NumPyro is not installed, for discrete latent sites, subsamples and other models that cannot be
        sampled, arguments that do not fit, and what the model raises.
        """
        converted: Self = later("batchnuts.bridges.numpyro", "from_numpyro")(model, *args, **kwargs)
        return converted

    @classmethod
    def from_pymc(cls, model: Any, **options: Any) -> Self:
        """Make a model of a `pymc.Model`, with its data as they are now (docs/pymc_model.md).

        options: `name`, `dtype` (default: that of its variables), `dims` and `coords`, which add to the model's own.

        Free random variables and deterministics are reported; observed ones give data, log-likelihoods and predictions.
        Raises ModelError where PyMC is not installed, for discrete variables, no free variable, and operations that
        PyTensor cannot translate to JAX.
        """
        converted: Self = later("batchnuts.bridges.pymc", "from_pymc")(model, **options)
        return converted

    @classmethod
    def from_stan(cls, program: Any, **options: Any) -> Self:
        """Make a model of a Stan program: the path of a file, or its text (docs/stan_model.md). In float64.

        options: `data`, a mapping of numbers and arrays, or the path of a .json file (or of a table, whose columns they
        are); `include_paths`; `name`; `dims` and `coords` by Stan's names; `initializer`; `log_likelihood` and
        `predictive`, patterns of the names of generated quantities that go into these groups.

        Parameters, transformed parameters and generated quantities are reported. Raises ModelError where stanli is not
        installed, with Stan's message and line for a program that is wrong, and for data that do not fit.
        """
        converted: Self = later("batchnuts.bridges.stan.model", "from_stan")(program, **options)
        return converted


def later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that builds on this one, which is imported when a method needs it."""
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function

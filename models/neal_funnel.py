"""Neal's funnel (Neal 2003, "Slice sampling", section 8): v ~ N(0, scale^2), and given v, x_i ~ N(0, exp(v)).

The marginal of v is known, and hard to reach: no step size suits both the neck (v small) and the mouth of the funnel,
so trajectories are of very different lengths.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import DType, Model, Variable
from batchnuts.mcmc.settings.run_settings import MOST_NUMBERS
from batchnuts.settings.schema import Settings


class NealFunnelOptions(Settings):
    """Options of `name: neal_funnel`."""

    name: Literal["neal_funnel"] = Field("neal_funnel", description="this model")
    dimension: int = Field(10, ge=2, le=MOST_NUMBERS, description="v and the x_i together")
    scale: float = Field(3.0, ge=1e-30, le=1e30, description="standard deviation of v")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_neal_funnel(options: NealFunnelOptions) -> Model:
    """Make the model. Its `constant_data` has the truth of v: `true_v_mean` and `true_v_scale`, scalars."""
    wide = options.dimension - 1
    half, narrow = 0.5 * wide, 0.5 / options.scale**2
    constant = -0.5 * options.dimension * math.log(2 * math.pi) - math.log(options.scale)

    def log_density(position: Any) -> Any:
        v, x = position[0], position[1:]
        return constant - narrow * v * v - half * v - 0.5 * ops.exp(-v) * ops.sum(x * x)

    return Model(
        name="neal_funnel",
        log_density=log_density,
        dimension=options.dimension,
        dtype=options.dtype,
        variables=(Variable("v"), Variable("x", (wide,), ("coordinate",))),
        constant_data={"true_v_mean": ((), np.array(0.0)), "true_v_scale": ((), np.array(options.scale))},
    )

"""One transition of one chain, as `run_chain` asks for it, whatever the sampler.

It is a batched function `(key, position, log_density, gradient, step_size, inverse_mass) -> Transition`. For one chain:
key uint32[2]; position, gradient [dimension]; log_density and step_size scalars; inverse_mass what the metric is made
of; all but the key of the model's dtype. `nuts.make_nuts` makes one; `sampling` chooses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any


class Transition(NamedTuple):
    """The result of one transition: the new state and its statistics.

    Where the density is +inf no state can be drawn; this is an error of the model. Then `log_density` is +inf,
    `position` is where it is, and the other fields are undefined.
    """

    position: Array
    gradient: Array
    log_density: Array
    energy: Array
    acceptance_rate: Array
    tree_depth: Array
    n_steps: Array
    diverging: Array

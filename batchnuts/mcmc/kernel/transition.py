"""One transition of one chain, as `run_chain` asks for it, whatever the sampler.

It is a batched function `(key, position, log_density, gradient, step_size, inverse_mass, max_tree_depth, data) ->
Transition`. For one chain: key uint32[2]; position, gradient [dimension]; log_density and step_size scalars;
inverse_mass what the metric is made of; all of the model's dtype but the key and max_tree_depth, an integer; data a
tuple of arrays that the density takes beside the position.
`nuts.make_nuts` and `walnuts.make_walnuts` make one; `make_transition` chooses.
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
    """Between 0 and 1: what warmup adapts the step size to."""
    tree_depth: Array
    n_steps: Array
    """Gradients evaluated."""
    diverging: Array
    energy_error: Array
    """H of the new state less H_0, that of the start."""
    max_energy_error: Array
    """The energy error of the trajectory's state for which it is largest by absolute value; 0 if none differs."""
    index_in_trajectory: Array
    """int32: how many states lie between the start and the new state; negative where that is before the start."""
    last_position: Array
    """[dimension]: the last state made; of a trajectory that diverged, where it did."""

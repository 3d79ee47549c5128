"""The program of a run, written for one chain: a stretch of transitions, and the making of each one's `Record`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from batchnuts.autobatch import BatchedFunction, batch, ops, random, write
from batchnuts.mcmc.kernel.sample_statistics import Record, empty_records
from batchnuts.mcmc.kernel.step_size import StepSizeAdaptation, changed_if

Array = Any


class ChainInputs(NamedTuple):
    """The arguments of `run_chain`, in order; `begin` makes those of a chain that has made no transition yet."""

    key: Array
    position: Array
    log_density: Array
    gradient: Array
    inverse_mass: Array
    adaptation: Any
    adapting: Array
    first: Array
    """The number of the run's transition that this stretch begins with."""
    done: Array
    """Transitions of the stretch made already."""
    divergences: Array
    """How many of these diverged."""
    first_row: Array
    """Transition i of the stretch goes to row i - first_row of the buffers."""
    until: Array
    """The chain stops after this number of transitions of the stretch."""
    max_tree_depth: Array
    """A trajectory doubles at most this many times."""
    data: tuple[Array, ...] = ()
    """What the density takes beside the position."""

    @classmethod
    def begin(
        cls,
        key: Array,
        position: Array,
        log_density: Array,
        gradient: Array,
        inverse_mass: Array,
        adaptation: Any,
        adapting: Array,
        *,
        first: Array,
        transitions: Array,
        max_tree_depth: int,
        data: tuple[Array, ...] = (),
    ) -> ChainInputs:
        """The inputs of chains [chains, ...] that make `transitions` transitions (int64 [chains]) in this stretch."""
        none = np.zeros_like(first)
        return cls(
            key=key,
            position=position,
            log_density=log_density,
            gradient=gradient,
            inverse_mass=inverse_mass,
            adaptation=adaptation,
            adapting=adapting,
            first=first,
            done=none,
            divergences=none,
            first_row=none,
            until=transitions,
            max_tree_depth=np.full_like(first, max_tree_depth),
            data=data,
        )


class ChainResult(NamedTuple):
    """A chain after some transitions of a stretch.

    A chain that encounters a density of +inf ends there: `log_density` is +inf, `position` is where it was, and `done`
    counts the transitions before.
    """

    position: Array
    log_density: Array
    gradient: Array
    adaptation: Any
    records: Record
    """Arrays [capacity, ...]; rows 0 to `done` - first_row - 1 are those of the last transitions made."""
    done: Array
    divergences: Array


COUNTED = ("done", "divergences")
"""Fields of a ChainResult that count transitions of a stretch: what progress can show of it (execution/runner.py:
`Counts`)."""

CARRIED = ("position", "log_density", "gradient", "adaptation", *COUNTED)
"""Fields of a ChainResult that become the inputs of the same name when the chain continues."""


def counted(ends: ChainResult) -> dict[str, Array]:
    """Copies of what was counted so far, [chains], by name."""
    return {name: np.array(getattr(ends, name)) for name in COUNTED}


def make_chain(
    transition: BatchedFunction,
    step_sizes: StepSizeAdaptation,
    capacity: int,
    dimension: int,
    dtype: str,
    *,
    divergences: bool = False,
) -> BatchedFunction:
    """The program `run_chain`: transitions from a state, until `until` of a stretch are done, each recorded.

    transition: see `transition.py`. step_sizes: how the chain adapts its step size. dtype: of positions, and so of all
    that is computed from them. divergences: whether each transition's last position is recorded too,
    which takes as much memory as the draws.

    One chain takes a ChainInputs: key uint32[2]; position, gradient, inverse_mass [dimension]; log_density scalar;
    adaptation a state of `step_sizes`; adapting bool; data arrays; the others int64, with until - first_row <=
    capacity. Transition i uses the key folded with first + i, so a chain's numbers depend neither on how a run is
    divided into stretches, nor on where a stretch is interrupted and resumed. Returns a ChainResult, of fewer
    transitions where the density was +inf.

    A machine's owner may increase `first_row` and `until` while a chain runs: rows that it has taken out of the buffers
    then make room for more (`execution/chunk.py`).
    """
    empty = empty_records(capacity, dimension, dtype, divergences)
    keeps_ends = divergences

    @batch
    def run_chain(
        key: Array,
        position: Array,
        log_density: Array,
        gradient: Array,
        inverse_mass: Array,
        adaptation: Any,
        adapting: Array,
        first: Array,
        done: Array,
        divergences: Array,
        first_row: Array,
        until: Array,
        max_tree_depth: Array,
        data: tuple[Array, ...] = (),
    ) -> ChainResult:
        """Transitions one after another; chains of a batch are out of step with each other all the time."""
        records = empty
        while (done < until) & (log_density < float("inf")):
            step_size = ops.exp(adaptation.log_step)
            transition_key = random.fold_in(key, first + done)
            new = transition(
                transition_key, position, log_density, gradient, step_size, inverse_mass, max_tree_depth, data
            )
            adaptation = changed_if(adapting, step_sizes.after(adaptation, new.acceptance_rate), adaptation)
            position, log_density, gradient = new.position, new.log_density, new.gradient
            records = write(
                records,
                done - first_row,
                Record(
                    position=position,
                    lp=log_density,
                    energy=new.energy,
                    acceptance_rate=new.acceptance_rate,
                    step_size=step_size,
                    tree_depth=ops.cast(new.tree_depth, "int32"),
                    n_steps=ops.cast(new.n_steps, "int32"),
                    diverging=new.diverging,
                    energy_error=new.energy_error,
                    max_energy_error=new.max_energy_error,
                    index_in_trajectory=new.index_in_trajectory,
                    last_position=new.last_position if keeps_ends else (),
                ),
            )
            bounded = log_density < float("inf")  # else the row just written does not count
            done = done + ops.cast(bounded, "int64")
            divergences = divergences + ops.cast(new.diverging & bounded, "int64")
        return ChainResult(
            position=position,
            log_density=log_density,
            gradient=gradient,
            adaptation=adaptation,
            records=records,
            done=done,
            divergences=divergences,
        )

    return run_chain

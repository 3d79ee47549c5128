"""What the gates of expensive blocks do for NUTS: fewer runs of what costs much, for the same draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sampler_tasks import SCHOOLS, make_problem, make_task

from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime.block_costs import block_costs
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.autobatch.scheduling.schedule import Schedule
from batchnuts.autobatch.scheduling.sweep_search import EXPENSIVE
from batchnuts.experiments.samplers.ours import make_task_chain

CHAINS = 128


def test_lanes_that_wait_for_each_other_share_more_gradients() -> None:
    task = make_task("batchnuts", {}, problem=SCHOOLS, chains=CHAINS, transitions=12, step_size=0.5)
    chain = make_task_chain(task, make_problem(SCHOOLS))
    arguments = chain.arguments(0)
    backend = get_backend("jax", "xla")
    program = chain.program.compiled(chain.program.lane_types(arguments), backend).lowered
    costs = block_costs(program, backend)
    expensive = {label for label, cost in costs.items() if cost > EXPENSIVE * min(costs.values())}
    assert {"build_subtree.entry", "build_subtree.resume", "main.resume", "run_chain.body"} <= expensive

    gated = VirtualMachine(program, backend, CHAINS, 12, "auto", ends_early=True)
    assert gated.schedule.policy == "sweep"
    slots = [replace(slot, gate=0.0 if slot.label in expensive else slot.gate) for slot in gated.schedule.slots]
    ungated = VirtualMachine(program, backend, CHAINS, 12, Schedule([slots]))

    runs, active, draws = [], [], []
    for machine in (gated, ungated):
        state = machine.run(flatten(arguments)[0])
        machine.check_faults(state)
        for counts, name in ((runs, "executions"), (active, "active")):
            counts.append(dict(zip(machine.schedule.order, np.asarray(state[name]).tolist(), strict=True)))
        draws.append([np.asarray(array) for array in machine.results(state)])
    for one, other in zip(*draws, strict=True):
        np.testing.assert_array_equal(one, other)
    assert active[0] == active[1]
    for label in ("build_subtree.resume", "main.resume", "run_chain.body"):
        assert runs[0][label] < 0.75 * runs[1][label], label
    assert runs[0]["build_subtree.entry"] < 0.95 * runs[1]["build_subtree.entry"]

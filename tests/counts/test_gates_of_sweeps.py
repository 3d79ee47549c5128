"""What the gates of dear blocks do for NUTS: fewer runs of what costs much, for the same draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sampler_tasks import SCHOOLS, make_problem, make_task

from batchnuts.autobatch.api import get_backend
from batchnuts.autobatch.compiler.schedule import Schedule
from batchnuts.autobatch.compiler.sweeps import GATE
from batchnuts.autobatch.compiler.tree import flatten
from batchnuts.autobatch.runtime.block_costs import block_costs
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.experiments.samplers.ours import make_task_chain

CHAINS = 128


def test_lanes_that_wait_for_each_other_share_more_gradients() -> None:
    task = make_task("batchnuts", {}, problem=SCHOOLS, chains=CHAINS, transitions=30, step_size=0.5)
    chain = make_task_chain(task, make_problem(SCHOOLS))
    arguments = chain.arguments(0)
    backend = get_backend("tensorflow", "xla")
    program = chain.program.compiled(chain.program.lane_types(arguments), backend).lowered
    costs = block_costs(program, backend)
    dear = {label for label, cost in costs.items() if cost > 2 * min(costs.values())}

    gated = VirtualMachine(program, backend, CHAINS, 12, "auto")
    assert gated.schedule.policy == "sweep"
    assert {slot.label for slot in gated.schedule.slots if (slot.gate or 0) >= GATE} == dear
    assert {"build_subtree.entry", "build_subtree.resume", "run_chain.body"} <= dear
    slots = [replace(s, gate=0.0 if s.label in dear else s.gate) for s in gated.schedule.slots]
    ungated = VirtualMachine(program, backend, CHAINS, 12, Schedule([slots]))

    spent, shared, draws = [], [], []
    for machine in (gated, ungated):
        inputs = dict(zip(program.vars_in, flatten(arguments)[0], strict=True))
        state = machine.run(inputs)
        executions = dict(zip(machine.schedule.order, np.asarray(state["executions"]).tolist(), strict=True))
        active = dict(zip(machine.schedule.order, np.asarray(state["active"]).tolist(), strict=True))
        spent.append(sum(costs[label] * count for label, count in executions.items()))
        shared.append(active["build_subtree.entry"] / executions["build_subtree.entry"] / CHAINS)
        draws.append(np.asarray(machine.results(state)[0]))
    np.testing.assert_array_equal(*draws)
    assert shared[0] > 1.1 * shared[1]
    assert spent[0] < 0.8 * spent[1]

"""Where the time of our sampler goes, kernel by kernel, on one thread: by block of the program, and by what it does.

    python -m batchnuts.experiments.kernels --config benchmark.yaml --problem schools --chains 256

XLA makes some two hundred kernels of a machine. TensorFlow's profiler records when each began and ended; the compiled
program's text gives its block and operation. Recording a kernel takes as long as a small kernel runs. So the time of
the fastest kernel (one addition) is subtracted from every kernel: the rest is its work. The run is also timed without
the profiler; the part of that time that is not work is the fixed cost of kernels.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchnuts.autobatch import BatchnutsError, virtual_machine
from batchnuts.experiments.harness.summary import table
from batchnuts.experiments.samplers.config import ExperimentConfig, load_experiment
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.task import Task
from batchnuts.settings.yaml import ConfigError

KINDS = {
    "random": "random words",
    "stack": "pushes and pops",
    "record": "recording draws",
    "mask": "merging with what other lanes hold",
    "rule": "which block is due",
    "compute": "everything else: gradient, leapfrog, U-turns",
}
"""What kernels do, by the scope in their operation's name (`TensorFlowBackend`); random words by their rotations."""


@dataclass(frozen=True)
class Kernel:
    """An instruction of the compiled program."""

    block: str
    kind: str


@dataclass(frozen=True)
class Traced:
    """Time of kernels in a run under the profiler."""

    seconds: Mapping[str, float]
    """Seconds by instruction, without what ran inside of it."""
    calls: Mapping[str, int]


def kernels(hlo: str, blocks: Sequence[str]) -> dict[str, Kernel]:
    """The instructions of an optimized program's text, by name."""
    rotating, computation = set(), ""
    for line in hlo.splitlines():
        if line.rstrip().endswith("{") and not line.startswith(" "):
            computation = line.removeprefix("ENTRY ").split()[0]
        elif " shift-left(" in line:
            rotating.add(computation)
    result = {}
    for line in hlo.splitlines():
        match = re.match(r"\s+(?:ROOT )?%?([\w.-]+) = ", line)
        if match is None or re.search(r" (while|call|conditional)\(", line):  # kernels run inside of those
            continue
        path = re.search(r'op_name="([^"]*)"', line)
        called = re.search(r"calls=(%[\w.-]+)", line)
        parts = path.group(1).split("/") if path else []
        names = [re.sub(r"_\d+$", "", part) for part in parts]
        block = next((name for part in (parts, names) for name in part if name in blocks), "between blocks")
        kind = next((kind for kind in ("record", "stack", "rule", "mask") if kind in names), "compute")
        if (called and called.group(1) in rotating) or " shift-left(" in line:
            kind = "random"
        result[match.group(1)] = Kernel(block, kind)
    return result


def traced(folder: Path) -> Traced:
    """The trace that the profiler wrote into a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for file in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(file.read_bytes())
        for plane in space.planes:
            for line in plane.lines:
                events = [
                    (event.offset_ps, -event.duration_ps, plane.event_metadata[event.metadata_id].name)
                    for event in line.events
                ]
                stack: list[tuple[int, str]] = []
                for start, minus_length, name in sorted(events):
                    while stack and stack[-1][0] <= start:
                        stack.pop()
                    seconds[name] -= minus_length / 1e12
                    calls[name] += 1
                    if stack:
                        seconds[stack[-1][1]] += minus_length / 1e12
                    stack.append((start - minus_length, name))
    return Traced(seconds, calls)


def one_chunk(config: ExperimentConfig, problem: str, chains: int) -> Task:
    """The task of the config's first curve of our own sampler on TensorFlow, in one chunk."""
    ours = [name for name, curve in config.curves.items() if curve.sampler == "batchnuts"]
    if not ours:
        raise ConfigError("curves: found none with the sampler batchnuts; expected one.")
    name = next((name for name in ours if config.curves[name].options["backend"] == "tensorflow"), None)
    if name is None:
        backend = config.curves[ours[0]].options["backend"]
        raise ConfigError(
            f"curves.{ours[0]}.options.backend: found {backend!r}; expected 'tensorflow', whose profiler records the "
            "kernels. Set it, or run.backend, to tensorflow."
        )
    if problem not in config.problems:
        raise ConfigError(f"--problem {problem}: expected one of {', '.join(config.problems)}.")
    task = config.task(name, problem, chains)
    return replace(task, options={**task.options, "chunk_lanes": chains, "shards": 1})


def measure(task: Task) -> Iterator[str]:
    """Lines of Markdown about a run of the task."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)  # one kernel after another
    from batchnuts.experiments.samplers.ours import make_task_chain
    from batchnuts.mcmc.execution.chunk_runner import ChunkRunner, make_runner
    from batchnuts.models import REGISTRY

    problem = Problem(REGISTRY[task.problem["name"]].options.model_validate(task.problem))
    chain = make_task_chain(task, problem)
    runner = make_runner(chain.program, chain.arguments(0), chain.execution, task.max_tree_depth)
    assert isinstance(runner, ChunkRunner)

    def run(seed: int) -> tuple[float, Any, Any]:
        arguments = chain.arguments(seed)
        began = time.perf_counter()
        running = runner.run(arguments, task.transitions)
        *_, (counts, _) = running
        return time.perf_counter() - began, counts, running

    run(0)
    untraced, counts, running = min((run(1) for _ in range(3)), key=lambda pair: pair[0])
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        run(1)
        tf.profiler.experimental.stop()
        trace = traced(Path(folder))
    (chunk,) = running.chunks.values()
    machine, state = runner.machine.machine, chunk.state
    assert isinstance(machine, virtual_machine.VirtualMachine)
    compiled_kernels = kernels(machine.compiled_text(state), machine.schedule.order)
    yield from report(compiled_kernels, trace, untraced, machine.counts(state).sweeps, counts.useful_gradients)


def report(
    compiled_kernels: Mapping[str, Kernel], trace: Traced, untraced: float, sweeps: int, useful: int
) -> Iterator[str]:
    """Tables of microseconds per useful gradient."""
    calls_of = {name: calls for name, calls in trace.calls.items() if name in compiled_kernels}
    if not calls_of:
        raise BatchnutsError("the profiler saw no kernel of the compiled program: another version of TensorFlow?")
    by_block: dict[str, dict[str, float]] = {}
    quickest = min(trace.seconds[name] / calls for name, calls in calls_of.items() if calls >= sweeps / 10)
    for name, calls in calls_of.items():
        kernel = compiled_kernels[name]
        of_block = by_block.setdefault(kernel.block, dict.fromkeys(KINDS, 0.0))
        of_block[kernel.kind] += max(trace.seconds[name] - quickest * calls, 0.0) / useful * 1e6
    total = untraced / useful * 1e6
    yield (
        f"{useful:,} useful gradients in {untraced:.3f} s on one thread, {total:.3f} microseconds each; {sweeps:,} "
        f"sweeps, {sum(calls_of.values()) / sweeps:.0f} kernels in each."
    )
    kinds = {kind: sum(spent[kind] for spent in by_block.values()) for kind in KINDS}
    remainder = max(total - sum(kinds.values()), 0.0)
    rows = [
        (KINDS[kind], f"{spent:.3f}", f"{spent / total:.0%}")
        for kind, spent in sorted(kinds.items(), key=lambda k: -k[1])
    ]
    rows.append(("starting kernels, loops, memory", f"{remainder:.3f}", f"{remainder / total:.0%}"))
    yield table(("what", "microseconds per useful gradient", "share"), rows)
    blocks = sorted(by_block, key=lambda block: -sum(by_block[block].values()))
    yield table(
        ("block", *KINDS, "all"),
        [
            (block, *(f"{by_block[block][kind]:.3f}" for kind in KINDS), f"{sum(by_block[block].values()):.3f}")
            for block in blocks
        ],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m batchnuts.experiments.kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--config", required=True, help="the config of an experiment with our sampler")
    parser.add_argument("--problem", required=True, help="a name among its problems")
    parser.add_argument("--chains", type=int, required=True, help="chains of one chunk")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="set a key of the config")
    arguments = parser.parse_intermixed_args(argv)
    try:
        if arguments.chains < 1:
            raise ConfigError(f"--chains: found {arguments.chains}; expected at least 1.")
        task = one_chunk(load_experiment(arguments.config, arguments.overrides), arguments.problem, arguments.chains)
        for part in measure(task):
            print(part, end="\n\n", flush=True)
    except ConfigError as error:
        print(f"batchnuts: the config cannot be used.\n{error}", file=sys.stderr)
        return 2
    except BatchnutsError as error:
        print(f"batchnuts: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

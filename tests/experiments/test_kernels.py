"""Where the time goes: which block and kind a kernel's name gives, what is taken off, and the command itself."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from batchnuts.experiments.kernels import Kernel, Traced, kernels, main, one_chunk, report
from batchnuts.experiments.samplers.config import load_experiment
from batchnuts.settings.yaml import ConfigError

HLO = """HloModule m

%fused_computation.1 (p: u32[4]) -> u32[4] {
  %p = u32[4]{0} parameter(0)
  ROOT %s = u32[4]{0} shift-left(%p, %p), metadata={op_name="while/f.body/LeftShift"}
}

%fused_computation.2 (q: f32[4]) -> f32[4] {
  ROOT %q = f32[4]{0} parameter(0)
}

ENTRY %main (a: u32[4]) -> u32[4] {
  %words = u32[4]{0} fusion(%a), kind=kLoop, calls=%fused_computation.1, metadata={op_name="while/f.body/BitwiseXor"}
  %select_fusion.3 = f32[4]{0} fusion(%a), calls=%fused_computation.2, metadata={op_name="while/f.body_2/mask_7/Select"}
  %scatter.1 = f32[4]{0} scatter(%a), metadata={op_name="while/f.body/record_3/stack/TensorScatterUpdate"}
  %gather = f32[4]{0} gather(%a), metadata={op_name="while/f.entry/stack/GatherV2"}
  %count = s64[] reduce(%a), metadata={op_name="while/rule/Sum"}
  %while.7 = (f32[4]) while(%a), metadata={op_name="while/f.body"}
  ROOT %dot = f32[4]{0} dot(%a, %a), metadata={op_name="while/f.entry/MatMul"}
}
"""


def test_names_give_block_and_kind() -> None:
    found = kernels(HLO, ("f.entry", "f.body"))
    assert found["words"] == Kernel("f.body", "random")
    assert found["select_fusion.3"] == Kernel("f.body", "mask")
    assert found["scatter.1"] == Kernel("f.body", "record")
    assert found["gather"] == Kernel("f.entry", "stack")
    assert found["count"] == Kernel("between blocks", "rule")
    assert found["dot"] == Kernel("f.entry", "compute")
    assert "while.7" not in found


def test_what_the_quickest_kernel_takes_is_taken_off_all() -> None:
    known = {"a": Kernel("f.body", "compute"), "b": Kernel("f.body", "mask"), "c": Kernel("f.entry", "stack")}
    trace = Traced({"a": 5e-3, "b": 1e-3, "c": 2e-3, "other": 1.0}, {"a": 1000, "b": 1000, "c": 500, "other": 1})
    head, kinds, blocks = report(known, trace, untraced=10e-3, sweeps=500, useful=1000)
    assert head.startswith("1,000 useful gradients in 0.010 s on one thread, 10.000 microseconds each; 500 sweeps, 5 ")
    assert re.search(r"U-turns \| 4.000 \| 40%", kinds)
    assert re.search(r"pushes and pops \| 1.500 \| 15%", kinds)
    assert re.search(r"starting kernels.* \| 4.500 \| 45%", kinds)
    assert blocks.splitlines()[2].startswith("| f.body |")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--problem", "nobody", "--chains", "4"], "--problem nobody: expected one of gauss, funnel, schools, logreg"),
        (["--problem", "gauss", "--chains", "0"], "--chains: found 0; expected at least 1"),
    ],
)
def test_mistakes_are_reported(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "benchmark.yaml", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_config_without_our_sampler_on_tensorflow_is_refused() -> None:
    config = replace(load_experiment("scaling.yaml"), curves={})
    with pytest.raises(ConfigError, match="curves: found none with the sampler batchnuts"):
        one_chunk(config, "base", 4)
    config = load_experiment("scaling.yaml", ["run.backend=jax"])
    with pytest.raises(ConfigError, match=r"curves\.chains\.options\.backend: found 'jax'; expected 'tensorflow'"):
        one_chunk(config, "base", 4)
    assert one_chunk(load_experiment("benchmark.yaml"), "gauss", 4).options["backend"] == "tensorflow"


@pytest.mark.slow
def test_the_command_prints_two_tables() -> None:
    command = [
        sys.executable, "-m", "batchnuts.experiments.kernels", "--config", "benchmark.yaml", "--problem", "gauss",
        "--chains", "70", "problems.gauss.model.dimension=40", "run.transitions=5", "run.max_tree_depth=4",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for text in ("| pushes and pops |", "| starting kernels, loops, memory |", "| build_subtree.entry |"):
        assert text in done.stdout

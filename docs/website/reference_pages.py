"""Which public names stand on which reference page, in which order."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_args

import batchnuts
from batchnuts import densities
from batchnuts.autobatch import ops, random
from batchnuts.user_models.target import SupportName

from .reference import Page, listing, render, resolve

_SUPPORTS = (*get_args(SupportName), "bijector")

_ERRORS = (
    "BatchnutsError",
    "CompileError",
    "UnsupportedSyntaxError",
    "UndefinedVariableError",
    "TypeConflictError",
    "ProgramTextError",
    "MalformedProgramError",
    "LaneInputError",
    "OptionError",
    "LaneAssertionError",
    "AssertionWarning",
    "StackOverflowError",
    "SweepLimitError",
)


_PARTS = (
    "Program",
    "Function",
    "ControlFlowGraph",
    "Block",
    "VariableAllocation",
    "Primitive",
    "COPY",
    "PrimOp",
    "FunctionCallOp",
    "AssertOp",
    "WriteRowOp",
    "PushOp",
    "PopOp",
    "GotoOp",
    "BranchOp",
    "PushGotoOp",
    "IndirectGotoOp",
)


def _of(prefix: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names)


def _functions(module: object, prefix: str) -> tuple[str, ...]:
    """Public functions of a module with a docstring, in the order of the module."""
    public = (name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
    own = (n for n in public if not inspect.isclass(getattr(module, n)) and inspect.getdoc(getattr(module, n)))
    return tuple(f"{prefix}.{name}" for name in own if getattr(getattr(module, name), "__module__", "") != "typing")


PAGES = (
    Page(
        "reference/sampling.md",
        "Sampling",
        "From a model to draws, and what is known of them.",
        (
            ("", _of("batchnuts", "sample_chains", "check", "extend", "predict")),
            (
                "Many fits",
                _of("batchnuts", "sample_many", "sbc", "cross_validate", "reloo", "sensitivity"),
            ),
            ("In place of pm.sample", ("batchnuts.pymc.sample",)),
            ("Opening a run", _of("batchnuts", "open_run", "open_many", "to_stan_csv")),
            ("Compiled programs and threads", _of("batchnuts", "keep_programs", "use_own_threads")),
            ("Results", ("batchnuts.mcmc.diagnostics.verdict.Check", "batchnuts.mcmc.storage.progress.Progress")),
            (
                "Results of many fits",
                (
                    "batchnuts.many.result.ManyResult",
                    "batchnuts.many.calibration.Calibration",
                    "batchnuts.many.held_out.CrossValidation",
                    "batchnuts.many.sensitivity.Sensitivity",
                    "batchnuts.many.progress.ManyProgress",
                ),
            ),
            (
                "Errors",
                (
                    "batchnuts.BatchnutsError",
                    "batchnuts.mcmc.model.variables.ModelError",
                    "batchnuts.settings.schema.SettingsError",
                    "batchnuts.mcmc.diagnostics.diagnose.DiagnosticsError",
                    "batchnuts.files.sealed_file.CheckpointError",
                    "batchnuts.settings.yaml.ConfigError",
                ),
            ),
        ),
    ),
    Page(
        "reference/models.md",
        "Models and parameters",
        "What is sampled: a log-density of one chain, and where its variables lie.",
        (
            ("", ("batchnuts.Model", "batchnuts.mcmc.model.variables.Variable")),
            ("Supports", _of("batchnuts", *_SUPPORTS)),
            ("Data", _of("batchnuts.user_models.data", "read_columns", "Column", "Columns")),
        ),
        methods={
            "batchnuts.Model": (
                "from_function",
                "from_jax",
                "from_numpyro",
                "from_pymc",
                "from_joint_distribution",
                "from_inference_gym",
                "check",
                "constrain",
                "unconstrain",
                "initial_positions",
            ),
            "batchnuts.mcmc.model.variables.Variable": (),
        },
    ),
    Page(
        "reference/settings.md",
        "Settings",
        "Keyword arguments of `sample_chains`, and keys of a config's sections `sampler`, `execution` and `output`. "
        "`python -m batchnuts.sample --help` lists the same, with the keys of all packaged models.",
        (
            (
                "Sampler",
                (
                    *_of("batchnuts.mcmc.settings.run_settings", "SamplerSettings", "WarmupSettings"),
                    *_of("batchnuts.mcmc.settings.init_settings", "InitSettings"),
                    "batchnuts.mcmc.settings.until.Until",
                ),
            ),
            ("Execution", _of("batchnuts.mcmc.settings.run_settings", "ExecutionSettings", "ExpertSettings")),
            ("Output", ("batchnuts.cli.config.OutputSettings",)),
        ),
    ),
    Page(
        "reference/autobatch.md",
        "autobatch",
        "Functions of one lane, run for many.",
        (
            ("", _of("batchnuts", "autobatch") + _of("batchnuts.autobatch", "batch", "BatchedFunction")),
            ("Parts of the language", _of("batchnuts.autobatch", "primitive", "Shared", "sync", "write")),
            (
                "Inside other programs",
                (*_of("batchnuts.autobatch", "jax", "tensorflow"), "batchnuts.autobatch.inside.InsideFunction"),
            ),
            ("Profiles and schedules", _of("batchnuts.autobatch", "profile", "Profile", "Schedule", "Slot")),
            ("Errors", _of("batchnuts.autobatch", *_ERRORS)),
        ),
        methods={
            "batchnuts.autobatch.BatchedFunction": (
                "run",
                "function",
                "dump",
                "explain",
                "passes",
                "lowered",
                "machine",
                "schedule",
            )
        },
    ),
    Page(
        "reference/ops.md",
        "autobatch.ops",
        "",
        (("", ("batchnuts.autobatch.ops",)), ("Functions", _functions(ops, "batchnuts.autobatch.ops"))),
    ),
    Page(
        "reference/densities.md",
        "densities",
        "",
        (("", ("batchnuts.densities",)), ("Functions", _functions(densities, "batchnuts.densities"))),
    ),
    Page(
        "reference/random.md",
        "autobatch.random",
        "",
        (("", ("batchnuts.autobatch.random",)), ("Functions", _functions(random, "batchnuts.autobatch.random"))),
    ),
    Page(
        "reference/programs.md",
        "Programs",
        "The compiler's programs as data, and what runs them.",
        (
            (
                "Making them ready",
                _of("batchnuts.autobatch", "parse", "prepare", "PreparedProgram", "get_backend", "TensorType"),
            ),
            (
                "Looking at them",
                _of("batchnuts.autobatch", "show_program", "summarize", "Summary"),
            ),
            (
                "Passes and executors",
                _of("batchnuts.autobatch", "lower_function_calls", "allocate", "stackless", "virtual_machine"),
            ),
            ("Their parts", _of("batchnuts.autobatch", *_PARTS)),
        ),
        methods={f"batchnuts.autobatch.{name}": () for name in ("Summary", "TensorType", *_PARTS)},
    ),
)


LISTINGS = {"ops.md": "reference/ops.md", "densities.md": "reference/densities.md"}
"""Pages of docs/ that end with a table of all functions of a reference page."""


def listing_of(page: str) -> str:
    """The table of one of them."""
    (reference,) = [found for found in PAGES if found.path == LISTINGS[page]]
    (names,) = [names for title, names in reference.sections if title == "Functions"]
    return listing({name.rpartition(".")[2]: resolve(name)[0] for name in names})


PLACES = {name: f"{page.path}#{name}" for page in PAGES for name in page.names()}
"""Where each name is described, by its whole name."""


def rendered() -> Iterator[tuple[str, str]]:
    """Each page's name within the site and its Markdown."""
    anchors = {name.rpartition(".")[2]: place for name, place in PLACES.items() if ".ops." not in name}
    for page in PAGES:
        yield page.path, render(page, anchors)


def in_code() -> dict[str, str]:
    """Where a public name is described, by how pages write it: `batchnuts.check`, `autobatch.jax`."""
    within = "batchnuts.autobatch."
    return PLACES | {n.removeprefix("batchnuts."): place for n, place in PLACES.items() if n.startswith(within)}


def missing() -> list[str]:
    """Public names of `batchnuts` and `batchnuts.autobatch` that no page has, or that are there twice."""
    listed = [name for page in PAGES for name in page.names()]
    where = "docs/website/reference_pages.py"
    found = [f"{where}: {name} is there {listed.count(name)} times" for name in PLACES if listed.count(name) > 1]
    public = [f"batchnuts.{name}" for name in batchnuts.__all__ if name != "__version__"]
    public += [f"batchnuts.autobatch.{name}" for name in batchnuts.autobatch.__all__]
    return found + [f"{where}: the public name {name} is on no page" for name in public if name not in PLACES]

"""Make the pictures of README and docs, each from a real run: `python docs/make_pictures.py [logreg.nc]`.

Needs matplotlib (in the extra `dev`). Given a netCDF file of logreg.yaml, it draws that posterior too.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch, Rectangle

import batchnuts
from batchnuts import autobatch
from batchnuts.autobatch import ops, random
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.numpy import NumpyBackend
from batchnuts.autobatch.ir.program import TensorType
from batchnuts.mcmc.kernel.chain_program import make_chain
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation

IMAGES = Path(__file__).parent / "images"
RESULTS = Path(__file__).parent / "results"
WIDTH = 7.2
"""The width of every picture in inches: the text width of most journals."""

STYLE = {"font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left", "font.family": "DejaVu Sans"}


class RecordingBackend(NumpyBackend):
    """NumPy's backend that notes, for each block the machine executes, which block it was and on which lanes."""

    def __init__(self, *watched: str) -> None:
        super().__init__()
        self.watched = watched
        self.blocks: list[int] = []
        self.masks: list[np.ndarray] = []
        self.values: list[dict[str, np.ndarray]] = []

    def sweep(self, plan: Any, state: Any, budget: Any, leave_at: Any) -> Any:
        """As the parent's, with notes taken before each block."""

        def noted(step: Any) -> Any:
            def run(before: Any) -> Any:
                self.blocks.append(step.index)
                self.masks.append(np.asarray(before["pc"] == step.index))
                self.values.append({name: np.array(before[f"value:{name}"]) for name in self.watched})
                return step.run(before)

            return dataclasses.replace(step, run=run)

        return super().sweep(dataclasses.replace(plan, steps=tuple(map(noted, plan.steps))), state, budget, leave_at)


@autobatch.batch
def fibonacci(n):
    """The n-th Fibonacci number, the slow way."""
    if n <= 1:
        return 1
    return fibonacci(n - 2) + fibonacci(n - 1)


def draw_fibonacci(path: Path) -> None:
    """Block executions along x, lanes along y: which lanes each execution serves."""
    n = np.array([3, 7, 4, 5, 6, 2, 7, 1])
    backend = RecordingBackend()
    machine = fibonacci.machine((as_type("int64"),), len(n), backend, "earliest", 16)
    state = machine.run({"main.n": n})
    results = machine.results(state)[0]
    labels = [label for label in machine.schedule.order if label.startswith("fibonacci")]
    colour = {machine.index[label]: i + 1 for i, label in enumerate(labels)}
    columns = [(block, mask) for block, mask in zip(backend.blocks, backend.masks) if block in colour]
    image = np.zeros((len(n), len(columns)))
    for x, (block, mask) in enumerate(columns):
        image[mask, x] = colour[block]
    served = sum(int(mask.sum()) for _, mask in columns) / image.size
    colours = ["#f0f0f0", "#4477aa", "#ccbb44", "#228833", "#66ccee", "#ee6677"]
    figure, axes = plt.subplots(figsize=(WIDTH, 2.5), layout="constrained")
    axes.imshow(image, aspect="auto", interpolation="nearest", cmap=ListedColormap(colours), vmin=0, vmax=5)
    axes.set_yticks(range(len(n)), [f"n = {k}" for k in n])
    axes.set_xlabel("block execution")
    axes.set_ylabel("lane")
    axes.set_yticks(np.arange(len(n) + 1) - 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.set_title(
        f"fibonacci on {len(n)} lanes: {len(columns)} block executions, {100 * served:.0f} % of lanes active"
    )
    handles = [Patch(color=c, label=label) for c, label in zip(colours, ["lane waits or has halted", *labels])]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=200)
    plt.close(figure)
    print(f"{path.name}: results {results.tolist()}, {len(columns)} executions, {served:.2f} of lanes active")


def draw_shared_gradients(path: Path, chains: int = 24, transitions: int = 12) -> None:
    """Gradient evaluations along x, chains along y; colours are transitions, the second panel is lockstep."""
    dimension = 20
    scales = np.geomspace(0.1, 1.0, dimension).astype("float32")

    @autobatch.primitive(batched=True, costly=True)
    def value_and_gradient(position, data=()):
        scaled = position / scales
        return -0.5 * ops.sum(scaled * scaled, axis=-1), -scaled / scales

    adapting = DualAveragingAdaptation(0.8)
    program = make_chain(make_nuts(value_and_gradient, NutsOptions()), adapting, transitions, dimension, "float32")
    scalar, vector = TensorType("float32"), TensorType("float32", (dimension,))
    rng = np.random.default_rng(3)
    position = (rng.standard_normal((chains, dimension)) * scales).astype("float32")
    log_density, gradient = value_and_gradient.function(position)
    adaptation = adapting.start(np.full(chains, np.log(0.12), "float32"))
    inputs = (
        random.lane_keys(1, chains), position, log_density, gradient, np.ones((chains, dimension), "float32"),
        *adaptation, np.zeros(chains, bool), *np.zeros((4, chains), "int64"), np.full(chains, transitions),
        np.full(chains, 10),
    )  # fmt: skip
    types = (TensorType("uint32", (2,)), vector, scalar, vector, vector, type(adaptation)(*[scalar] * len(adaptation)))
    types += (TensorType("bool"), *[TensorType("int64")] * 6, ())
    renamed = program.compiled(types, RecordingBackend()).lowered.renamed
    done = renamed.get("run_chain.done", "run_chain.done")
    backend = RecordingBackend(done)
    machine = program.machine(types, chains, backend, "drain", 16)
    state = machine.run(inputs)
    machine.check_faults(state)
    here = machine.index["build_subtree.entry"]
    columns = [i for i, block in enumerate(backend.blocks) if block == here]
    shared = np.full((chains, len(columns)), -1)
    for x, i in enumerate(columns):
        mask = backend.masks[i]
        shared[mask, x] = backend.values[i][done][mask]
    steps = machine.read(state, "run_chain.records.n_steps")
    together = np.full((chains, int(steps.max(axis=0).sum())), -1)
    first = 0
    for t in range(transitions):
        for chain in range(chains):
            together[chain, first : first + steps[chain, t]] = t
        first += int(steps[:, t].max())
    assert (shared >= 0).sum() == (together >= 0).sum() == steps.sum()
    colours = [plt.get_cmap("viridis")(t / (transitions - 1)) for t in range(transitions)]
    norm = BoundaryNorm(np.arange(-1.5, transitions), transitions + 1)
    cmap = ListedColormap([(0.94, 0.94, 0.94, 1.0), *colours])
    figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 4.2), sharex=True, sharey=True, layout="constrained")
    titles = ("batchnuts: chains out of step with each other", "the same trees, if chains met after every transition")
    for axes, image, title in zip(panels, (shared, together), titles):
        useful = (image >= 0).mean()
        drawn = axes.imshow(
            image, aspect="auto", interpolation="nearest", cmap=cmap, norm=norm,
            extent=(0, image.shape[1], chains - 0.5, -0.5),
        )  # fmt: skip
        axes.set_title(f"{title}: {image.shape[1]} gradient evaluations, utilization {useful:.2f}")
        axes.set_ylabel("chain")
        axes.set_yticks([0, 5, 10, 15, 20])
    panels[0].text(shared.shape[1] + 8, chains / 2, "all chains have their draws", va="center", color="0.35")
    panels[1].set_xlim(0, together.shape[1])
    panels[1].set_xlabel(f"evaluation of the gradient for all {chains} chains")
    bar = figure.colorbar(drawn, ax=panels, ticks=[-1, 0, 3, 6, 9, 11], aspect=30, pad=0.01)
    bar.ax.set_yticklabels(["idle", "1", "4", "7", "10", "12"])
    bar.set_label("transition of the chain")
    figure.savefig(path, dpi=200)
    plt.close(figure)
    shares = [(shared >= 0).mean(), (together >= 0).mean()]
    print(f"{path.name}: {shared.shape[1]} against {together.shape[1]} evaluations, utilization {shares}")


def draw_posterior(source: Path, path: Path) -> None:
    """Posterior means with 90 % intervals of all coefficients, in order, with the truth of the synthetic data."""
    import h5py

    from batchnuts.models.logistic_regression import synthetic

    with h5py.File(source) as file:
        beta = np.array(file["posterior/beta"])
        x = np.array(file["constant_data/x"])
    rows, columns = x.shape
    truth = np.random.default_rng(0)
    truth.standard_normal((rows, columns))
    truth = truth.standard_normal(columns) / 10
    assert np.allclose(x, synthetic(rows, columns, 0)[0], atol=1e-5), "the file's data are not those of data_seed 0"
    flat = beta.reshape(-1, columns)
    mean, (low, high) = flat.mean(axis=0), np.quantile(flat, [0.05, 0.95], axis=0)
    order = np.argsort(mean)
    inside = ((truth >= low) & (truth <= high)).sum()
    place = np.arange(columns)
    figure, axes = plt.subplots(figsize=(WIDTH, 2.6), layout="constrained")
    axes.axhline(0, color="0.8", linewidth=0.8)
    axes.vlines(place, low[order], high[order], color="#4477aa", linewidth=1.6, label="90 % interval")
    axes.plot(place, mean[order], ".", color="#4477aa", markersize=4, label="posterior mean")
    axes.plot(place, truth[order], "x", color="#ee6677", markersize=3.5, label="value the data were made with")
    axes.set_xlabel("coefficient, by posterior mean")
    axes.set_ylabel(r"$\beta$ (log-odds per unit of $x$)")
    axes.set_xlim(-1, columns)
    axes.set_title(
        f"Logistic regression, {beta.shape[0]} chains x {beta.shape[1]} draws: "
        f"{inside} of {columns} intervals cover the truth"
    )
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    figure.savefig(path, dpi=200)
    plt.close(figure)
    print(f"{path.name}: {inside} of {columns} intervals cover the truth")


def draw_calibration(path: Path, fits: int = 500) -> None:
    """Ranks of true values in fits of eight schools, by the model that data are simulated from and by another."""
    sigma = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def eight_schools(scale: float) -> batchnuts.Model:
        def log_density(p: Any, data: Any) -> Any:
            prior = -0.5 * (p["mu"] / 5) ** 2 - 0.5 * (p["tau"] / scale) ** 2 - 0.5 * ops.sum(p["eta"] ** 2)
            return prior - 0.5 * ops.sum(((data["y"] - p["mu"] - p["tau"] * p["eta"]) / sigma) ** 2)

        variables = {"mu": [], "tau": batchnuts.positive(), "eta": [8]}
        return batchnuts.Model.from_function(
            log_density, variables=variables, data={"y": np.zeros(8)}, observed_data=["y"], dtype="float64"
        )

    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], Any]:
        mu, tau, eta = rng.normal(0, 5), abs(rng.normal(0, 5)), rng.normal(size=8)
        return {"mu": mu, "tau": tau, "eta": eta}, {"y": rng.normal(mu + tau * eta, sigma)}

    names = {"mu": r"$\mu$", "tau": r"$\tau$", "log_density": "log-density"}
    scales = {5.0: r"as simulated: $\tau$ of scale 5", 2.0: r"another prior: $\tau$ of scale 2"}
    figure, panels = plt.subplots(2, 3, figsize=(WIDTH, 3.6), sharex=True, sharey=True, layout="constrained")
    for row, (scale, title) in zip(panels, scales.items(), strict=True):
        calibration = batchnuts.sbc(eight_schools(scale), simulate, fits=fits)
        print(f"{path.name}: {title}: {calibration}")
        band = calibration.uniformity.band()
        for axes, (name, label) in zip(row, names.items(), strict=True):
            ranks = calibration.ranks[name].values
            axes.fill_between(band.points, band.low, band.high, color="0.85", step="mid")
            axes.plot(band.points, calibration.uniformity.differences(ranks), color="#4477aa", linewidth=1.2)
            axes.set_title(f"{label}, p = {calibration.table.loc[name, 'p']:.2g}")
        row[0].set_ylabel(title, fontsize=8)
    figure.supxlabel("share of ranks", fontsize=9)
    figure.suptitle(
        f"Ranks of true values, {fits} fits each: distribution function less that of uniform ranks", fontsize=9
    )
    figure.savefig(path, dpi=200)
    plt.close(figure)


def draw_ensemble_start(source: Path, path: Path, chains: int = 256) -> None:
    """Gradients before the first draw, by posterior and start, of the measurements that ensemble_start.py wrote."""
    with source.open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["chains"]) == chains]
    of: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        of.setdefault(row["problem"], {}).setdefault(row["start"], []).append(float(row["gradients"]))
    medians = {name: {start: median(values) for start, values in starts.items()} for name, starts in of.items()}
    order = sorted(medians, key=lambda name: medians[name]["windows"])
    place = np.arange(len(order))
    windows, ensemble = (np.array([medians[name][start] for name in order]) for start in ("windows", "ensemble"))
    figure, axes = plt.subplots(figsize=(WIDTH, 3.8), layout="constrained")
    axes.hlines(place, ensemble, windows, color="0.8", linewidth=1.6)
    axes.plot(windows, place, "o", color="#ee6677", markersize=4.5, label="windows of NUTS alone")
    axes.plot(ensemble, place, "o", color="#4477aa", markersize=4.5, label="ensemble, then windows")
    for y, (before, after) in enumerate(zip(windows, ensemble, strict=True)):
        axes.annotate(f"{after / before:.2f}", (before, y), (6, -3), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_xlim(right=1.7 * windows.max())
    axes.set_yticks(place, order, fontsize=8)
    axes.set_xlabel("gradients of each chain before the first draw")
    middle = median((ensemble / windows).tolist())
    axes.set_title(f"{chains} chains; the median ratio of {len(order)} posteriors is {middle:.2f}")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(path, dpi=200)
    plt.close(figure)
    print(f"{path.name}: median ratio {middle:.2f} of {len(order)}")


COMPILER = (
    ("a function\nof one lane", "autobatch/frontend"),
    ("program of\ncalls and branches", "autobatch/passes"),
    ("blocks with a stack\nfor each variable", "autobatch/engines"),
)
ENGINES = (
    ("machine code: each lane at its own pace", "autobatch/native"),
    ("virtual machine under XLA: JAX, TensorFlow", "autobatch/runtime"),
    ("NumPy; the reference interpreter", "autobatch/runtime, ir"),
)
RUN = (
    ("YAML or\nPython", "cli, api"),
    ("density and\nvariables", "bridges, mcmc/model"),
    ("starts", "mcmc/starts"),
    ("ensemble,\nthen windows", "mcmc/warmup"),
    ("draws, until\nenough", "mcmc/execution,\nmcmc/stopping"),
    ("verdict", "mcmc/diagnostics"),
    ("netCDF, Zarr,\nCSV", "mcmc/output, files"),
)


def draw_architecture(path: Path) -> None:
    """The way of a function through the compiler, and of a model through a run, with the folders on the way."""
    figure, axes = plt.subplots(figsize=(WIDTH, 3.7), layout="constrained")
    axes.set(xlim=(0, 100), ylim=(0, 52))
    axes.axis("off")
    compiler, run = "#dbe7f3", "#f6e3d5"

    def box(x: float, y: float, width: float, text: str, folder: str, colour: str, height: float = 8.5) -> None:
        axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="0.35", linewidth=0.8))
        axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=7.5)
        axes.text(x + width / 2, y - 0.8, folder, ha="center", va="top", fontsize=6, color="0.35", family="monospace")

    def arrow(start: tuple[float, float], end: tuple[float, float]) -> None:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "0.35", "linewidth": 0.9})

    axes.text(0, 50, "autobatch: any recursive function", fontsize=9, va="center")
    for i, (text, folder) in enumerate(COMPILER):
        box(20.5 * i, 34, 16.5, text, folder, compiler)
        if i:
            arrow((20.5 * i - 4, 38.2), (20.5 * i, 38.2))
    for i, (text, folder) in enumerate(ENGINES):
        y = 43.2 - 8.8 * i
        box(62, y, 38, text, folder, compiler, 4.4)
        arrow((57.5, 38.2), (62, y + 2.2))
    axes.text(0, 19.5, "mcmc: a run of many chains", fontsize=9, va="center")
    step = 100 / len(RUN)
    for i, (text, folder) in enumerate(RUN):
        box(step * i, 7, step - 2.6, text, folder, run)
        if i:
            arrow((step * i - 2.6, 11.2), (step * i, 11.2))
    axes.annotate(
        "one chain, NUTS and all, is such a function (mcmc/kernel)",
        (step * 4 + 6, 15.5), (66, 21.5), fontsize=7.5, ha="center", color="0.25",
        arrowprops={"arrowstyle": "->", "color": "0.35", "linewidth": 0.9},
    )  # fmt: skip
    figure.savefig(path, dpi=200)
    plt.close(figure)


def main() -> None:
    """Write all pictures into docs/images."""
    IMAGES.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        draw_architecture(IMAGES / "architecture.png")
        draw_fibonacci(IMAGES / "fibonacci.png")
        draw_shared_gradients(IMAGES / "shared_gradients.png")
        draw_calibration(IMAGES / "calibration.png")
        draw_ensemble_start(RESULTS / "ensemble_start.csv", IMAGES / "ensemble_start.png")
        if len(sys.argv) > 1:
            draw_posterior(Path(sys.argv[1]), IMAGES / "logreg.png")


if __name__ == "__main__":
    main()

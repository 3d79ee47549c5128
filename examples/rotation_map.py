"""A disc of gas around a young star: an expensive density and few chains, measured beside NumPyro.

The shape of issue 34 of PlanetFormationLab/eddy, where four chains of NumPyro's NUTS took as long vectorized as one
after another: nine parameters of a map of velocities, a surface found by iteration, some hundred leapfrogs to a
transition. The map is synthetic, with the orientation and size of HD 163296. Needs the extras numpyro and plot.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

METHODS = {
    "NumPyro, sequential": ("numpyro", "sequential", 4),
    "NumPyro, parallel": ("numpyro", "parallel", 4),
    "NumPyro, vectorized": ("numpyro", "vectorized", 4),
    "batchnuts": ("batchnuts", "", 4),
    "batchnuts, 32 chains": ("batchnuts", "", 32),
}
WARMUP, DRAWS, DEPTH = 30, 30, 8
"""Too few for a posterior: transitions are timed, as in the issue, which has 50 of each."""
INCLINATION, DISTANCE, NOISE, SIDE = 0.815, 101.0, 0.05, 24
"""Radians, parsec, km/s, pixels of a side."""
TRUE = {"x0": 0.0, "y0": 0.0, "angle": 0.75, "mass": 2.0, "vlsr": 5.76, "z0": 0.25, "psi": 1.25, "taper": 2.4, "q": 2.0}
"""Arcseconds, radians, solar masses, km/s; the height of the surface is z0 r^psi exp(-(r / taper)^q)."""
LIMITS = {
    "x0": (-0.2, 0.2), "y0": (-0.2, 0.2), "angle": (0.4, 1.1), "mass": (1.0, 3.0), "vlsr": (5.0, 6.5),
    "z0": (0.0, 0.6), "psi": (0.5, 2.5), "taper": (1.0, 5.0), "q": (0.5, 5.0),
}  # fmt: skip


def velocities(p, sky_x, sky_y):
    """The velocity of each pixel in km/s. The disc's surface is raised; some iterations find where it is seen."""
    import jax.numpy as jnp

    x, y = sky_x - p["x0"], sky_y - p["y0"]
    along = x * jnp.cos(p["angle"]) + y * jnp.sin(p["angle"])
    across = (y * jnp.cos(p["angle"]) - x * jnp.sin(p["angle"])) / jnp.cos(INCLINATION)
    height, place = 0.0, across
    for _ in range(6):
        radius = jnp.sqrt(along**2 + place**2 + 1e-4)
        height = p["z0"] * radius ** p["psi"] * jnp.exp(-((radius / p["taper"]) ** p["q"]))
        place = across + height * jnp.tan(INCLINATION)
    radius = jnp.sqrt(along**2 + place**2 + 1e-4)
    speed = 29.78 * jnp.sqrt(p["mass"] / DISTANCE) * radius / (radius**2 + height**2) ** 0.75
    return p["vlsr"] + speed * jnp.sin(INCLINATION) * along / radius


def make_map():
    """Pixels within 3 arcseconds, and their velocities with noise."""
    import numpy as np

    x, y = (grid.ravel() for grid in np.meshgrid(*[np.linspace(-3, 3, SIDE)] * 2))
    within = (np.hypot(x, y) < 3) & (np.hypot(x, y) > 0.3)
    x, y = x[within].astype("float32"), y[within].astype("float32")
    noise = NOISE * np.random.default_rng(1).normal(size=len(x))
    return x, y, np.asarray(velocities(TRUE, x, y) + noise, dtype="float32")


def disc(x, y, observed=None):
    """The model, in NumPyro; both samplers run it."""
    import numpyro
    import numpyro.distributions as dist

    p = {name: numpyro.sample(name, dist.Uniform(*limits)) for name, limits in LIMITS.items()}
    # A factor, so that no log-likelihood of each pixel and draw is kept.
    numpyro.factor("map", dist.Normal(velocities(p, x, y), NOISE).log_prob(observed).sum())


def near_truth():
    """Where chains begin: eddy begins at an optimum too."""
    from numpyro.infer import init_to_value

    return init_to_value(values=TRUE)


class Compiling:
    """How long JAX traces and compiles, in seconds, whatever runs within or beside each other.

    NumPyro compiles for each call, and for each chain that it runs alone; to sample once more would not leave that out.
    """

    def __init__(self):
        from jax import monitoring

        self.spans = []
        monitoring.register_event_duration_secs_listener(self.note)

    def note(self, event, duration, **_):
        """A duration that JAX reports when it has ended."""
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            self.spans.append((now - duration, now))

    def seconds(self):
        """Those of the spans so far, together."""
        total, until = 0.0, 0.0
        for began, ended in sorted(self.spans):
            total += max(ended - max(began, until), 0.0)
            until = max(ended, until)
        return total


def run_batchnuts(chains):
    """Sample; times, gradients of all chains with those of warmup, draws by name."""
    import batchnuts

    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    x, y, observed = make_map()
    model = batchnuts.Model.from_numpyro(disc, x, y, observed=observed, init_strategy=near_truth())
    settings = {"chains": chains, "warmup": WARMUP, "draws": DRAWS, "max_tree_depth": DEPTH, "seed": 1, "cache": None}
    result = batchnuts.sample_chains(model, **settings)
    draws = {name: result["posterior"][name].values for name in LIMITS}
    facts = result["sample_stats"].attrs
    times = {"seconds": facts["warmup_time"] + facts["sampling_time"], "compiling": facts["compile_time"]}
    return times, int(facts["useful_gradients"]), draws


def run_numpyro(method, chains):
    """The same."""
    import jax
    import numpyro
    from numpyro.infer import MCMC, NUTS

    # Else a chain would run while the next one is compiled.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if method == "parallel":
        numpyro.set_host_device_count(chains)
    x, y, observed = make_map()
    kernel = NUTS(disc, max_tree_depth=DEPTH, init_strategy=near_truth())
    settings = {"num_warmup": WARMUP, "num_samples": DRAWS, "num_chains": chains, "chain_method": method}
    sampler = MCMC(kernel, **settings, progress_bar=False)
    data = {"observed": observed, "extra_fields": ("num_steps",)}
    compiling, began = Compiling(), time.perf_counter()
    sampler.warmup(jax.random.PRNGKey(1), x, y, **data, collect_warmup=True)
    gradients = int(sampler.get_extra_fields()["num_steps"].sum())
    sampler.run(jax.random.PRNGKey(2), x, y, **data)
    gradients += int(sampler.get_extra_fields()["num_steps"].sum())
    draws = {name: jax.device_get(values) for name, values in sampler.get_samples(group_by_chain=True).items()}
    seconds = time.perf_counter() - began - compiling.seconds()
    return {"seconds": seconds, "compiling": compiling.seconds()}, gradients, draws


def measure(name):
    """Run one method in this process, and print its numbers as JSON."""
    library, method, chains = METHODS[name]
    found = run_batchnuts(chains) if library == "batchnuts" else run_numpyro(method, chains)
    times, gradients, draws = found
    numbers = {
        **times,
        "gradients": gradients,
        "mass": [float(draws["mass"].mean()), float(draws["mass"].std())],
        "z0": [float(draws["z0"].mean()), float(draws["z0"].std())],
    }
    print(json.dumps(numbers))


def draw(path, found):
    """The map with its model, and gradients a second of each method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y, observed = make_map()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained", width_ratios=(1, 1.5))
    dots = left.scatter(x, y, c=observed, s=14, marker="s", cmap="coolwarm", linewidth=0)
    left.set_aspect("equal")
    left.set_xlabel("arcseconds")
    figure.colorbar(dots, ax=left, label="velocity (km/s)")
    rates = [numbers["gradients"] / numbers["seconds"] for numbers in found.values()]
    colours = ["#4477aa" if "NumPyro" in name else "#ee6677" for name in found]
    right.barh(range(len(rates)), rates, color=colours)
    right.set_yticks(range(len(rates)), list(found), fontsize=8)
    right.invert_yaxis()
    right.set_xlabel("gradients a second, of all chains together")
    figure.savefig(path, dpi=120)


def main(picture):
    """Measure all methods, each in a process of its own."""
    found = {}
    for name in METHODS:
        command = [sys.executable, __file__, "--only", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        found[name] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{len(make_map()[0])} pixels, {len(LIMITS)} parameters, {WARMUP} + {DRAWS} transitions; true mass 2, z0 0.25"
    )
    print("method                      mass            z0")
    for name, numbers in found.items():
        values = "   ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in (numbers["mass"], numbers["z0"]))
        print(f"{name:22} {values}")
    for name, numbers in found.items():
        rate = numbers["gradients"] / numbers["seconds"]
        print(
            f"time: {name:21} {numbers['seconds']:5.1f} s, {numbers['gradients']:5} gradients, {rate:5.0f}/s, "
            f"compiling {numbers['compiling']:.0f} s"
        )
    if picture:
        draw(picture, found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    parser.add_argument("--only", choices=METHODS, help="run one method, and print its numbers as JSON")
    arguments = parser.parse_args()
    if arguments.only:
        measure(arguments.only)
    else:
        main(arguments.picture)

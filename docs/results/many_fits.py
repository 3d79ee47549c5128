"""Many fits beside loops of other samplers: seconds of a fit, on this machine, programs compiled beforehand.

    python docs/results/many_fits.py [--fits 1000] [--loop 20] [schools] [refits] [series]

schools: simulation-based calibration of eight schools, beside a loop of NumPyro runs in one process with its programs
kept. refits: leave-one-out refits of a regression of 1,000 rows, beside a loop of nutpie. series: local-level models of
50 points, beside NumPyro under vmap, in chunks.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import numpy as np

import batchnuts
from batchnuts import Model, positive
from batchnuts.autobatch import ops

SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def show(name: str, ours: float, theirs: float, peer: str) -> None:
    """Print a comparison of seconds of a fit."""
    print(f"{name}: {1e3 * ours:.1f} ms a fit; {peer} {1e3 * theirs:.1f} ms, {theirs / ours:.1f} times", flush=True)


def schools(fits: int, loop: int) -> None:
    """1,000 fits, 4 chains to 400 effective draws each."""

    def log_density(p: Any, data: Any) -> Any:
        prior = -0.5 * (p["mu"] / 5) ** 2 - 0.5 * (p["tau"] / 5) ** 2 - 0.5 * ops.sum(p["eta"] ** 2)
        return prior - 0.5 * ops.sum(((data["y"] - p["mu"] - p["tau"] * p["eta"]) / SIGMA) ** 2)

    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], Any]:
        mu, tau, eta = rng.normal(0, 5), abs(rng.normal(0, 5)), rng.normal(size=8)
        return {"mu": mu, "tau": tau, "eta": eta}, {"y": rng.normal(mu + tau * eta, SIGMA)}

    variables = {"mu": [], "tau": positive(), "eta": [8]}
    model = Model.from_function(log_density, variables=variables, data={"y": np.zeros(8)}, observed_data=["y"])
    batchnuts.sbc(model, simulate, fits=20)  # processes start, and programs are cached
    began = time.perf_counter()
    calibration = batchnuts.sbc(model, simulate, fits=fits)
    ours = (time.perf_counter() - began) / fits
    print(calibration)

    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def of_numpyro(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfNormal(5))
        with numpyro.plate("school", 8):
            eta = numpyro.sample("eta", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu + tau * eta, SIGMA), obs=y)

    @jax.jit  # else each run compiles its search for starts again, which takes seconds
    def run(key: Any, y: Any) -> Any:
        mcmc = MCMC(
            NUTS(of_numpyro),
            num_warmup=500,
            num_samples=250,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(key, y)
        return mcmc.get_samples()

    seconds = []
    for number in range(loop + 1):
        _, data = simulate(np.random.default_rng(number))
        began = time.perf_counter()
        jax.block_until_ready(run(jax.random.PRNGKey(number), data["y"].astype("float32")))
        seconds.append(time.perf_counter() - began)
    show("eight schools", ours, float(np.median(seconds[1:])), "a loop of NumPyro")


def refits(fits: int, loop: int) -> None:
    """Refits without one row each, of a regression of 1,000 rows and 10 columns."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(1000), rng.normal(size=(1000, 9))])
    y = x @ rng.normal(size=10) + rng.standard_t(4, size=1000)

    def log_density(p: Any, data: Any) -> Any:
        residual = (data["y"] - ops.matmul(data["x"], p["beta"])) / p["sigma"]
        prior = -0.5 * ops.sum((p["beta"] / 10) ** 2) - 0.5 * (p["sigma"] / 10) ** 2
        return prior - 0.5 * ops.sum(residual**2) - 999 * ops.log(p["sigma"])

    variables = {"beta": [10], "sigma": positive()}
    model = Model.from_function(
        log_density, variables=variables, data={"x": x[1:], "y": y[1:]}, observed_data=["y"], dtype="float64"
    )
    rows = [np.arange(1000) != number for number in range(min(fits, 254))]
    data = [{"x": x[kept], "y": y[kept]} for kept in rows]
    options: dict[str, Any] = {"draws": 1000, "until": {"ess_bulk": 400}, "keep": ["mean"]}
    with tempfile.TemporaryDirectory() as folder:
        of_all = f"{folder}/of_all.nc"
        batchnuts.sample_chains(model, chains=64, draws=100).to_netcdf(of_all)
        ours = {}
        for name, warmup in (("refits", {}), ("refits that begin with a fit's tuning", {"warmup": {"from": of_all}})):
            batchnuts.sample_many(model, data[:4], **options, **warmup)
            began = time.perf_counter()
            results = batchnuts.sample_many(model, data, **options, **warmup)
            ours[name] = (time.perf_counter() - began) / len(data)
            print(results)

    import nutpie
    import pymc

    with pymc.Model() as of_pymc:
        x_data, y_data = pymc.Data("x", x[1:]), pymc.Data("y", y[1:])
        beta = pymc.Normal("beta", 0, 10, shape=10)
        sigma = pymc.HalfNormal("sigma", 10)
        pymc.Normal("obs", x_data @ beta, sigma, observed=y_data)
    compiled = nutpie.compile_pymc_model(of_pymc)
    seconds = []
    for number in range(loop + 1):
        kept = rows[number % len(rows)]
        began = time.perf_counter()
        nutpie.sample(
            compiled.with_data(x=x[kept], y=y[kept]), draws=250, tune=400, chains=4, cores=2, progress_bar=False
        )
        seconds.append(time.perf_counter() - began)
    for name, own in ours.items():
        show(name, own, float(np.median(seconds[1:])), "a loop of nutpie")


def series(fits: int, loop: int) -> None:
    """Local-level models of 50 points: a random walk with noise, its innovations standard normal."""
    rng = np.random.default_rng(1)
    walks = np.cumsum(0.3 * rng.normal(size=(fits, 50)), axis=1) + rng.normal(size=(fits, 50))

    def log_density(p: Any, data: Any) -> Any:
        level = p["level"] + p["step"] * ops.cumsum(p["z"], 0)
        residual = (data["y"] - level) / p["noise"]
        scales = -0.5 * p["step"] ** 2 - 0.5 * p["noise"] ** 2 - 0.5 * (p["level"] / 5) ** 2
        return scales - 0.5 * ops.sum(p["z"] ** 2) - 0.5 * ops.sum(residual**2) - 50 * ops.log(p["noise"])

    variables = {"level": [], "step": positive(), "noise": positive(), "z": [50]}
    model = Model.from_function(
        log_density, variables=variables, data={"y": walks[0]}, observed_data=["y"], dtype="float64"
    )
    options: dict[str, Any] = {"draws": 1000, "until": {"ess_bulk": 200}, "keep": ["mean", "sd"]}
    batchnuts.sample_many(model, {"y": walks[:4]}, **options)
    began = time.perf_counter()
    results = batchnuts.sample_many(model, {"y": walks}, **options)
    ours = (time.perf_counter() - began) / fits
    print(results)

    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    def of_numpyro(y: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 5))
        step = numpyro.sample("step", dist.HalfNormal(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([50]))
        numpyro.sample("y", dist.Normal(level + step * jnp.cumsum(z), noise), obs=y)

    def one(key: Any, y: Any) -> Any:
        mcmc = MCMC(NUTS(of_numpyro), num_warmup=400, num_samples=400, progress_bar=False)
        mcmc.run(key, y)
        return mcmc.get_samples()

    width = 64
    chunk = jax.jit(jax.vmap(one))
    seconds = []
    for number in range(max(2, loop // 10)):
        y = walks[np.arange(number * width, (number + 1) * width) % fits].astype("float32")
        keys = jax.random.split(jax.random.PRNGKey(number), width)
        began = time.perf_counter()
        jax.block_until_ready(chunk(keys, y))
        seconds.append((time.perf_counter() - began) / width)
    show("local level (one chain of NumPyro's each)", ours, float(np.median(seconds[1:])), "NumPyro under vmap")


PARTS = {"schools": schools, "refits": refits, "series": series}


def main() -> None:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--loop", type=int, default=20, help="fits of the other sampler")
    arguments = parser.parse_args()
    for name in arguments.parts or PARTS:
        PARTS[name](arguments.fits, arguments.loop)


if __name__ == "__main__":
    main()

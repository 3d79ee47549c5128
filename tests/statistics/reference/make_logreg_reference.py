"""Make logreg.npz, the reference posterior of configs/logreg.yaml, with a sampler that shares no code with batchnuts.

    python tests/statistics/reference/make_logreg_reference.py [--chains 128] [--warmup 600] [--draws 1000] [--seed 1]

TensorFlow Probability's unrolled NUTS (`tfp.mcmc.NoUTurnSampler`), its step size by dual averaging, compiled by XLA,
in float64; the log-density is written here once more, only the data come from the package. Chains start far from the
posterior, at independent N(0, 0.1**2) points (about five posterior standard deviations a coefficient).

The file holds, for the 100 coefficients in float64:

    mean, sd                posterior mean and standard deviation, over all draws of all chains
    mcse, sd_mcse           Monte Carlo standard errors of the two (ArviZ)
    map                     the mode, by Newton's method
    laplace_mean            the mean to first order beyond the normal approximation at the mode, from third derivatives
    laplace_sd              standard deviation of the normal approximation
    settings                a JSON string: how it was made, R-hat, effective sample sizes, versions, a hash of the data

The Laplace figures come without a sampler and so check it. Nothing is written, and the exit status is 1, unless R-hat
is below 1.01, each mean's error below 0.01 standard deviations, and each mean within 5 errors of `laplace_mean`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from batchnuts.models.logistic_regression import LogisticRegressionOptions, synthetic


def data() -> tuple[np.ndarray, np.ndarray]:
    """Features and labels as the model of the default options sees them: rounded to its dtype, here in float64."""
    options = LogisticRegressionOptions()
    features, labels = synthetic(options.rows, options.columns, options.data_seed)
    return features.astype(options.dtype).astype(np.float64), labels.astype(np.float64)


def data_hash(features: np.ndarray, labels: np.ndarray) -> str:
    """SHA-256 of the features in float32 and the labels in uint8, row-major."""
    return hashlib.sha256(features.astype("<f4").tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()


def laplace(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The posterior's mode by Newton's method; mean and standard deviations that the derivatives there give."""
    beta = np.zeros(features.shape[1])
    for _ in range(50):
        probability = 1 / (1 + np.exp(-features @ beta))
        gradient = features.T @ (labels - probability) - beta
        precision = features.T @ (features * (probability * (1 - probability))[:, None]) + np.eye(len(beta))
        step = np.linalg.solve(precision, gradient)
        beta += step
        if np.abs(step).max() < 1e-12:
            break
    else:
        raise RuntimeError("Newton's method did not converge")
    covariance = np.linalg.inv(precision)
    # First order of Laplace's expansion of the mean: half the third derivatives contracted twice with the covariance.
    variance_of_logit = np.sum((features @ covariance) * features, axis=1)
    skew = features.T @ (probability * (1 - probability) * (1 - 2 * probability) * variance_of_logit)
    return beta, beta - 0.5 * covariance @ skew, np.sqrt(np.diag(covariance))


def sample(
    features: np.ndarray, labels: np.ndarray, chains: int, warmup: int, draws: int, seed: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws [chains, draws, coefficients] and what is worth recording about the run."""
    x, y = tf.constant(features), tf.constant(labels)

    def log_density(beta: tf.Tensor) -> tf.Tensor:
        logits = tf.matmul(beta, x, transpose_b=True)
        return tf.reduce_sum(y * logits - tf.nn.softplus(logits), -1) - 0.5 * tf.reduce_sum(beta**2, -1)

    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(log_density, step_size=tf.constant(0.005, tf.float64)),
        num_adaptation_steps=int(0.8 * warmup),
        target_accept_prob=0.8,
    )

    def trace(_: tf.Tensor, results: Any) -> tuple[tf.Tensor, ...]:
        inner = results.inner_results
        return inner.leapfrogs_taken, inner.has_divergence, inner.step_size

    @tf.function(jit_compile=True)
    def advance(state: tf.Tensor, results: Any, seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            piece, state, kernel=kernel, previous_kernel_results=results, trace_fn=trace, seed=seed,
            return_final_kernel_results=True,
        )  # fmt: skip

    piece = 50
    state = tf.constant(np.random.default_rng(seed).normal(0, 0.1, (chains, features.shape[1])))
    results = kernel.bootstrap_results(state)
    kept, leapfrogs, divergences, began = [], 0, 0, time.perf_counter()
    for number in range((warmup + draws) // piece):
        out = advance(state, results, tf.constant([seed, number], tf.int32))
        state, results = out.all_states[-1], out.final_kernel_results
        taken, divergent, steps = (np.asarray(part) for part in out.trace)
        seconds = time.perf_counter() - began
        done, step_size = (number + 1) * piece, float(steps.flat[-1])
        print(f"{done:6d} transitions  {seconds:6.1f} s  step size {step_size:.4f}", flush=True)
        if number >= warmup // piece:
            kept.append(np.swapaxes(out.all_states.numpy(), 0, 1))
            leapfrogs += int(taken.sum())
            divergences += int(divergent.sum())
    run = {
        "step_size": step_size,
        "leapfrogs_per_transition": leapfrogs / (chains * piece * len(kept)),
        "divergences": divergences,
        "seconds": round(time.perf_counter() - began, 1),
    }
    return np.concatenate(kept, axis=1), run


def main() -> None:
    """Sample, check, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("chains", 128), ("warmup", 600), ("draws", 1000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()

    features, labels = data()
    highest, laplace_mean, laplace_sd = laplace(features, labels)
    beta, run = sample(features, labels, **vars(arguments))

    mean, sd = beta.mean((0, 1)), beta.std((0, 1), ddof=1)
    diagnostics = az.convert_to_dataset({"beta": beta})

    def diagnose(function: Any, **options: Any) -> np.ndarray:
        return np.asarray(function(diagnostics, **options)["beta"])

    mcse, sd_mcse = diagnose(az.mcse, method="mean"), diagnose(az.mcse, method="sd")
    # Chains are independent, so the spread of their means gives the error without any estimate of autocorrelation.
    between_chains = beta.mean(1).std(0, ddof=1) / np.sqrt(arguments.chains)
    report = {
        **vars(arguments),
        **run,
        "max_rhat": float(diagnose(az.rhat).max()),
        "min_ess_bulk": float(diagnose(az.ess, method="bulk").min()),
        "min_ess_tail": float(diagnose(az.ess, method="tail").min()),
        "max_mcse_over_sd": float((mcse / sd).max()),
        "max_mcse_between_chains_over_sd": float((between_chains / sd).max()),
        "max_mean_minus_map_over_sd": float((np.abs(mean - highest) / sd).max()),
        "max_mean_minus_laplace_mean_over_mcse": float((np.abs(mean - laplace_mean) / mcse).max()),
        "sd_over_laplace_sd": [float((sd / laplace_sd).min()), float((sd / laplace_sd).max())],
        "sampler": "tfp.mcmc.NoUTurnSampler, unit metric, DualAveragingStepSizeAdaptation to 0.8, float64, XLA",
        "versions": {
            "tensorflow": tf.__version__,
            "tensorflow_probability": tfp.__version__,
            "numpy": np.__version__,
            "arviz": az.__version__,
        },
        "data_sha256": data_hash(features, labels),
    }
    print(json.dumps(report, indent=2))
    if report["max_rhat"] >= 1.01 or report["max_mcse_over_sd"] >= 0.01 or report["divergences"]:
        raise SystemExit("not converged: nothing written")
    if report["max_mean_minus_laplace_mean_over_mcse"] > 5:
        raise SystemExit("sampler and Laplace expansion disagree: nothing written")
    np.savez(
        Path(__file__).with_name("logreg.npz"), mean=mean, sd=sd, mcse=mcse, sd_mcse=sd_mcse, map=highest,
        laplace_mean=laplace_mean, laplace_sd=laplace_sd, settings=json.dumps(report),
    )  # fmt: skip


if __name__ == "__main__":
    main()

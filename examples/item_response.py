"""Five items of a law school admission test: item response theory in NumPyro.

Data: section 6 of the Law School Admission Test, answered by 1,000 persons (Bock and Lieberman, "Fitting a response
model for n dichotomously scored items", Psychometrika 1970). Needs the extras numpyro and plot.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist

import batchnuts

PATTERNS = (
    "00000:3 00001:6 00010:2 00011:11 00100:1 00101:1 00110:3 00111:4 01000:1 01001:8 01011:16 01101:3 01110:2 "
    "01111:15 10000:10 10001:29 10010:14 10011:81 10100:3 10101:28 10110:15 10111:80 11000:16 11001:56 "
    "11010:21 11011:173 11100:11 11101:61 11110:28 11111:298"
)
"""How many persons gave these answers to the five items; 1 is a right one."""
MARGINAL = {"a": (0.83, 0.72, 0.89, 0.69, 0.66), "b": (-3.36, -1.37, -0.28, -1.87, -3.12)}
"""Marginal maximum likelihood, as the package ltm of R gives it."""


def read_answers():
    """[persons, items], 0 or 1."""
    rows = []
    for entry in PATTERNS.split():
        pattern, count = entry.split(":")
        rows += [[int(digit) for digit in pattern]] * int(count)
    return np.array(rows)


def two_parameters(answers):
    """2PL: the log-odds of a right answer are a (theta - b)."""
    persons, items = answers.shape
    with numpyro.plate("item", items):
        a = numpyro.sample("a", dist.LogNormal(0, 0.5))
        b = numpyro.sample("b", dist.Normal(0, 3))
    with numpyro.plate("person", persons):
        theta = numpyro.sample("theta", dist.Normal(0, 1))
    logits = a * (theta[:, None] - b)
    # A factor, so that no 5,000 log-likelihoods and predictions of each draw are kept.
    numpyro.factor("answers", dist.Bernoulli(logits=logits).log_prob(answers).sum())


def draw(path, a, b, theta, scores):
    """How likely each item is answered rightly, and the abilities of persons with each score."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
    ability = np.linspace(-4, 3, 100)
    colours = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377"]
    flat_a, flat_b = (values.reshape(-1, 5)[::40] for values in (a, b))
    for item, colour in enumerate(colours):
        curves = 1 / (1 + np.exp(-flat_a[:, item, None] * (ability - flat_b[:, item, None])))
        low, middle, high = np.quantile(curves, [0.05, 0.5, 0.95], axis=0)
        left.fill_between(ability, low, high, color=colour, alpha=0.2, linewidth=0)
        left.plot(ability, middle, color=colour, label=f"item {item + 1}")
    left.set_xlabel("ability")
    left.set_ylabel("probability of a right answer")
    left.legend(fontsize=7, frameon=False)
    for score in range(6):
        values = theta[..., scores == score].ravel()
        right.hist(values, bins=80, range=(-5, 4), density=True, histtype="step", label=f"{score} right")
    right.set_xlabel("ability of persons, by their right answers")
    right.set_yticks([])
    right.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=130)


def main(picture):
    """Sample, print what was found, and draw a picture."""
    batchnuts.use_own_threads(backend="jax")  # one for each core, as the command line does
    answers = read_answers()
    began = time.perf_counter()
    model = batchnuts.Model.from_numpyro(two_parameters, answers)
    result = batchnuts.sample_chains(model, chains=64, warmup="auto", draws=100, seed=1)
    seconds = time.perf_counter() - began
    a, b, theta = (result["posterior"][name].values for name in ("a", "b", "theta"))
    print(f"{answers.shape[0]} persons, {answers.shape[1]} items, {model.dimension} parameters")
    print(batchnuts.check(result))
    print("      right answers  discrimination a    ML     difficulty b    ML")
    for item in range(5):
        right, discrimination, difficulty = answers[:, item].mean(), a[..., item], b[..., item]
        print(
            f"item {item + 1}      {right:.0%}        {discrimination.mean():.2f} ± {discrimination.std():.2f}"
            f"      {MARGINAL['a'][item]:.2f}    {difficulty.mean():5.2f} ± {difficulty.std():.2f}"
            f"   {MARGINAL['b'][item]:5.2f}"
        )
    scores = answers.sum(axis=1)
    print("right answers  persons  ability ± sd of one person")
    for score in range(6):
        values = theta[..., scores == score]
        print(f"{score}              {(scores == score).sum():4}     {values.mean():5.2f} ± {values.std():.2f}")
    print(f"time: {seconds:.0f} s from the model to the draws")
    if picture:
        draw(picture, a, b, theta, scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="write a picture of the result to this file")
    main(parser.parse_args().picture)

"""A posterior with PyStan: a Stan program, ArviZ's diagnostics, and the draws saved."""

from __future__ import annotations

import numpy as np

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import stan

    from batchnuts.experiments.time_to_answer.scripts.stan_programs import MODELS

    options = request.options
    model = MODELS[request.model]
    code, data = model(**request.arguments(model))
    posterior = stan.build(code, data=data, random_seed=request.seed)
    starts = {name: array.tolist() for name, array in request.starts.items()}
    fit = posterior.sample(
        num_chains=options["chains"],
        num_warmup=options["warmup"],
        num_samples=request.draws,
        delta=options["target_acceptance"],
        **({"init": [starts] * options["chains"]} if starts else {}),
        save_warmup=True,  # it is cheap, and says how many leapfrogs they took
    )
    shapes = dict(zip(fit.param_names, fit.dims, strict=True))
    length = (options["warmup"] + request.draws, options["chains"])  # the chains' index runs faster
    draws = {
        name: np.moveaxis(fit[name].reshape(*shapes[name], *length), (-1, -2), (0, 1))[:, options["warmup"] :]
        for name in fit.param_names
    }
    import arviz

    dataset = arviz.convert_to_dataset(draws)
    print(arviz.rhat(dataset), arviz.ess(dataset))
    request.save(draws)
    steps = int(fit["n_leapfrog__"].sum())
    request.report(steps, executed=steps, warmup_counted=True)


if __name__ == "__main__":
    main(read_request())

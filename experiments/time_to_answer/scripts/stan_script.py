"""A posterior with PyStan: a Stan program, ArviZ's diagnostics, and the draws saved."""

from __future__ import annotations

import numpy as np

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import stan

    from batchnuts.experiments.time_to_answer.scripts.stan_programs import MODELS

    options = request.options
    code, parameters, data_of = MODELS[request.model]
    posterior = stan.build(code, data=data_of(request.inputs), random_seed=request.seed)
    fit = posterior.sample(
        num_chains=options["chains"],
        num_warmup=options["warmup"],
        num_samples=request.draws,
        delta=options["target_acceptance"],
        save_warmup=True,  # it is cheap, and says how many leapfrogs they took
    )
    shapes = dict(zip(fit.param_names, fit.dims, strict=True))
    length = (options["warmup"] + request.draws, options["chains"])  # the chains' index runs faster
    draws = {
        name: np.moveaxis(fit[name].reshape(*shapes[name], *length), (-1, -2), (0, 1))[:, options["warmup"] :]
        for name in parameters
    }
    import arviz

    dataset = arviz.convert_to_dataset(draws)
    print(arviz.rhat(dataset), arviz.ess(dataset))
    request.save(draws)
    steps = int(fit["n_leapfrog__"].sum())
    request.report(steps, executed=steps, warmup_counted=True)


if __name__ == "__main__":
    main(read_request())

"""A posterior with nutpie: a PyMC model compiled by Numba, ArviZ's diagnostics, and its InferenceData saved."""

from __future__ import annotations

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import arviz
    import nutpie

    from batchnuts.experiments.time_to_answer.scripts.pymc_models import MODELS

    options = request.options
    model = MODELS[request.model]
    trace = nutpie.sample(
        nutpie.compile_pymc_model(model(**request.arguments(model))),
        draws=request.draws,
        tune=options["warmup"],
        chains=options["chains"],
        target_accept=options["target_acceptance"],
        seed=request.seed,
        progress_bar=False,
    )
    print(arviz.rhat(trace), arviz.ess(trace))
    trace.to_netcdf(request.output)
    steps = int(trace.sample_stats["n_steps"].sum()) + int(trace.warmup_sample_stats["n_steps"].sum())
    request.report(steps, executed=steps, warmup_counted=True)


if __name__ == "__main__":
    main(read_request())

"""A posterior with stanli: a Stan program, its own summary and diagnosis, and the draws saved."""

from __future__ import annotations

from pathlib import Path

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import stanli

    from batchnuts.experiments.time_to_answer.scripts.stan_programs import MODELS

    options = request.options
    if request.program is None:
        program = MODELS[request.model]
        code, data = program(**request.arguments(program))
    else:
        code, data = Path(request.program["code"]).read_text(encoding="utf-8"), request.program["data"]
    model = stanli.Model(stan_code=code, data=data, seed=request.seed)
    fit = model.sample(
        chains=options["chains"],
        seed=request.seed,
        warmup=options["warmup"],
        samples=request.draws,
        delta=options["target_acceptance"],
        inits=model.unconstrain(request.starts) if request.starts else None,
        refresh=0,
    )
    print(fit.summary())
    print(fit.diagnose())
    request.save({name: fit.draws(name) for name in fit.variables})
    request.report(fit["n_leapfrog__"].sum(), warmup_counted=False)  # it would save warmup only among the draws


if __name__ == "__main__":
    main(read_request())

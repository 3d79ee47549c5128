"""A posterior with NumPyro: `MCMC(NUTS(model))`, its summary, and the draws saved."""

from __future__ import annotations

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import numpyro

    options = request.options
    if options["chain_method"] == "parallel":
        numpyro.set_host_device_count(options["chains"])
    import jax

    from batchnuts.experiments.posterior_checks.numpyro_models import MODELS

    model = MODELS[request.model]
    strategy = numpyro.infer.init_to_value(values=request.starts) if request.starts else numpyro.infer.init_to_uniform
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, target_accept_prob=options["target_acceptance"], init_strategy=strategy),
        num_warmup=options["warmup"],
        num_samples=request.draws,
        num_chains=options["chains"],
        chain_method=options["chain_method"],
        progress_bar=False,  # with a bar it is slower
    )
    mcmc.run(jax.random.key(request.seed), extra_fields=("num_steps",), **request.arguments(model))
    mcmc.print_summary()
    request.save(mcmc.get_samples(group_by_chain=True))
    request.report(mcmc.get_extra_fields()["num_steps"].sum(), warmup_counted=False)


if __name__ == "__main__":
    main(read_request())

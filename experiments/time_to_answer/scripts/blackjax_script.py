"""A posterior with BlackJAX: a NumPyro model's density, window adaptation and NUTS of each chain under `vmap`."""

from __future__ import annotations

from typing import Any

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import blackjax
    import jax
    import numpyro
    from numpyro.infer.util import initialize_model

    from batchnuts.experiments.posterior_checks.numpyro_models import MODELS

    options = request.options
    chains = options["chains"]
    model = MODELS[request.model]
    strategy = numpyro.infer.init_to_value(values=request.starts) if request.starts else numpyro.infer.init_to_uniform
    init_key, run_key = jax.random.split(jax.random.key(request.seed))
    initialized = initialize_model(
        jax.random.split(init_key, chains), model, model_kwargs=request.arguments(model), init_strategy=strategy
    )

    def log_density(position: Any) -> Any:
        return -initialized.potential_fn(position)

    adaptation = blackjax.window_adaptation(
        blackjax.nuts, log_density, target_acceptance_rate=options["target_acceptance"]
    )

    def chain(key: Any, position: Any) -> tuple[Any, Any, Any]:
        adapts, samples = jax.random.split(key)
        (state, parameters), adapting = adaptation.run(adapts, position, num_steps=options["warmup"])
        kernel = blackjax.nuts(log_density, **parameters)

        def transition(state: Any, key: Any) -> tuple[Any, tuple[Any, Any]]:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, (positions, steps) = jax.lax.scan(transition, state, jax.random.split(samples, request.draws))
        return positions, steps, adapting.info.num_integration_steps

    positions, steps, adapting = jax.jit(jax.vmap(chain))(jax.random.split(run_key, chains), initialized.param_info.z)
    draws = jax.jit(jax.vmap(jax.vmap(initialized.postprocess_fn)))(positions)
    for name, array in draws.items():
        print(name, "R-hat", blackjax.rhat(array), "ESS", blackjax.ess(array))
    request.save(draws)
    request.report(int(steps.sum()) + int(adapting.sum()), warmup_counted=True)


if __name__ == "__main__":
    main(read_request())

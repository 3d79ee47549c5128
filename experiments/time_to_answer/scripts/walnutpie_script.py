"""A posterior with walnutpie: WALNUTS with adaptation in the manner of nutpie, on a PyMC model.

walnutpie takes a C function made by Numba, with the arguments that nutpie compiles PyMC's models to. Its warmup ends by
itself, after at most `warmup` transitions.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from batchnuts.experiments.time_to_answer.scripts.request import Request, read_request


def main(request: Request) -> None:
    """Run it."""
    import nutpie
    import walnutpie

    from batchnuts.experiments.time_to_answer.scripts.pymc_models import MODELS

    options = request.options
    model = MODELS[request.model]
    compiled = nutpie.compile_pymc_model(model(**request.arguments(model)))
    memory = compiled.user_data.ctypes.data
    chains = walnutpie.walnuts_pyfunc(
        (function_of_c(compiled.compiled_logp_func), memory),
        num_params=compiled.n_dim,
        num_chains=options["chains"],
        seed=request.seed,
        max_warmup_iter=options["warmup"],
        min_sampling_iter=request.draws,
        max_sampling_iter=request.draws,
        step_accept_rate_target=options["target_acceptance"],
    )
    print("R-hat", walnutpie.r_hat(chains), "ESS", walnutpie.ess(chains))
    request.save(natural(compiled, np.stack([np.asarray(chain) for chain in chains])))
    request.report(None, warmup_counted=False)


def function_of_c(compiled: Any) -> Any:
    """A function that Numba compiled: of a size, a position, where its gradient and its value go, and data."""
    import walnutpie

    return walnutpie._ffi.logp_cfunc_type(compiled.address)


def natural(compiled: Any, positions: Any) -> dict[str, Any]:
    """The values of all variables [chains, draws, ...], by name, at positions [chains, draws, dimension]."""
    numbers = ctypes.POINTER(ctypes.c_double)
    arguments = (ctypes.c_size_t, ctypes.c_size_t, numbers, numbers, ctypes.c_void_p)
    expand = ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(compiled.compiled_expand_func.address)
    values = np.empty((*positions.shape[:2], compiled.n_expanded))
    positions = np.ascontiguousarray(positions, np.float64)
    for index in np.ndindex(*positions.shape[:2]):
        x, out = positions[index], values[index]
        expand(len(x), len(out), x.ctypes.data_as(numbers), out.ctypes.data_as(numbers), compiled.user_data.ctypes.data)
    return {
        name: values[..., part].reshape(*positions.shape[:2], *shape)
        for name, part, shape in zip(*compiled.shape_info, strict=True)
    }


if __name__ == "__main__":
    main(read_request())

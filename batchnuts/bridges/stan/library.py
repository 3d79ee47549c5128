"""stanli's shared library: Stan's compiler, and models of Stan programs by BridgeStan's C interface.

A model is made of a program's MIR, Stan's typed intermediate form, and of data. It may be evaluated from several
threads at once. Its one density is that without the constants which `~` drops, with the Jacobians of the transforms.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.versions import STAN
from batchnuts.mcmc.model.variables import ModelError
from batchnuts.process.signals import say

_SUFFIX = {"darwin": "libstanli.dylib", "win32": "stanli.dll"}

NOT_DRAWN = (
    "beta_neg_binomial_rng",
    "beta_proportion_rng",
    "dirichlet_multinomial_rng",
    "discrete_range_rng",
    "exp_mod_normal_rng",
    "frechet_rng",
    "hmm_latent_rng",
    "hypergeometric_rng",
    "inv_chi_square_rng",
    "inv_wishart_rng",
    "inv_wishart_cholesky_rng",
    "lkj_corr_rng",
    "lkj_corr_cholesky_rng",
    "loglogistic_rng",
    "multi_normal_prec_rng",
    "multi_student_t_rng",
    "multi_student_t_cholesky_rng",
    "multinomial_rng",
    "multinomial_logit_rng",
    "neg_binomial_rng",
    "ordered_logistic_rng",
    "ordered_probit_rng",
    "pareto_rng",
    "pareto_type_2_rng",
    "rayleigh_rng",
    "scaled_inv_chi_square_rng",
    "skew_double_exponential_rng",
    "skew_normal_rng",
    "von_mises_rng",
    "wishart_rng",
    "wishart_cholesky_rng",
)
"""Stan's functions of random numbers that stanli lacks, in the versions that were tried."""

_Error = ctypes.POINTER(ctypes.c_char)


@functools.cache
def library() -> ctypes.CDLL:
    """The library, loaded once. Raises NotInstalledError and ModelError."""
    STAN.require()
    import stanli

    path = Path(stanli.__file__).parent / "_bin" / _SUFFIX.get(sys.platform, "libstanli.so")
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        loaded.bs_set_print_callback(_shown, None)
    except (OSError, AttributeError) as error:
        raise ModelError(
            f"stanli cannot be used: {error}. batchnuts was tested with versions from 0.24 to below {STAN.untried}."
        ) from error
    return loaded


_Print = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

MOST_PRINTED = 20
"""Lines that are shown of what programs print, for each model that is made: `print` in a model block is run at every
gradient."""


class _Printed:
    """What was printed since the last model was made."""

    count = 0
    """Lines."""
    muted = False
    """Whether nothing is shown, nor counted."""
    lacking = ""
    """What stanli says that a model lacks, whose constructor prints it and does not fail."""


@contextlib.contextmanager
def without_prints() -> Iterator[None]:
    """Show nothing of what programs print meanwhile: densities are only tried."""
    _Printed.muted = True
    try:
        yield
    finally:
        _Printed.muted = False


def _show(text: int, length: int) -> None:
    """Show what `print` gives, from any thread; it must not raise."""
    if _Printed.muted:
        return
    for line in ctypes.string_at(text, length).decode(errors="replace").splitlines():
        if line.startswith("stanli:"):  # of the library, not of a program
            if "are unavailable" in line:
                _Printed.lacking = line
            else:
                say(line)
            continue
        _Printed.count += 1
        if _Printed.count <= MOST_PRINTED:
            say(f"Stan prints: {line}")
        if _Printed.count == MOST_PRINTED:
            say("further lines that Stan prints are not shown.")


_shown = _Print(_show)
"""As a function of C, which lives as long as the library."""


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bs_model_construct": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_uint, ctypes.POINTER(_Error)]),
    "bs_model_destruct": (None, [ctypes.c_void_p]),
    "bs_free_error_msg": (None, [_Error]),
    "bs_param_names": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]),
    "bs_param_unc_names": (ctypes.c_char_p, [ctypes.c_void_p]),
    "bs_param_unc_num": (ctypes.c_int, [ctypes.c_void_p]),
    "bs_log_density_gradient": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool, *[ctypes.c_void_p] * 3, ctypes.POINTER(_Error)],
    ),
    "bs_param_constrain": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool, *[ctypes.c_void_p] * 3, ctypes.POINTER(_Error)],
    ),
    "bs_param_unconstrain": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Error)],
    ),
    "bs_rng_construct": (ctypes.c_void_p, [ctypes.c_uint, ctypes.POINTER(_Error)]),
    "bs_rng_destruct": (None, [ctypes.c_void_p]),
    "bs_set_print_callback": (ctypes.c_int, [_Print, ctypes.POINTER(_Error)]),
}
"""Results and arguments, of BridgeStan's header, version 2.9."""


def build_id() -> str:
    """Identifies the library, with its compiler."""
    library()
    import stanli

    return str(stanli.build_id())


@functools.cache
def any_generator() -> int:
    """A generator of random numbers, where the library asks for one and none are drawn."""
    return int(library().bs_rng_construct(0, None))


class StanError(Exception):
    """What Stan says of a program or of data."""


def compile_program(source: str, include_paths: Sequence[str | Path]) -> str:
    """A program's MIR. Raises StanError with the compiler's message, which has the line."""
    library()
    import stanli

    try:
        return str(stanli.stan_to_mir(source, [str(path) for path in include_paths] or None))
    except RuntimeError as error:
        raise StanError(str(error).strip()) from None


class StanModel:
    """A model of a program and its data. Raises StanError where they do not fit. seed: of its transformed data."""

    def __init__(self, mir: str, data: Mapping[str, Any], seed: int = 1) -> None:
        self._library = library()
        _Printed.count, _Printed.lacking = 0, ""
        content = json.dumps({**data, "__stanli": {"build_id": build_id(), "mir": mir, "name": "model"}})
        error = _Error()
        self.handle: int | None = self._library.bs_model_construct(content.encode(), seed, ctypes.byref(error))
        if not self.handle:
            raise StanError(self._text(error))
        if _Printed.lacking:
            raise StanError(f"generated quantities cannot be computed: {_Printed.lacking.removeprefix('stanli: ')}")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.bs_model_destruct(self.handle)
            self.handle = None

    @property
    def dimension(self) -> int:
        """Unconstrained numbers."""
        return int(self._library.bs_param_unc_num(self.handle))

    def names(self, transformed: bool, generated: bool) -> list[str]:
        """A name for each number of the parameters, and of the further blocks: `theta.1.2`."""
        names = self._library.bs_param_names(self.handle, transformed, generated).decode()
        return names.split(",") if names else []

    def free_names(self) -> list[str]:
        """A name for each unconstrained number, by its parameter."""
        return str(self._library.bs_param_unc_names(self.handle).decode()).split(",")

    def address(self, name: str) -> int:
        """Where a function of the library is."""
        return int(ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0)

    def log_density(self, position: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Log-density and gradient at a position. Raises StanError where it is rejected."""
        position, value, gradient = (
            np.ascontiguousarray(position, "float64"),
            ctypes.c_double(),
            np.empty_like(position),
        )
        error = _Error()
        if self._library.bs_log_density_gradient(
            self.handle, True, True, position.ctypes.data, ctypes.addressof(value), gradient.ctypes.data,
            ctypes.byref(error),
        ):  # fmt: skip
            raise StanError(self._text(error))
        return value.value, gradient

    def position(self, parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        """The unconstrained numbers of parameters, in Stan's order. Raises StanError for one outside of its bounds."""
        parameters, position, error = np.ascontiguousarray(parameters, "float64"), np.empty(self.dimension), _Error()
        if self._library.bs_param_unconstrain(
            self.handle, parameters.ctypes.data, position.ctypes.data, ctypes.byref(error)
        ):
            raise StanError(self._text(error))
        return position

    def parameters(self, position: NDArray[np.float64]) -> NDArray[np.float64]:
        """The parameters at a position, in Stan's order. Raises StanError."""
        position, error = np.ascontiguousarray(position, "float64"), _Error()
        parameters = np.empty(len(self.names(False, False)))
        if self._library.bs_param_constrain(
            self.handle, False, False, position.ctypes.data, parameters.ctypes.data, any_generator(),
            ctypes.byref(error),
        ):  # fmt: skip
            raise StanError(self._text(error))
        return parameters

    def _text(self, error: Any) -> str:
        if not error:
            return "an error without a message"
        text = ctypes.string_at(error).decode(errors="replace").strip()
        with contextlib.suppress(OSError):
            self._library.bs_free_error_msg(error)
        return text

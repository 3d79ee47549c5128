"""All functions by name, with what has to be known of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batchnuts.bridges.stan.functions import containers, continuous, discrete, elementwise, linear, multivariate
from batchnuts.bridges.stan.functions.numerics import Array


@dataclass(frozen=True)
class Entry:
    """A function of Stan's: call(numerics, *arguments)."""

    call: Callable[..., Array]
    elementwise: bool = False
    """Whether it broadcasts over containers."""
    typed: bool = False
    """Whether it takes the types of its arguments after the numerics."""
    needs_known: bool = False
    """Whether some arguments are sizes or places."""


def _log_of(log_function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda m, *arguments: m.np.exp(log_function(m, *arguments))


def _all() -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for functions in (elementwise.UNARY, elementwise.BINARY, elementwise.TERNARY):
        table |= {name: Entry(call, elementwise=True) for name, call in functions.items()}
    table |= {name: Entry(call) for name, call in {**containers.REDUCTIONS, **linear.MATRICES}.items()}
    table |= {name: Entry(call, needs_known=True) for name, call in {**containers.MADE, **containers.PARTS}.items()}
    of_sizes = ("rep_matrix", "to_matrix")
    table |= {name: Entry(call, typed=True, needs_known=name in of_sizes) for name, call in linear.TYPED.items()}
    table |= {name: Entry(call) for name, call in {**multivariate.MULTIVARIATE, **discrete.LOG_PROBABILITIES}.items()}
    for suffix, densities, modules in (
        ("_lpdf", continuous.DENSITIES, continuous),
        ("_lpmf", discrete.PROBABILITIES, discrete),
    ):
        table |= {name + suffix: Entry(continuous.summed(density)) for name, density in densities.items()}
        for name, below in modules.LOG_BELOW.items():
            table[f"{name}_lcdf"] = Entry(continuous.summed(below))
            table[f"{name}_cdf"] = Entry(_log_of(continuous.summed(below)))
        table |= {f"{name}_lccdf": Entry(continuous.summed(above)) for name, above in modules.LOG_ABOVE.items()}
    return table


TABLE = _all()

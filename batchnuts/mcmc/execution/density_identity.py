"""What a model's density computes, to find on disk what depends on it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.disk_cache.identity import digest_of
from batchnuts.mcmc.model.data_argument import leaves_of
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model


def density_identity(
    model: Model,
    density_library: DensityLibrary,
    position: NDArray[np.floating],
    lanes: Collection[int],
    alone: str | None = None,
    traced: Callable[..., Any] | None = None,
) -> str | None:
    """A digest, in hexadecimal digits, of what the density with its gradient computes, and its hand-batched twin, which
    may differ between numbers of lanes, for each of these; None where something is not known for certain.

    position [dimension]: one where the density is finite. alone: that of the density with its gradient, if known.
    traced: computes both by a trace that programs use too (`TensorLibrary.traced_once`), if there is one.
    """
    library, twin = density_library.library, model.batched_value_and_gradient
    if alone is None:
        by_itself = functools.partial(library.value_and_gradient, model.flat_log_density)
        alone = library.identity_of(traced or by_itself, position, *leaves_of(model.data))
    identities = [alone]
    if twin is not None:
        batched = functools.partial(library.call, twin)
        identities += [library.identity_of(batched, np.broadcast_to(position, (n, *position.shape))) for n in lanes]
    certain = [identity for identity in identities if identity is not None]
    return digest_of(*certain, model.dtype) if len(certain) == len(identities) else None

"""The Zarr store of a run, in a process that writes chunks of it and no metadata."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from batchnuts.cluster.errors import ClusterError
from batchnuts.cluster.messages import TOKEN, StorePlan
from batchnuts.files.saving import OutputError
from batchnuts.files.url import Url
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.draws import statistics
from batchnuts.mcmc.storage.layout import Layout
from batchnuts.mcmc.storage.place import Place
from batchnuts.mcmc.storage.url_place import UrlError, place_of
from batchnuts.mcmc.storage.zarr_files import ZarrFiles


class OpenStore:
    """The store of a run in one process that writes chunks of it; threads share it.

    Raises ClusterError where this process does not see what that which has made the store has put there.
    """

    def __init__(self, plan: StorePlan, layout: Layout) -> None:
        self.place = require_same_place(plan)
        self.plan = plan
        self.layout = layout
        self.files = ZarrFiles.of_metadata(self.place, plan.metadata)
        self.lost: set[str] = set()
        """Groups, and variables of them, that are not computed any longer."""
        self.lock = threading.Lock()
        """Held while functions of the model are computed, and what they give is noted."""

    def write(self, records: Record, chains: NDArray[np.int64], first: int) -> None:
        """Draws of chains with these numbers, one after another: arrays [chains, rows, ...], from draw `first` on."""
        fields = {name: array for name, array in records._asdict().items() if not isinstance(array, tuple)}
        rows = records.lp.shape[1]
        draws = np.arange(first, first + rows)
        stats = statistics(fields, self.plan.max_tree_depth)
        with self.lock:
            groups = self.layout.of_draws(fields["position"], stats, chains, draws + self.plan.earlier)
            for name, arrays in self.files.arrays.items():
                computed = groups.get(name)
                if computed is None:
                    self.lost.add(name)
                else:
                    self.lost |= {f"{name}/{variable}" for variable in arrays.keys() - computed.keys()}
        length = self.plan.content.length
        place = slice(int(chains[0]), int(chains[-1]) + 1), slice(length(first), length(first + rows))
        for name, entries in groups.items():
            declared = self.files.arrays.get(name, {})
            self.files.write(name, {v: entry for v, entry in entries.items() if v in declared}, *place)

    def sync(self) -> None:
        """Make durable what was written."""
        self.files.sync()


def require_same_place(plan: StorePlan) -> Place:
    """The place of the store. Raises ClusterError where this process does not see the store that the plan is of."""
    why = "it finds another store there, or none"
    try:
        place = place_of(plan.location)
        if place.read(TOKEN) == plan.token.encode():
            return place
    except UrlError as error:
        why = error.why
    except (OutputError, OSError) as error:
        why = str(error).rstrip(".")
    if isinstance(plan.location, Url):
        raise ClusterError(
            f"A worker cannot use {plan.location}: {why}. Draws go from workers straight to a Zarr store, so all of "
            "them must reach that URL, with the package, the endpoint and the credentials that it needs; they cannot "
            "see what is in the memory of one process. Or set output.path to a netCDF file, so that draws return to "
            "the process of the run."
        )
    raise ClusterError(
        f"A worker cannot see {plan.location}: draws go from workers straight to a Zarr store, so all of them and the "
        "machine that the run was started on must have that folder, under the same path. Put output.path on a disk "
        "that they share, or set output.format: netcdf, so that draws return to the process of the run."
    )

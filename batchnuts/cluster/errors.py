"""What can go wrong with a cluster, in words; and what its tasks raise, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchnuts.autobatch import BatchnutsError


class ClusterError(BatchnutsError):
    """A cluster that cannot be reached or used, or whose workers cannot run the chains."""


class DiffersError(ClusterError):
    """What on a worker is not as on the machine of the run: a line for each."""


@dataclass(frozen=True)
class Failure:
    """Why a task could not be done. Errors do not cross from a worker as they are: not all can be pickled, and the
    model's own functions are known here."""

    kind: str
    """unbounded: the density is +inf; model: it failed, said in `text`; deeper: stacks are not deep enough; differs:
    see DiffersError; cluster: said in `text`; other."""
    text: str = ""
    """One paragraph; for the kind `other` what was raised, and where."""
    chain: int = 0
    """For the kind `unbounded`: the number of the chain in the run."""
    position: Any = None
    """For the kind `unbounded`: the position [dimension]."""
    traceback: str = ""

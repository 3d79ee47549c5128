"""Settings of a cluster, checked: other processes or machines that run chains."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from batchnuts.settings.schema import Settings, nearest, shown

LOCAL = "local"
"""Workers on this machine."""

LOCAL_KEYWORDS = ("threads_per_worker", "memory_limit")

CLUSTER_PACKAGES = ("dask_jobqueue", "dask_kubernetes", "dask_cloudprovider", "dask_cuda", "distributed")
"""Packages whose classes start workers. No other is imported: a config may come from a file of somebody else's."""


class ClusterSettings(Settings):
    """Machines on which chains run (docs/clusters.md). In place of the whole group, `local` or an address will do.

    Further keys are keyword arguments of the class. `class` is a reserved word of Python: give a dict.
    """

    model_config = ConfigDict(populate_by_name=True, extra="allow")

    address: str | None = Field(None, description="address of a running Dask scheduler: tcp://HOST:PORT")
    class_: str | None = Field(
        None,
        alias="class",
        description="what starts the workers: local, for processes on this machine (with threads_per_worker and "
        "memory_limit), or a class of dask_jobqueue, dask_kubernetes, dask_cloudprovider, dask_cuda or distributed, as "
        "dask_jobqueue.SLURMCluster; all other keys are its keyword arguments",
    )
    jobs: int | None = Field(None, ge=1, le=100_000, description="number of workers, or of jobs of a batch system")

    @property
    def keywords(self) -> dict[str, Any]:
        """The class's keyword arguments."""
        return dict(self.model_extra or {})

    @field_validator("address")
    @classmethod
    def _an_address(cls, address: Any) -> Any:
        if address is not None and not is_address(address):
            raise ValueError(f"found {shown(address)}; expected tcp://HOST:PORT")
        return address

    @field_validator("class_")
    @classmethod
    def _a_class(cls, named: Any) -> Any:
        parts = (named or "").split(".")
        if named not in (None, LOCAL) and (len(parts) < 2 or not all(part.isidentifier() for part in parts)):
            raise ValueError(f"found {shown(named)}; expected {LOCAL}, or package.Class")
        if named not in (None, LOCAL) and parts[0] not in CLUSTER_PACKAGES:
            raise ValueError(
                f"found {shown(named)}; expected {LOCAL}, or a class of {', '.join(CLUSTER_PACKAGES)}: nothing else is "
                "imported or called"
            )
        return named

    @model_validator(mode="after")
    def _fits(self) -> ClusterSettings:
        if (self.address is None) == (self.class_ is None):
            problem = "neither address nor class" if self.address is None else "both address and class"
            raise ValueError(f"found {problem}; expected one of them")
        further = (["jobs"] if self.jobs is not None else []) + list(self.keywords)
        if self.address is not None and further:
            raise ValueError(f"found {', '.join(further)} with an address, where workers are running; expected none")
        if self.class_ == LOCAL:
            unknown = [name for name in self.keywords if name not in LOCAL_KEYWORDS]
            if unknown:
                hint = nearest(unknown[0], LOCAL_KEYWORDS) or f"; expected jobs or one of {', '.join(LOCAL_KEYWORDS)}"
                raise ValueError(f"{unknown[0]}: class {LOCAL} has no such keyword{hint}")
            threads = self.keywords.get("threads_per_worker", 1)
            if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
                raise ValueError(
                    f"threads_per_worker: found {shown(threads)}; expected an integer of at least 1 and at most 1,024"
                )
        return self


def is_address(text: str) -> bool:
    """Whether it is the address of a Dask scheduler."""
    match = re.fullmatch(r"(?:tcp|tls)://(?:[^\s/:\[\]]+|\[[0-9A-Fa-f:.%]+\]):([0-9]{1,5})", text)
    return match is not None and 1 <= int(match[1]) <= 65535

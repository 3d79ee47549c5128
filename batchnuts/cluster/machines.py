"""Whether the machines of a cluster are like this one, and a model in a form that they can be sent."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from batchnuts.autobatch.machine import engine_infos
from batchnuts.cluster import versions
from batchnuts.cluster.errors import ClusterError
from batchnuts.cluster.tasks import differing
from batchnuts.mcmc.model.model import Model

if TYPE_CHECKING:
    from distributed import Client


def versions_of(backend: str) -> dict[str, str]:
    """The versions of this machine on which draws depend, by name."""
    return versions.own_versions(("batchnuts", *engine_infos()[backend].packages, "distributed"))


def require_alike(client: Client, own: dict[str, str]) -> None:
    """Raise ClusterError where a worker has another Python, other packages or is another kind of machine."""
    import cloudpickle

    by_worker = client.get_versions()["workers"]  # Dask asks in a way that works between versions of Python
    pythons = {
        address: {"python": ".".join(info["host"]["python"].split(".")[:2])}
        for address, info in by_worker.items()
        if info
    }
    if lines := versions.differences({"python": own["python"]}, pythons):
        raise differing(lines)
    cloudpickle.register_pickle_by_value(versions)  # they may not have this package
    try:
        reported = client.run(versions.own_versions, tuple(own))
    finally:
        cloudpickle.unregister_pickle_by_value(versions)
    if lines := versions.differences(own, reported):
        raise differing(lines)


def pickled(model: Model) -> bytes:
    """The model with its functions and data; code of the user's own modules goes with it. Raises ClusterError."""
    import cloudpickle

    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(Model) if f.init}
    registered = []
    for module in _users_modules():
        cloudpickle.register_pickle_by_value(module)
        registered.append(module)
    try:
        content: bytes = cloudpickle.dumps(Model(**fields))
    except Exception as error:  # of objects of any library
        raise ClusterError(
            f"Model {model.name!r} cannot be sent to other processes ({type(error).__name__}: {error}). What its "
            "functions use must be plain data, NumPy's arrays, or functions: no open files, locks or TensorFlow "
            "objects."
        ) from error
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
    return content


def _users_modules() -> list[ModuleType]:
    """Modules that are in no package that was installed: workers may not be able to import them."""
    import cloudpickle

    registered = set(cloudpickle.list_registry_pickle_by_value())
    installed = ("site-packages", "dist-packages")
    library = tuple({sys.base_prefix, sys.base_exec_prefix})
    modules = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in ("batchnuts", "__main__") or not isinstance(file, str) or name in registered:
            continue
        own = not file.startswith(library) and not any(f"/{folder}/" in file for folder in installed)
        if own and isinstance(module, ModuleType) and module.__name__ == name:
            modules.append(module)
    return modules

"""Packaged models, one file each, and the registry that the command line looks them up in.

Import it as `batchnuts.models`, from a clone as well as from an installed package.
"""

if __name__ == "models":
    raise ImportError(
        "Import batchnuts.models: the top-level folder `models` is the same package under its source path."
    )

from batchnuts.models.registry import REGISTRY, ModelOptions, PackagedModel, build

__all__ = ["REGISTRY", "ModelOptions", "PackagedModel", "build"]

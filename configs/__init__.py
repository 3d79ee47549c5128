"""Packaged configs, as YAML files beside this one. Import it as `batchnuts.configs`."""

if __name__ == "configs":
    raise ImportError(
        "Import batchnuts.configs: the top-level folder `configs` is the same package under its source path."
    )

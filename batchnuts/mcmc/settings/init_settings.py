"""The settings of where chains start, `sampler.init`, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from batchnuts.mcmc.settings.plain_values import as_lists, of_json
from batchnuts.settings.schema import Settings, in_words, nearest, shown

InitMethod = Literal["auto", "uniform", "prior", "values", "run", "pathfinder"]
"""How chains may start (starts/methods.py)."""


class InitSettings(Settings):
    """Where chains start. In place of the whole group, its method will do."""

    method: InitMethod = Field(
        "auto",
        description="auto: the values or the run given, else the model's initializer, else uniform; uniform: on "
        "(-radius, radius) in unconstrained space; prior: draws from the model's prior; values: those given; run: "
        "draws of an earlier run; pathfinder: from uniform, by optimization",
    )
    radius: float = Field(2.0, gt=0.0, le=1e6, description="half-width of the interval that `uniform` draws from")
    jitter: float = Field(
        0.0, ge=0.0, le=1e6, description="standard deviation of normal noise that is added, on the same scale"
    )
    values: dict[str, Any] | None = Field(
        None,
        description="values of variables by name, or a list of several initial values for each, which superchains "
        "use in turn, or the path of a JSON file of these; variables that are not named start at random",
    )
    run: str | None = Field(None, min_length=1, description="file of an earlier run, whose draws are initial values")

    @property
    def given(self) -> bool:
        """Whether it says more than what holds by default, or with an earlier run's tuning: then it decides."""
        return self.method != "auto" or self.values is not None or self.run is not None

    @field_validator("values", mode="before")
    @classmethod
    def _plain(cls, values: Any) -> Any:
        """Arrays of any library as lists, and what a file holds: settings are saved with a run."""
        if isinstance(values, list | tuple):
            raise ValueError(_one_mapping(values))
        return of_json(values) if isinstance(values, str | os.PathLike) else as_lists(values)

    @model_validator(mode="after")
    def _fits(self) -> InitSettings:
        if self.values is not None and self.run is not None:
            raise ValueError("found both values and run; expected one of them")
        for name in ("values", "run"):
            given = getattr(self, name) is not None
            if given and self.method not in ("auto", name):
                raise ValueError(f"found {name}, which has no effect with method {self.method}")
            if not given and self.method == name:
                raise ValueError(f"method is {name}, but {name} is not given")
        return self


def settings_of_init(init: Any) -> Mapping[str, Any]:
    """The keys of InitSettings that `sampler.init` means. Raises ValueError, with what to write in place of what other
    libraries take."""
    fields = InitSettings.model_fields
    expected = f"expected a method, or a mapping with keys among {', '.join(fields)}"
    if isinstance(init, Mapping):
        if init and not any(name in fields or nearest(name, fields) for name in map(str, init)):
            name = next(iter(init))
            raise ValueError(f'found {shown(init)}; {expected}. Initial values are {{"values": {{"{name}": ...}}}}')
        return init
    if isinstance(init, os.PathLike) or (isinstance(init, str) and init.endswith((".json", ".nc", ".zarr"))):
        path = os.fspath(init)
        key = "values" if path.endswith(".json") else "run"
        raise ValueError(f'found {shown(init)}; {expected}. A file is {{"{key}": "{path}"}}')
    if isinstance(init, str):
        return {"method": init}
    if isinstance(init, list | tuple):
        raise ValueError(_one_mapping(init))
    hint = ""
    if isinstance(init, int | float) and not isinstance(init, bool):
        hint = f'. Starts within (-x, x) are {{"radius": x}}{", with 1e-6 as good as 0" if not init else ""}'
    raise ValueError(f"found {shown(init)}; {expected}{hint}")


def _one_mapping(values: Any) -> str:
    """What is wrong with a list that has the initial values of each chain."""
    mappings = [each for each in values if isinstance(each, Mapping)]
    found = f"found a list of {in_words(len(mappings), 'mapping')}" if mappings else f"found {shown(values)}"
    name = next((name for mapping in mappings for name in mapping), "x")
    form = f'{{"values": {{"{name}": [...]}}}}'
    return f"{found}; expected one mapping, with a list of several initial values for each variable: {form}"

"""The settings of a run, checked: what to sample (`SamplerSettings`) and on what machinery (`ExecutionSettings`)."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchnuts.autobatch.errors import BatchnutsError

MOST_NUMBERS = 10_000_000
"""Most entries of a position, and most chains: bounds that no machine comes near, so that mistakes are told at once."""


class SettingsError(BatchnutsError):
    """A setting that is unknown, of the wrong type or out of range; the message names it and what is expected."""


class Settings(BaseModel):
    """Base of every checked group of settings: immutable, strict about types, no unknown names, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def without_effect(self) -> set[str]:
        """Names of settings that the others make meaningless; a resolved config leaves them out."""
        return set()

    def refuse_without_effect(self, reason: str) -> None:
        """Raise ValueError if a setting of `without_effect` was set to something other than its default."""
        fields = type(self).model_fields
        for name in sorted(self.without_effect()):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name}: found {shown(getattr(self, name))}, which has no effect {reason}")


class SamplerSettings(Settings):
    """What is sampled: how many chains and draws, and the constants of NUTS and of its warmup."""

    chains: int = Field(256, ge=1, le=MOST_NUMBERS, description="number of chains, run together")
    warmup: int = Field(
        300, ge=0, le=1_000_000_000, description="warmup transitions per chain; they adapt and are not kept"
    )
    draws: int = Field(200, ge=1, le=1_000_000_000, description="draws kept per chain, after warmup")
    seed: int = Field(0, ge=0, lt=2**63, description="the run's random numbers follow from this number alone")
    target_acceptance: float = Field(
        0.8, ge=0.01, le=0.9999, description="mean acceptance statistic that the step size is adapted to"
    )
    max_tree_depth: int = Field(10, ge=1, le=20, description="a trajectory doubles at most this many times")
    leapfrogs_per_leaf: int = Field(1, ge=1, le=10_000, description="leapfrog steps between two states of a trajectory")
    divergence_threshold: float = Field(
        1000.0, gt=0.0, le=1e30, description="an energy error above this ends the trajectory and counts as a divergence"
    )
    step_size: float | None = Field(
        None,
        ge=1e-30,
        le=1e30,
        description="leapfrog step size; null adapts it in warmup, a number keeps it fixed at that",
    )
    adapt_metric: bool = Field(
        True, description="adapt a diagonal metric in warmup from the variances of all chains; false keeps the identity"
    )


class ExecutionSettings(Settings):
    """On what machinery it runs. None of these changes what is sampled, up to rounding."""

    executor: Literal["virtual_machine", "stackless", "unbatched"] = Field(
        "virtual_machine",
        description="virtual_machine: chains at different places of the recursion share gradients; stackless: "
        "calls and branches on the host; unbatched: plain Python, chain by chain, for debugging",
    )
    backend: Literal["tensorflow", "numpy"] = Field("tensorflow", description="array library that runs the program")
    mode: Literal["xla", "graph", "eager"] = Field(
        "xla", description="how TensorFlow runs it: compiled by XLA, as a graph, or operation by operation"
    )
    schedule: Literal["auto", "earliest", "most_active", "sweep", "drain"] = Field(
        "auto", description="order in which the virtual machine runs blocks; auto chooses by their cost"
    )
    chunk_lanes: int | None = Field(
        None,
        ge=1,
        le=MOST_NUMBERS,
        description="chains that run together as one batch; null chooses a number that suits the processor",
    )
    shards: int | None = Field(
        None, ge=1, le=1024, description="threads that take turns at the chunks; null takes one for each processor core"
    )
    max_stack_depth: int | None = Field(
        None, ge=1, le=1000, description="frames of each variable's stack; null chooses a bound that suffices"
    )


def shown(value: Any) -> str:
    """A value as a message has it: its repr, cut off where it is long or nested deep, or cannot be made."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of {int(math.log10(abs(value))) + 1} digits"
    return _REPR.repr(value)


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxlong = 60
_REPR.maxlist = _REPR.maxdict = _REPR.maxtuple = 12


def nearest(name: str, valid: Iterable[str]) -> str:
    """The clause `; did you mean 'x'?` where a valid name is close to `name`, else an empty string."""
    close = difflib.get_close_matches(name.lower(), list(valid), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def split_settings(values: Mapping[str, Any]) -> tuple[SamplerSettings, ExecutionSettings]:
    """Sort keyword arguments into the two groups and check them.

    Raises SettingsError, with one line for each mistake: unknown names with the nearest valid one, wrong types, bad
    values.
    """
    # NumPy's scalars are as good as Python's here, though a strict schema would refuse them.
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    sampler_names, execution_names = set(SamplerSettings.model_fields), set(ExecutionSettings.model_fields)
    valid = [*SamplerSettings.model_fields, *ExecutionSettings.model_fields]
    problems = [
        f"{name}: unknown setting{nearest(name, valid) or '; expected one of ' + ', '.join(valid)}"
        for name in values
        if name not in sampler_names | execution_names
    ]
    sampler = execution = None
    try:
        sampler = SamplerSettings.model_validate({k: v for k, v in values.items() if k in sampler_names})
    except ValidationError as error:
        problems += explain(error, SamplerSettings)
    try:
        execution = ExecutionSettings.model_validate({k: v for k, v in values.items() if k in execution_names})
    except ValidationError as error:
        problems += explain(error, ExecutionSettings)
    if problems or sampler is None or execution is None:
        raise SettingsError("\n".join(problems))
    return sampler, execution


def explain(
    error: ValidationError,
    schema: type[BaseModel],
    prefix: str = "",
    where: Callable[[str], str] = lambda path: "",
    elsewhere: Mapping[str, str] | None = None,
) -> list[str]:
    """One line per mistake in `error`: full key path, what was found, what is expected, the nearest valid name.

    `prefix` is put before each key; `where(path)` gives the place of a key (`file.yaml:3: `), or an empty string;
    `elsewhere` names the full path of keys that belong to other groups, for a key put into the wrong one.
    """
    lines = []
    for item in error.errors(include_url=False):
        keys = _key_path(schema, item["loc"])
        path = ".".join([*([prefix] if prefix else []), *keys])
        if item["type"] == "extra_forbidden":
            known = list(schema.model_fields)
            hint = nearest(keys[-1], known) or f"; expected one of {', '.join(known)}"
            if elsewhere and keys[-1] in elsewhere:
                hint = f"; did you mean {elsewhere[keys[-1]]!r}?"
            lines.append(f"{where(path)}{path}: unknown key{hint}")
        elif item["type"] == "missing":
            what = expected(schema, keys[0])
            lines.append(f"{where(path)}{path}: this key is required; expected {what}")
        elif item["type"] == "value_error":
            # The message of our own validators, without pydantic's "Value error, ".
            head = f"{path}: " if path else ""
            lines.append(f"{where(path)}{head}{item['ctx']['error']}")
        else:
            found = f"found {shown(item['input'])}" + _kind(item["input"])
            hint = ""
            if item["type"] == "literal_error" and isinstance(item["input"], str):
                hint = nearest(item["input"], choices(schema, keys[0]))
            lines.append(f"{where(path)}{path}: {found}; expected {expected(schema, keys[0])}{hint}")
    # A union reports each of its branches; the texts are the same here, so each is told once.
    return list(dict.fromkeys(lines))


def _key_path(schema: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of a mistake's place, without the names that pydantic adds for a union's branch or a mapping's key."""
    field = schema.model_fields.get(str(location[0])) if location else None
    if field is None or "dict" in str(field.annotation):
        return [str(part) for part in location if part != "[key]"]
    return [str(part) for position, part in enumerate(location) if position == 0 or isinstance(part, int)]


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a text", dict: "a mapping", list: "a list"}
    return f" ({names[type(value)]})" if type(value) in names else ""


def choices(schema: type[BaseModel], name: str) -> tuple[str, ...]:
    """The allowed words of a field that is a choice, else an empty tuple."""
    field = schema.model_fields.get(name)
    options = get_args(field.annotation) if field is not None else ()
    return tuple(option for option in options if isinstance(option, str))


def expected(schema: type[BaseModel], name: str) -> str:
    """What a field accepts, in words, from the schema itself: its type and its bounds."""
    field = schema.model_fields[name]
    words = choices(schema, name)
    if words:
        return "one of " + ", ".join(words) if len(words) > 1 else words[0]
    bounds = []
    for rule in field.metadata:
        for attribute, phrase in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
            limit = getattr(rule, attribute, None)
            if limit is not None:
                power = isinstance(limit, int) and limit > 10**15 and limit & (limit - 1) == 0
                number = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
                bounds.append(f"{phrase} {f'2**{limit.bit_length() - 1}' if power else number}")
    return _type_words(field.annotation) + (" " + " and ".join(bounds) if bounds else "")


def _type_words(annotation: Any) -> str:
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    if annotation in plain:
        return plain[annotation]
    origin = getattr(annotation, "__origin__", None)
    if origin is dict:
        return "a mapping of names to shapes (lists of integers)"
    if origin is list:
        return f"a list (each item {_type_words(get_args(annotation)[0])})"
    arguments = get_args(annotation)
    # `x | None` reads best with null at the front, so that the bounds which follow belong to the other type.
    ordered = sorted(arguments, key=lambda argument: argument is not type(None))
    return " or ".join(_type_words(argument) for argument in ordered)

"""Checked groups of settings: their schema in words, and one line for each mistake."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from batchnuts.autobatch import BatchnutsError


class SettingsError(BatchnutsError):
    """A setting that is unknown, of the wrong type or out of range; the message names it and what is expected."""


class Settings(BaseModel):
    """Base of every checked group of settings: immutable, strict about types, no unknown names, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    replaced: ClassVar[Mapping[str, str]] = {}
    """Names of settings that there were, and what to write instead."""

    def without_effect(self) -> set[str]:
        """Names of settings, with dots within groups, that have no effect given the others: a resolved config leaves
        them out."""
        return set()

    def refuse_without_effect(self, reason: str) -> None:
        """Raise ValueError if a setting of `without_effect` was set to something other than its default."""
        fields = type(self).model_fields
        for name in sorted(self.without_effect()):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"{name}: found {shown(getattr(self, name))}, which has no effect {reason}")


def dump_settings(settings: Settings) -> dict[str, Any]:
    """Plain data that the same settings can be read from; what the others make meaningless is left out."""
    data = settings.model_dump(mode="json", by_alias=True)
    for name in settings.without_effect():
        *groups, key = name.split(".")
        place = data
        for group in groups:
            place = place[group]
        del place[key]
    return data


def fields_of(schema: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields by the names that users write, which a reserved word of Python cannot be in a class."""
    return {field.alias or name: field for name, field in schema.model_fields.items()}


def shown(value: Any) -> str:
    """A value in a message: its repr, shortened where it is long or nested deep, or cannot be made."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of {int(math.log10(abs(value))) + 1} digits"
    return _REPR.repr(value)


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxlong = 60
_REPR.maxlist = _REPR.maxdict = _REPR.maxtuple = 12


def in_words(count: int, noun: str) -> str:
    """A count and its noun: `1 worker`, `3 workers`."""
    return f"{count} {noun}{'s' * (count != 1)}"


IN_OTHER_LIBRARIES = {
    word: ours
    for ours, words in {
        "chains": "nchains n_chains num_chains",
        "warmup": "tune burn burnin burn_in iter_warmup n_warmup num_warmup num_tune",
        "draws": "iter iterations iter_sampling nsteps samples n_draws n_samples num_draws num_samples",
        "init": "inits initvals init_strategy init_params",
        "seed": "random_seed rng_key rng_seed",
        "target_acceptance": "adapt_delta target_accept target_accept_prob target_accept_rate",
        "max_tree_depth": "max_depth maxdepth max_treedepth",
        "metric": "dense_mass inv_metric mass_matrix",
        "thin": "thinning",
        "shards": "cores n_cores num_cores n_jobs threads parallel_chains",
    }.items()
    for word in words.split()
}
"""Words of Stan, PyMC, NumPyro and others for settings, and ours for the same."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The clause `; did you mean 'x'?` where a valid name is close to `name`, else an empty string.

    What another library calls a setting comes first; then names that `name` is the beginning of, up to three of them:
    `ess` is `ess_bulk` or `ess_tail`.
    """
    names, written = list(valid), name.lower()
    longer = [candidate for candidate in names if len(written) > 1 and candidate.lower().startswith(written)]
    close = [candidate for candidate in names if candidate == IN_OTHER_LIBRARIES.get(written)] or longer[:3]
    close = close or difflib.get_close_matches(written, names, n=1, cutoff=0.65 if len(written) > 2 else 0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def sentence(text: str) -> str:
    """A text with a full stop, unless it ends with a question, as the clauses of `nearest` do."""
    return text if text.endswith("?") else f"{text}."


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
        inner, outside, location = _innermost(schema, item["loc"])
        keys = [*outside, *_key_path(inner, location)]
        path = ".".join([*([prefix] if prefix else []), *keys])
        field = str(location[0]) if location else ""
        if item["type"] == "extra_forbidden":
            valid = list(fields_of(inner))
            hint = nearest(keys[-1], valid) or f"; expected one of {', '.join(valid)}"
            if elsewhere and keys[-1] in elsewhere:
                hint = f"; did you mean {elsewhere[keys[-1]]!r}?"
            replaced = inner.replaced.get(keys[-1]) if issubclass(inner, Settings) else None
            lines.append(f"{where(path)}{path}: {replaced or f'unknown key{hint}'}")
        elif item["type"] == "missing":
            expectation = expected(inner, field)
            lines.append(f"{where(path)}{path}: this key is required; expected {expectation}")
        elif item["type"] == "value_error":
            # The message of our own validators, without pydantic's "Value error, ". One of a group begins with a key.
            text = str(item["ctx"]["error"])
            key = text.partition(": ")[0]
            if key.partition(".")[0] in _keys_of_group(inner, location):
                path = ".".join([*([path] if path else []), key])
                text = text.removeprefix(f"{key}: ")
            head = f"{path}: " if path else ""
            lines.append(f"{where(path)}{head}{text}")
        else:
            problem = f"found {shown(item['input'])}" + _kind(item["input"])
            hint = ""
            if item["type"] == "literal_error" and isinstance(item["input"], str):
                hint = nearest(item["input"], choices(inner, field))
            expectation = (
                expected(inner, field) if field else f"a mapping with keys among {', '.join(fields_of(inner))}"
            )
            lines.append(f"{where(path)}{path}: {problem}; expected {expectation}{hint}")
    # A union reports each of its branches; the texts are the same here, so each is reported once.
    return list(dict.fromkeys(lines))


def _innermost(
    schema: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[type[BaseModel], list[str], tuple[int | str, ...]]:
    """Of a place in a group of settings within others, or in a mapping of names to such groups: the group's schema, the
    keys to it, the place in it."""
    field = fields_of(schema).get(str(location[0])) if len(location) > 1 else None
    for mapping in (field.annotation, *get_args(field.annotation)) if field is not None else ():
        if isinstance(mapping, type) and issubclass(mapping, BaseModel):
            return mapping, [str(location[0])], location[1:]
        if get_origin(mapping) is dict:
            entry = get_args(mapping)[1]
            entry = get_args(entry)[0] if get_origin(entry) is Annotated else entry
            if isinstance(entry, type) and issubclass(entry, BaseModel):
                return entry, [str(part) for part in location[:2]], location[2:]
    return schema, [], location


def _keys_of_group(schema: type[BaseModel], location: tuple[int | str, ...]) -> Iterable[str]:
    """The keys of the group of settings at a place in another one; that one itself where the place is empty."""
    if not location:
        return fields_of(schema)
    field = fields_of(schema).get(str(location[0]))
    kinds = () if field is None or len(location) > 1 else (field.annotation, *get_args(field.annotation))
    groups = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return fields_of(groups[0]) if groups else ()


def _key_path(schema: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of a mistake's place, without the names that pydantic adds for a union's branch or a mapping's key."""
    field = fields_of(schema).get(str(location[0])) if location else None
    if field is None or "dict" in str(field.annotation):
        return [str(part) for part in location if part != "[key]"]
    return [str(part) for position, part in enumerate(location) if position == 0 or isinstance(part, int)]


def _kind(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        dict: "a mapping",
        list: "a list",
    }
    return f" ({names[type(value)]})" if type(value) in names else ""


def choices(schema: type[BaseModel], name: str) -> tuple[str, ...]:
    """The allowed words of a field that is a choice, else an empty tuple."""
    field = fields_of(schema).get(name)
    options = get_args(field.annotation) if field is not None else ()
    return tuple(option for option in options if isinstance(option, str))


def expected(schema: type[BaseModel], name: str) -> str:
    """What a field accepts, in words, from the schema itself: its type and its bounds."""
    field = fields_of(schema)[name]
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
        if fewest := getattr(rule, "min_length", None):
            is_text = field.annotation in (str, str | None)
            bounds.append(f"of at least {in_words(fewest, 'character')}" if is_text else f"with {fewest} or more")
    of = "of " if bounds and bounds[0].startswith("at ") else ""  # "a number above 0", "a number of at least 0"
    return _type_words(field.annotation) + (f" {of}{' and '.join(bounds)}" if bounds else "")


def _type_words(annotation: Any) -> str:
    if isinstance(annotation, str):  # a word that is allowed beside other types
        return annotation
    plain = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a string",
        type(None): "null",
        Any: "any value",
    }
    if annotation in plain:
        return plain[annotation]
    origin = getattr(annotation, "__origin__", None)
    if origin is dict:
        return f"a mapping of names to {_type_words(get_args(annotation)[1])}"
    if get_origin(annotation) is Annotated or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "a mapping"
    if origin is list:
        return f"a list (each item {_type_words(get_args(annotation)[0])})"
    arguments = get_args(annotation)
    # `x | None` reads best with null at the front, so that the bounds which follow belong to the other type.
    ordered = sorted(arguments, key=lambda argument: argument is not type(None))
    return " or ".join(_type_words(argument) for argument in ordered)

"""Models of Stan programs: the density is a function of C, and so is what a draw gives."""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import CFunction, for_jax, library_of, registered
from batchnuts.bridges.errors import names_in_files
from batchnuts.bridges.stan.columns import Block, blocks_of, index_from_0
from batchnuts.bridges.stan.data import StanData, read_data
from batchnuts.bridges.stan.engines import ENGINES, Engine, choose, line_of
from batchnuts.bridges.stan.library import (
    NOT_DRAWN,
    StanError,
    StanModel,
    any_generator,
    build_id,
    compile_program,
    without_prints,
)
from batchnuts.bridges.stan.mir import draws_numbers
from batchnuts.bridges.stan.shapes import lengths_of, wrong_shape
from batchnuts.bridges.versions import STAN
from batchnuts.disk_cache.identity import digest_of
from batchnuts.mcmc.model.data_argument import Remade
from batchnuts.mcmc.model.model import DType, Model, ModelError, OfDraw
from batchnuts.mcmc.model.named_parameters import NamedParameters
from batchnuts.mcmc.model.supports import SupportError
from batchnuts.settings.schema import shown

LOG_LIKELIHOOD = ("log_lik", "log_lik_*", "log_likelihood")
PREDICTIVE = ("*_rep", "*_pred", "*_sim")
"""Names of generated quantities that go into the groups log_likelihood and posterior_predictive; * is any text."""


def from_stan(
    program: str | os.PathLike[str],
    *,
    data: StanData = None,
    include_paths: Sequence[str | os.PathLike[str]] = (),
    name: str | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    log_likelihood: Sequence[str] = LOG_LIKELIHOOD,
    predictive: Sequence[str] = PREDICTIVE,
    engine: Engine = "auto",
    dtype: DType | None = None,
    initializer: Callable[[np.random.Generator, int], Any] | None = None,
) -> Model:
    """`Model.from_stan`: a Model of a Stan program, which has the path of a file, or a text of several lines."""
    source, title, folders = _source(program, include_paths)
    title = name or title
    if engine not in ENGINES:
        raise ModelError(f"Model {title!r}: engine is {shown(engine)}; expected one of {', '.join(ENGINES)}.")
    if dtype not in (None, "float64") and engine != "jax":
        raise ModelError(f"Model {title!r}: dtype is {shown(dtype)}; Stan computes in float64, engine jax in either.")
    values = read_data(title, data)
    try:
        mir = compile_program(source, folders)
    except StanError as error:
        message = str(error).replace("in 'string'", "in the program" if folders == [] else f"in {title}.stan")
        if "Could not find include file" in message:
            message = f"{message.rstrip()}\nSet include_paths to a list of the folders that have it."
        raise ModelError(f"Model {title!r}: Stan's compiler says:\n{message}") from None
    if (wrong := wrong_shape(mir, values)) is not None:
        which, how = wrong
        raise ModelError(f"Model {title!r}: its data {which!r}{_declared_in(which, source)} have {how}.")
    compiled = Compiled(mir, values, digest_of("stan", build_id(), mir, json.dumps(values))[:32])
    try:
        stan = compiled.stan
    except StanError as error:
        raise ModelError(f"Model {title!r}: {_refused(str(error), source, values)}.") from None
    if not stan.dimension:
        raise ModelError(f"Model {title!r} has no parameters, so there is nothing to sample.")
    with without_prints():
        density = LogDensity(compiled)
        choice = choose(title, stan, density.with_gradient, source, mir, values, engine, dtype in (None, "float64"))
    layout = _layout(title, stan, log_likelihood, predictive)
    observed, constant = _data(values, layout.roles.get("predictive", []))
    translation, computed_by = choice.translation, choice.note
    if translation is None:
        computed_by = f"Stan's C function, in float64{', ' if choice.note else ''}{choice.note}"
    elif translation.gradient is not None:
        computed_by = f"machine code, {choice.note}"
    arrays = {key: np.asarray(value) for key, value in values.items() if _is_array(value)}

    options: dict[str, Any] = {
        "include_paths": include_paths,
        "name": title,
        "dims": dims,
        "coords": coords,
        "log_likelihood": log_likelihood,
        "predictive": predictive,
        "engine": engine,
        "dtype": dtype,
        "initializer": initializer,
    }
    remake = functools.partial(_remade, program, values, options)
    return Model(
        name=title,
        remade=Remade(arrays, remake, declares_types=True, lengths=lengths_of(mir)) if arrays else None,
        log_density=density if translation is None else translation,
        dimension=stan.dimension,
        dtype=dtype or "float64",
        library="jax" if translation is not None and translation.gradient is None else None,
        computed_by=computed_by,
        reports_variables=False,
        of_draw=OfDraw(Columns(compiled, layout), frozenset(layout.roles)),
        parameters=_parameters(compiled),
        rejection=Rejection(compiled),
        initializer=initializer,
        observed_data=observed,
        constant_data=constant,
        dims=dims or {},
        coords=coords or {},
    )


def _remade(
    program: str | os.PathLike[str], values: Mapping[str, Any], options: Mapping[str, Any], data: Mapping[str, Any]
) -> Model:
    """The model of a program with some other data."""
    return from_stan(program, data={**values, **data}, **options)


def _is_array(value: Any) -> bool:
    """Whether data are numbers, or lists of numbers of equal lengths."""
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except ValueError:
        return False


def _source(
    program: str | os.PathLike[str], include_paths: Sequence[str | os.PathLike[str]]
) -> tuple[str, str, list[Path]]:
    """The text of a program, its name, and the folders of what it includes."""
    if isinstance(program, str) and ("\n" in program or "{" in program):
        return program, "stan", [Path(path) for path in include_paths]
    if not isinstance(program, (str, os.PathLike)):
        raise ModelError(
            f"The Stan program is {shown(program)}; expected the path of a .stan file, or the program's text."
        )
    path = Path(program).expanduser()
    try:
        source = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"The Stan program {str(path)!r} cannot be read: {error}.") from None
    return source, path.stem, [*(Path(folder) for folder in include_paths), path.resolve().parent]


def _declared_in(name: str, source: str) -> str:
    """The line of a program that declares a variable, in brackets; empty where none is found."""
    for number, line in enumerate(source.splitlines(), 1):
        if name and re.search(rf"\b{name}\b\s*[;=]", line):
            return f" (declared in line {number})"
    return ""


def _refused(message: str, source: str, data: Mapping[str, Any]) -> str:
    """Why there is no model of a program and its data, with the line of what the message names, and what to do."""
    message = re.sub(r"^stanli \w[\w ]*: ", "", message.rstrip("."))  # which of its stages has failed
    if kind := re.search(r"unsupported sized type S(Tuple|Complex)|unsupported function FnMake(Tuple)", message):
        numbers = "tuples" if "Tuple" in kind.groups() else "complex numbers"
        return f"stanli {STAN.version()} lacks {numbers}: declare variables of real numbers"
    if lacking := re.search(r"unsupported function (\w+)", message):
        where = ", for the arguments that generated quantities give it" if message.startswith("generated") else ""
        others = [name for name in NOT_DRAWN if name != lacking[1] and line_of(source, name)]
        also = "".join(f", and {name}{line_of(source, name)}" for name in others)
        return (
            f"stanli {STAN.version()} lacks Stan's function {lacking[1]}{where}{line_of(source, lacking[1])}{also}: "
            f"write {'them' if others else 'it'} with other functions"
            + (" (docs/stan_model.md lists what it draws random numbers of)" if lacking[1].endswith("_rng") else "")
        )
    named = re.search(r"variable name=(\w+)|data variable (\w+)|^(\w+) is |unknown int (\w+)", message)
    name = "" if named is None else next(filter(None, named.groups()))
    where = _declared_in(name, source)
    if name and name not in data and "unknown" in message:
        unused = [given for given in data if not re.search(rf"\b{re.escape(given)}\b", source)]
        given = f"; given, and not in the program: {', '.join(unused)}" if unused else ""
        return f"its data have no {name!r}{where}{given if data else ': no data were given'}"
    if "non-int values" in message:
        where += ": Stan's `int` takes no number with a decimal point, not even 3.0; write 3 (NumPy: astype(int))"
    return f"Stan refuses its data: {message}{where}"


# ---- functions of C --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program and its data, of which another process makes the same functions. key: identifies both."""

    mir: str
    data: Mapping[str, Any]
    key: str

    @property
    def stan(self) -> StanModel:
        """Of this process. Raises StanError."""
        made: StanModel = self._once("stan", lambda: StanModel(self.mir, self.data))
        return made

    @property
    def density(self) -> CFunction:
        """bs_log_density_gradient(model, without constants, with Jacobians, position, value, gradient, no message)."""
        made: CFunction = self._once("density", lambda: registered(f"{self.key}_density", self._density))
        return made

    @property
    def columns(self) -> CFunction:
        """All numbers of a draw, of a position and, where it draws random numbers, a seed."""
        made: CFunction = self._once("columns", lambda: registered(f"{self.key}_columns", self._columns))
        return made

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        loaded = _loaded.setdefault(self, {})
        if name not in loaded:
            loaded[name] = make()
        return loaded[name]

    def _density(self) -> CFunction:
        stan = self.stan
        assert stan.handle is not None
        position = ("float64", (stan.dimension,))
        return CFunction(
            key=f"{self.key}_density",
            address=stan.address("bs_log_density_gradient"),
            inputs=(position,),
            outputs=(("float64", ()), position),
            without_result=(-np.inf, 0.0),
            before=(stan.handle, 1, 1),
            after=(0,),
            gives_gradient=True,
            keeps=stan,
            for_xla=for_jax,
        )

    def _columns(self) -> CFunction:
        stan = self.stan
        assert stan.handle is not None
        position = ("float64", (stan.dimension,))
        outputs = (("float64", (len(stan.names(True, True)),)),)
        call: dict[str, Any] = {
            "address": stan.address("bs_param_constrain"),
            "inputs": (position,),
            "before": (stan.handle, 1, 1),
            "after": (any_generator(), 0),
            "keeps": stan,
        }
        if draws_numbers(self.mir):
            from batchnuts.bridges.stan.draw_code import LIBRARY, columns_code  # LLVM is loaded where it is needed

            code = columns_code()
            call = {
                "address": code.address("columns"),
                "inputs": (position, ("uint32", (2,))),
                "before": (stan.handle,),
                "after": tuple(map(stan.address, LIBRARY)),
                "keeps": (stan, code),
            }
        return CFunction(key=f"{self.key}_columns", outputs=outputs, without_result=(np.nan,), for_xla=for_jax, **call)


_loaded: WeakKeyDictionary[Compiled, dict[str, Any]] = WeakKeyDictionary()
"""What this process has made of each; not among its attributes, by which a changed model is found."""


@dataclass(frozen=True, eq=False)
class LogDensity:
    """The log-density of a position, of any library that can call a function of C."""

    compiled: Compiled

    def __call__(self, position: Any) -> Any:
        """[dimension] -> scalar, float64."""
        return self.with_gradient(position)[0]

    def with_gradient(self, position: Any) -> tuple[Any, Any]:
        """[dimension] -> (scalar, [dimension]), float64."""
        value, gradient = library_of(position).call_c((position,), self.compiled.density.key)
        return value, gradient


# ---- what a draw gives -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """The variables of a draw, by the role that they have."""

    roles: Mapping[str, Sequence[Block]]


def _layout(title: str, stan: StanModel, log_likelihood: Sequence[str], predictive: Sequence[str]) -> Layout:
    before, names = len(stan.names(True, False)), stan.names(True, True)
    roles: dict[str, list[Block]] = {"generated": blocks_of(names[:before])}
    for block in blocks_of(names[before:], before):
        role = "generated"
        if _is_among(block.name, log_likelihood):
            role = "log_likelihood"
        elif _is_among(block.name, predictive):
            role = "predictive"
        roles.setdefault(role, []).append(block)
    names_in_files(title, "variable", [block.name for blocks in roles.values() for block in blocks])
    return Layout(roles)


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, eq=False)
class Columns:
    """All variables of a draw: a function of its position and a seed to a dict by role."""

    compiled: Compiled
    layout: Layout

    def __call__(self, position: Any, seed: Any) -> dict[str, dict[str, Any]]:
        """[dimension], uint32[2] -> name -> array by role."""
        library = library_of(position)
        inputs = (library.cast(position, "float64"), seed)[: len(self.compiled.columns.inputs)]
        (numbers,) = library.call_c(inputs, self.compiled.columns.key)

        def part(block: Block) -> Any:
            places = block.places
            if not block.shape:
                return library.item(numbers, (int(places),))
            if block.is_in_order:
                first = int(places.reshape(-1)[0])
                return library.reshape(library.item(numbers, (slice(first, first + places.size),)), block.shape)
            return library.reshape(library.gather(numbers, places.reshape(-1), 0), block.shape)

        return {role: {block.name: part(block) for block in blocks} for role, blocks in self.layout.roles.items()}


@dataclass(frozen=True, eq=False)
class Rejection:
    """What Stan says of a position that it rejects."""

    compiled: Compiled

    def __call__(self, position: NDArray[Any]) -> str:
        """[dimension] to a sentence, or to nothing."""
        try:
            self.compiled.stan.log_density(position)
        except StanError as error:
            return f"Stan says: {str(error).rstrip('.')}."
        return ""


@dataclass(frozen=True, eq=False)
class Unconstrained:
    """The position that values of the program's parameters make."""

    compiled: Compiled
    blocks: Sequence[Block]

    def __call__(self, values: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """name -> array to [dimension]. Raises SupportError."""
        numbers = np.empty(sum(block.places.size for block in self.blocks))
        for block in self.blocks:
            numbers[block.places] = values[block.name]
        try:
            return self.compiled.stan.position(numbers)
        except StanError as error:
            raise SupportError(f"Stan refuses them: {str(error).rstrip('.')}") from None


@dataclass(frozen=True, eq=False)
class Constrained:
    """The values of the program's parameters at a position."""

    compiled: Compiled
    blocks: Sequence[Block]

    def __call__(self, position: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """[dimension] to name -> array."""
        numbers = self.compiled.stan.parameters(position)
        return {block.name: numbers[block.places] for block in self.blocks}


def _parameters(compiled: Compiled) -> NamedParameters:
    """Those of the program, under their names."""
    blocks = blocks_of(compiled.stan.names(False, False))
    free_names = tuple(map(index_from_0, compiled.stan.free_names()))
    shapes = {block.name: block.shape for block in blocks}
    return NamedParameters(shapes, Unconstrained(compiled, blocks), free_names, Constrained(compiled, blocks))


def _data(values: Mapping[str, Any], predicted: Sequence[Block]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data that are predicted (`y` where there is `y_rep`), and others; of arrays of numbers."""
    stems = {block.name.rpartition("_")[0] for block in predicted}
    observed: dict[str, Any] = {}
    constant: dict[str, Any] = {}
    for name, value in values.items():
        try:
            array = np.asarray(value)
        except ValueError:
            continue
        if array.dtype.kind in "if" and array.size:
            (observed if name in stems else constant)[name] = array
    return observed, constant

"""Expressions of a program's MIR: what is known is computed now by NumPy, the rest traced by JAX.

An expression gives a value, perhaps in lanes (lanes.py). A function of the program's is executed by the statements of
its body (interpret.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from batchnuts.bridges.stan.dependence import TARGET
from batchnuts.bridges.stan.functions import solvers
from batchnuts.bridges.stan.functions.containers import SIZES
from batchnuts.bridges.stan.functions.table import TABLE
from batchnuts.bridges.stan.lanes import (
    Index,
    Lanes,
    NotTranslated,
    Ragged,
    Value,
    apply,
    deepest,
    element,
    known_value,
)
from batchnuts.bridges.stan.mir import Expr, Function

MOST_CALLS = 3_000
"""Functions of parameters that are traced; each takes a part of a millisecond, and longer to compile."""


@dataclass
class Variable:
    """A variable of a program: its value now, and the lanes in which it was declared."""

    value: Value
    home: Lanes | None


@dataclass
class Evaluator(ABC):
    """Values of expressions, where variables have values. variables: those that are there before."""

    functions: Mapping[str, Sequence[Function]]
    variables: dict[str, Variable]
    lanes: Lanes | None = None
    """Those of the loop and branch that is executed."""
    jacobian: list[Any] = field(default_factory=list)
    """Logarithms of the transforms' Jacobians."""
    calls: int = 0
    """Functions of parameters so far."""

    @abstractmethod
    def run_function(self, function: Function, values: Sequence[Value]) -> Value:
        """What a function of the program's gives, in its own variables."""

    def value(self, expression: Expr) -> Value:
        """The value of an expression."""
        match expression.kind:
            case "Var":
                return self._variable(expression.name)
            case "LitInt" | "LitReal":
                return known_value(expression.value)
            case "LitStr":
                return known_value(0)
            case "Promotion":
                return self.value(expression.arguments[0])
            case "Indexed":
                base, *indices = expression.arguments
                value = self.value(base)
                return element(value, self.indices_of(indices, value.shape)) if indices else value
            case "TernaryIf":
                return self._ternary(*expression.arguments)
            case "EOr" | "EAnd":
                return self._logical(expression)
            case "FunApp":
                return self._function(expression)
        raise NotTranslated(f"an expression of the kind {expression.kind}")

    def _variable(self, name: str) -> Value:
        value = self.variables[name].value
        branch = self.lanes
        while branch is not None and value.lanes is not None and branch is not value.lanes:
            if branch.is_branch:  # what other lanes have may be outside of a function's domain
                return Value(value.rows(branch), branch)
            branch = branch.parent
        return value

    def _ternary(self, condition: Expr, first: Expr, second: Expr) -> Value:
        decision = self.value(condition)
        if decision.is_known and decision.lanes is None:
            return self.value(first if decision.array != 0 else second)
        return apply(chosen, [decision, self.value(first), self.value(second)])

    def _logical(self, expression: Expr) -> Value:
        left = self.value(expression.arguments[0])
        is_or = expression.kind == "EOr"
        if left.is_known and left.lanes is None and (left.array != 0) == is_or:
            return known_value(int(is_or))
        right = self.value(expression.arguments[1])
        name = "logical_or" if is_or else "logical_and"
        return apply(
            lambda m, x, y: m.np.where(getattr(m.np, name)(x != 0, y != 0), 1, 0), [left, right], elementwise=True
        )

    def indices_of(self, indices: Sequence[Expr], shape: tuple[int, ...]) -> list[Index]:
        """Places from 0 of Stan's indices; shape: of what is indexed."""
        found = []
        for index, extent in zip(indices, shape, strict=False):
            arguments = [self.value(argument) for argument in index.arguments]
            match index.name:
                case "IndexSingle" | "IndexMulti":
                    places = apply(lambda m, i: m.np.asarray(i) - 1, arguments, elementwise=True)
                case "IndexAll":
                    places = known_value(np.arange(extent))
                case "IndexUpfrom":
                    places = _range(arguments[0], known_value(extent))
                case "IndexBetween":
                    places = _range(*arguments)
                case name:
                    raise NotTranslated(f"the index {name}")
            if places.is_known:
                array = np.asarray(places.array)
                if array.dtype.kind == "f":
                    array = array.astype(int)
                if array.size and not (array.min() >= 0 and array.max() < extent):
                    raise NotTranslated(f"an index outside of {extent} elements")
                places = Value(array, places.lanes)
            else:
                places = Value(jnp.asarray(places.array).astype(int), places.lanes)
            found.append(Index(places))
        return found

    def _function(self, expression: Expr) -> Value:
        name = expression.name
        if expression.library == "UserDefined":
            return self.call_function(name, expression.arguments)
        if name in ("reduce_sum", "reduce_sum_static"):
            return self._reduce_sum(expression)
        if name == "map_rect":
            return self._map_rect(expression)
        if name.startswith(("integrate_ode_", "ode_")):
            return self._ode(expression)
        if name == "target":
            jacobian = Value(sum(self.jacobian, jnp.asarray(0.0)))
            return apply(plus, [self.variables[TARGET].value, jacobian], elementwise=True)
        entry = TABLE.get(name)
        if entry is None and name not in SIZES and name not in PARTS:
            raise NotTranslated(f"the function {name}")
        values = [self.value(argument) for argument in expression.arguments]
        if name in SIZES:
            return known_value(SIZES[name](expression.arguments[0].leaf, values[0].shape))
        if name in PARTS:
            whole, *places = values
            return element(whole, PARTS[name](whole.shape, *places))
        assert entry is not None
        call = entry.call
        if not all(value.is_known for value in values):
            self.calls += 1
            if self.calls > MOST_CALLS:
                raise NotTranslated(f"its length, more than {MOST_CALLS:,} calls of functions")
        if entry.typed:
            leaves = tuple(argument.leaf if not argument.depth else "Array" for argument in expression.arguments)
            call = _with_leaves(call, leaves)
        return apply(call, values, elementwise=entry.elementwise, needs_known=entry.needs_known)

    def call_function(self, name: str, arguments: Sequence[Expr]) -> Value:
        """A function of the program's, in its own variables."""
        values = [self.value(argument) for argument in arguments]
        candidates = [f for f in self.functions.get(name, ()) if len(f.parameters) == len(arguments)]
        types = [argument.type for argument in arguments]
        function = min(candidates, key=lambda f: sum(a != b for a, b in zip(f.types, types)), default=None)
        if function is None:
            raise NotTranslated(f"the function {name}")
        return self.run_function(function, values)

    def _reduce_sum(self, expression: Expr) -> Value:
        """Its serial meaning: the function of the whole."""
        function, whole, *others = expression.arguments
        if expression.name == "reduce_sum" or others:
            others = others[1:]  # the grain size
        values = [self.value(argument) for argument in (whole, *others)]
        count = values[0].shape[0]
        begin, end = known_value(1), known_value(count)
        candidates = self.functions.get(function.name, ())
        if not candidates:
            raise NotTranslated("reduce_sum of another function")
        return self.run_function(candidates[0], [values[0], begin, end, *values[1:]])

    def _map_rect(self, expression: Expr) -> Value:
        """Its serial meaning: what the function gives of each shard, one after another."""
        function, shared, *of_shards = expression.arguments
        common, parts = self.value(shared), [self.value(argument) for argument in of_shards]
        if not (candidates := self.functions.get(function.name, ())):
            raise NotTranslated("map_rect of another function")
        results = [
            self.run_function(candidates[0], [common, *(element(part, [Index(known_value(shard))]) for part in parts)])
            for shard in range(parts[0].shape[0])
        ]
        return apply(lambda m, *rows: m.np.concatenate([m.np.asarray(row) for row in rows]), results)

    def _ode(self, expression: Expr) -> Value:
        """ode_METHOD[_tol](f, y0, t0, ts, ...), and integrate_ode_METHOD with its three arguments of f."""
        if not solvers.is_possible():
            raise NotTranslated(f"the function {expression.name}")
        name, is_old = expression.name.removeprefix("integrate_"), expression.name.startswith("integrate_")
        method = name.removeprefix("ode_").removesuffix("_tol")
        if method not in solvers.DEFAULTS:
            raise NotTranslated(f"the function {expression.name}")
        functions = self.functions.get(expression.arguments[0].name)
        if functions is None:
            raise NotTranslated(f"the function {expression.arguments[0].name}")
        start, begin, times, *others = [self.value(argument) for argument in expression.arguments[1:]]
        tolerances: Any = solvers.DEFAULTS[method]
        if is_old:
            others, given = others[:3], others[3:]
        elif method == solvers.ADJOINT:
            forward, absolute, *_ = others
            given, others = [forward, apply(lambda m, x: m.np.min(x), [absolute]), others[6]], others[11:]
        else:
            given, others = (others[:3], others[3:]) if name.endswith("_tol") else ([], others)
        if given:
            tolerances = tuple(value.array for value in given)
        is_known = [value.is_known and value.lanes is None for value in others]
        fixed = [value for value, own in zip(others, is_known) if own]

        def slope(t: Any, y: Any, arguments: tuple[Any, ...]) -> Any:
            rest, known_ones = iter(arguments), iter(fixed)
            values = [next(known_ones) if own else Value(next(rest)) for own in is_known]
            outside, self.lanes = self.lanes, None
            try:
                result = self.run_function(functions[0], [Value(t), Value(y), *values])
            finally:
                self.lanes = outside
            return jnp.asarray(result.array)

        def solve(m: Any, start: Any, begin: Any, times: Any, *arguments: Any) -> Any:
            begin, times = jnp.asarray(begin) * 1.0, jnp.asarray(times) * 1.0
            return solvers.solution(method, slope, jnp.asarray(start) * 1.0, begin, times, arguments, tolerances)

        varying = [value for value, own in zip(others, is_known) if not own]
        return apply(solve, [start, begin, times, *varying])


def plus(m: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return m.np.add(x, y)


def chosen(m: Any, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition is not 0, else y."""
    return m.np.where(m.np.asarray(condition) != 0, x, y)


def _with_leaves(call: Callable[..., Any], leaves: tuple[str, ...]) -> Callable[..., Any]:
    return lambda m, *arguments: call(m, leaves, *arguments)


def _range(low: Value, high: Value) -> Value:
    """Places from low to high, both from 1, of one length in all lanes."""
    if not (low.is_known and high.is_known):
        raise NotTranslated("a range of elements that depends on parameters")
    lanes = deepest(low, high)
    if lanes is None:
        return known_value(np.arange(int(low.array) - 1, int(high.array)))
    first, last = np.asarray(low.rows(lanes)), np.asarray(high.rows(lanes))
    lengths = np.unique(last - first)
    if len(lengths) != 1:
        raise Ragged(lanes, last - first)
    return Value(first[:, None] - 1 + np.arange(max(int(lengths[0]) + 1, 0)), lanes)


def _one(place: Value) -> Index:
    return Index(apply(lambda m, i: m.np.asarray(i) - 1, [place], elementwise=True))


def _some(first: Value, count: Value) -> Index:
    last = apply(lambda m, i, n: m.np.asarray(i) + n - 1, [first, count], elementwise=True)
    return Index(_range(first, last))


def _from_end(extent: int, count: Value) -> Index:
    first = apply(lambda m, n: extent + 1 - m.np.asarray(n), [count], elementwise=True)
    return Index(_range(first, known_value(extent)))


def _all(extent: int) -> Index:
    return Index(known_value(np.arange(extent)))


PARTS: dict[str, Callable[..., list[Index]]] = {
    "head": lambda shape, n: [_some(known_value(1), n)],
    "tail": lambda shape, n: [_from_end(shape[0], n)],
    "segment": lambda shape, i, n: [_some(i, n)],
    "sub_col": lambda shape, i, j, n: [_some(i, n), _one(j)],
    "block": lambda shape, i, j, n, k: [_some(i, n), _some(j, k)],
    "row": lambda shape, i: [_one(i)],
    "col": lambda shape, j: [_all(shape[0]), _one(j)],
}
"""Functions that give elements of their first argument: the places of these, of its shape and the other arguments."""

"""The density of a Stan program as a function of JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from batchnuts.autobatch.machine import tensor_library
from batchnuts.bridges.stan.dependence import TARGET
from batchnuts.bridges.stan.evaluate import Variable
from batchnuts.bridges.stan.interpret import interpreter_of
from batchnuts.bridges.stan.lanes import NotTranslated, known_value
from batchnuts.bridges.stan.mir import Expr, StanProgram, Stmt

MOST_EQUATIONS = 5_000
"""Of a jaxpr: XLA takes minutes for more."""


def translated(program: StanProgram, data: Mapping[str, Any], dimension: int) -> Callable[[Any], Any]:
    """The log-density of a position [dimension]. Raises NotTranslated."""
    known = _prepared(program, data)

    def log_density(position: Any) -> Any:
        interpreter = interpreter_of(program, {name: Variable(v.value, v.home) for name, v in known.items()})
        interpreter.position = jnp.asarray(position)
        interpreter.run(program.log_prob)
        return sum(interpreter.jacobian, jnp.asarray(interpreter.variables[TARGET].value.array))

    library = tensor_library("jax")
    try:
        traced = library.call(jax.make_jaxpr(jax.value_and_grad(log_density)), library.tensor(np.zeros(dimension)))
    except ValueError as error:  # of the incomplete beta function, say
        raise NotTranslated(f"a derivative that JAX lacks ({error})") from error
    if len(traced.jaxpr.eqns) > MOST_EQUATIONS:
        raise NotTranslated(f"its length, {len(traced.jaxpr.eqns):,} operations")
    return log_density


def _prepared(program: StanProgram, data: Mapping[str, Any]) -> dict[str, Variable]:
    """Data, and transformed data."""
    interpreter = interpreter_of(program, {})
    for name, type_ in program.inputs:
        shape = tuple(interpreter.value(size).integer() for size in type_.sizes)
        array = np.asarray(_numbers(data[name]), int if type_.leaf == "SInt" else float).reshape(shape)
        interpreter.variables[name] = Variable(known_value(array), None)
    inputs = {name for name, _ in program.inputs}
    for statement in program.prepare_data:
        if statement.name in inputs or (_assigned(statement) and _assigned(statement) <= inputs | {"pos__"}):
            continue  # how Stan reads them
        if _draws(statement):
            raise NotTranslated("random numbers in transformed data")
        interpreter.statement(statement)
    return {name: variable for name, variable in interpreter.variables.items() if name != TARGET}


def _numbers(value: Any) -> Any:
    """Stan's JSON, which has texts for what JSON lacks."""
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return float(value) if isinstance(value, str) else value


def _assigned(statement: Stmt) -> set[str]:
    """What a statement writes from outside of it."""
    names = {statement.name} if statement.kind == "Assignment" else set()
    declared = {inner.name for inner in statement.body if inner.kind == "Decl"}
    for inner in statement.body:
        names |= _assigned(inner)
    return names - declared


def _draws(statement: Stmt) -> bool:
    def within(expression: Expr | None) -> bool:
        return expression is not None and (expression.name.endswith("_rng") or any(map(within, expression.arguments)))

    return within(statement.value) or any(map(_draws, statement.body))

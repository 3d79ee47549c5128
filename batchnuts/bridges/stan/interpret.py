"""A program's density by interpretation of its MIR.

    statement: changes variables, adds to the target                expression: gives a value (evaluate.py)

A loop whose passes are independent of each other (dependence.py) is interpreted once, for all passes as lanes. Of
others the passes are interpreted one after another, if there are few, or else are a scan of JAX's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.bridges.stan.dependence import TARGET, added, analyzed
from batchnuts.bridges.stan.evaluate import Evaluator, Variable, chosen, plus
from batchnuts.bridges.stan.lanes import (
    Lanes,
    NotTranslated,
    NotVectorized,
    Ragged,
    Value,
    apply,
    deepest,
    is_around,
    known_value,
    only_branches,
    replaced,
    total,
    with_elements,
)
from batchnuts.bridges.stan.mir import Function, SizedType, StanProgram, Stmt
from batchnuts.bridges.stan.transforms import constrained, free_size

MOST_PASSES = 16
"""Passes of a dependent loop that are interpreted one after another; more are a scan."""

MOST_SHAPES = 64
"""Shapes that the arrays of an independent loop's passes may have."""

MOST_KNOWN = 10_000_000
"""Passes of a loop over known values."""


@dataclass
class Result:
    """That control has left a body: what a function returns, or that a loop is left, or its pass."""

    value: Value | None = None
    kind: str = "Return"
    """Return, Break or Continue."""


@dataclass
class Interpreter(Evaluator):
    """Statements of one section."""

    position: Any = None
    """[dimension]: from which parameters are read."""
    read: int = 0
    """Numbers of it that were read."""
    depth: int = 0
    """Of calls of functions."""

    # ---- statements --------------------------------------------------------------------------------------------------

    def run(self, statements: Sequence[Stmt]) -> Result | None:
        """Execute statements; what a `return` among them gives."""
        for number, statement in enumerate(statements):
            if statement.kind == "IfElse" and (kinds := _jumps(statement)) and self._decides_by_lane(statement):
                rest = statements[number + 1 :]
                if "Return" in kinds:
                    return self._returning(statement, rest)
                self._breaking(statement, rest)
                return None
            if (result := self.statement(statement)) is not None:
                return result
        return None

    def statement(self, statement: Stmt) -> Result | None:
        """Execute one."""
        match statement.kind:
            case "Decl":
                self._declare(statement)
            case "Assignment":
                self._assign(statement)
            case "TargetPE":
                assert statement.value is not None
                self._add_to_target(self._summed(self.value(statement.value)))
            case "Block" | "SList":
                return self.run(statement.body)
            case "For":
                return self._loop(statement)
            case "IfElse":
                return self._branch(statement)
            case "While":
                return self._while(statement)
            case "Break" | "Continue" as kind:
                return Result(None, kind)
            case "Return":
                return Result(None if statement.value is None else self.value(statement.value))
            case "NRFunApp":
                self._call(statement)
            case "Skip":
                pass
            case kind:
                raise NotTranslated(f"a statement of the kind {kind}")
        return None

    def _declare(self, statement: Stmt) -> None:
        if statement.value is not None and statement.value.name == "FnReadParam":
            self.variables[statement.name] = Variable(self._parameter(statement), self.lanes)
            return
        if statement.value is not None:
            value = self.value(statement.value)
        else:
            value = self._undefined(statement.type)
        self.variables[statement.name] = Variable(value, self.lanes)

    def _undefined(self, type_: SizedType) -> Value:
        shape = tuple(self.value(size).integer() for size in type_.sizes)
        if type_.leaf == "SInt":
            return known_value(np.zeros(shape, int))
        return known_value(np.full(shape, np.nan))

    def _parameter(self, statement: Stmt) -> Value:
        transform, type_ = statement.transform, statement.type
        kind = "Identity" if transform is None else transform.kind
        sizes = tuple(self.value(size).integer() for size in type_.sizes)
        rank = {"SVector": 1, "SRowVector": 1, "SMatrix": 2}.get(type_.leaf, 0)
        arrays, own = sizes[: len(sizes) - rank], sizes[len(sizes) - rank :]
        bounds = [self.value(bound).array for bound in (transform.arguments if transform is not None else ())]
        count = math.prod(arrays) * free_size(kind, own)
        part = self.position[self.read : self.read + count]
        self.read += count
        if kind == "Unsupported":
            raise NotTranslated(f"the constraint of {statement.name!r}")
        value, log_jacobian = constrained(kind, part, arrays, own, bounds)
        self.jacobian.append(log_jacobian)
        return Value(value)

    def _assign(self, statement: Stmt) -> None:
        variable, expression = self.variables[statement.name], statement.value
        assert expression is not None
        inner = self.lanes is not variable.home
        term = added(statement) if inner else None
        if term is not None:
            value = self.value(term[0])
            self._accumulate(variable, statement, _negated(value) if term[1] else value)
            return
        value = self.value(expression)
        if statement.indices:
            indices = self.indices_of(statement.indices, variable.value.shape)
            variable.value = with_elements(variable.value, variable.home, indices, value, self.lanes, adds=False)
        elif inner:
            assert self.lanes is not None
            if not only_branches(self.lanes, variable.home):
                raise NotVectorized
            variable.value = replaced(variable.value, variable.home, value, self.lanes)
        else:
            variable.value = value

    def _accumulate(self, variable: Variable, statement: Stmt, value: Value) -> None:
        """Add what each lane adds."""
        assert self.lanes is not None
        if statement.indices:
            indices = self.indices_of(statement.indices, variable.value.shape)
            variable.value = with_elements(variable.value, variable.home, indices, value, self.lanes, adds=True)
            return
        sums = total(value, self.lanes, variable.home)
        variable.value = apply(plus, [variable.value, sums], elementwise=True)

    def _add_to_target(self, value: Value) -> None:
        target = self.variables[TARGET]
        if self.lanes is not target.home:
            assert self.lanes is not None
            value = total(value, self.lanes, target.home)
        target.value = apply(plus, [target.value, value], elementwise=True)

    def _summed(self, value: Value) -> Value:
        return apply(lambda m, x: m.np.sum(m.np.asarray(x)), [value]) if value.shape else value

    def _call(self, statement: Stmt) -> None:
        name = statement.name
        if name.startswith(("FnCheck", "FnValidate", "FnPrint", "check_")):
            return
        if name == "FnReject":
            self._add_to_target(known_value(-math.inf))
            return
        if name in self.functions:
            self.call_function(name, statement.arguments)
            return
        raise NotTranslated(f"the statement {name}")

    # ---- control -----------------------------------------------------------------------------------------------------

    def _branch(self, statement: Stmt) -> Result | None:
        assert statement.value is not None
        condition, branches = self.value(statement.value), statement.body
        if not condition.is_known:
            self._both(condition, branches)
            return None
        if condition.lanes is None:
            if condition.array != 0:
                return self.statement(branches[0])
            return self.statement(branches[1]) if len(branches) > 1 else None
        outside = self.lanes
        assert outside is not None
        holds = condition.rows(outside) != 0
        for takes, branch in zip((holds, ~holds), branches, strict=False):
            if not takes.any():
                continue
            self.lanes = outside if takes.all() else Lanes(outside, np.flatnonzero(takes), is_branch=True)
            if self.statement(branch) is not None:
                raise NotVectorized
            self.lanes = outside
        return None

    def _both(self, condition: Value, branches: Sequence[Stmt]) -> None:
        """Both branches, and a choice of what they have written, by a condition that depends on parameters."""
        before = {name: Variable(v.value, v.home) for name, v in self.variables.items()}
        results = []
        for branch in (*branches, *[Stmt("Skip")] * (2 - len(branches))):
            self.variables = {name: Variable(v.value, v.home) for name, v in before.items()}
            if self.statement(branch) is not None:
                raise NotTranslated("`return` by a condition that depends on parameters")
            results.append(self.variables)
        self.variables = before
        for name, variable in before.items():
            first, second = (result[name].value for result in results)
            if first is second:
                continue
            if not is_around(condition.lanes, variable.home):  # a sum over lanes has terms of both branches
                raise NotVectorized
            variable.value = apply(chosen, [condition, first, second])

    def _decides_by_lane(self, statement: Stmt) -> bool:
        """Whether lanes, or parameters, decide which branch is taken."""
        assert statement.value is not None
        condition = self.value(statement.value)
        return not condition.is_known or condition.lanes is not None

    def _breaking(self, statement: Stmt, rest: Sequence[Stmt]) -> None:
        """Branches of which some leave the loop's only pass, with what follows them, of those that do not."""
        branches = [*statement.body, *[Stmt("Skip")] * (2 - len(statement.body))]
        whole = []
        for branch in branches:
            body = branch.body if branch.kind in ("Block", "SList") else (branch,)
            if body and body[-1].kind in ("Break", "Continue") and not any(map(_jumps, body[:-1])):
                whole.append(Stmt("Block", body=body[:-1]))
            elif not _jumps(branch):
                whole.append(Stmt("Block", body=(branch, *rest)))
            else:
                raise NotTranslated("`break` within a branch of a branch")
        self._branch(replace(statement, body=tuple(whole)))

    def _returning(self, statement: Stmt, rest: Sequence[Stmt]) -> Result:
        """Each branch with what follows it, and a choice of the two results."""
        assert statement.value is not None
        condition = self.value(statement.value)
        branches = [*statement.body, *[Stmt("Skip")] * (2 - len(statement.body))]
        before, values = self.variables, []
        for branch in branches:
            self.variables = {name: Variable(v.value, v.home) for name, v in before.items()}
            result = self.run([branch, *rest])
            if result is None or result.value is None or result.kind != "Return":
                raise NotTranslated("a function that returns nothing on a path")
            if self.variables[TARGET].value is not before[TARGET].value:
                raise NotTranslated("a function that adds to the target and returns by a condition")
            values.append(result.value)
        self.variables = before
        return Result(apply(chosen, [condition, *values]))

    def _while(self, statement: Stmt) -> Result | None:
        assert statement.value is not None
        for _ in range(MOST_KNOWN):
            condition = self.value(statement.value)
            if not condition.is_known:
                raise NotTranslated("a `while` whose condition depends on parameters")
            if condition.lanes is not None:
                raise NotVectorized
            if condition.array == 0:
                return None
            result = self.run(statement.body)
            if result is not None and result.kind != "Continue":
                return None if result.kind == "Break" else result
        raise NotTranslated("a `while` of many passes")

    def _loop(self, statement: Stmt) -> Result | None:
        low, high = map(self.value, statement.arguments)
        if not (low.is_known and high.is_known):
            raise NotTranslated("a loop whose bounds depend on parameters")
        loop = analyzed(statement.body, statement.name)
        if loop.independent:
            saved = {name: Variable(v.value, v.home) for name, v in self.variables.items()}
            lanes, jacobian = self.lanes, len(self.jacobian)
            try:
                self._as_lanes(statement, low, high, loop.private)
                return None
            except NotVectorized:
                self.variables, self.lanes = saved, lanes
                del self.jacobian[jacobian:]
        return self._one_after_another(statement, low, high, sorted(loop.written))

    def _as_lanes(self, statement: Stmt, low: Value, high: Value, private: frozenset[str]) -> None:
        """All passes at once."""
        outside = self.lanes
        around = deepest(low, high)
        first, last = (np.asarray(v.array if outside is None else v.rows(outside)).reshape(-1) for v in (low, high))
        if outside is not None and around is None:
            first, last = (np.broadcast_to(x[:1], outside.count) for x in (first, last))
        counts = np.maximum(last - first + 1, 0)
        of_parent = np.repeat(np.arange(len(counts)), counts)
        if not len(of_parent):
            return
        begins = np.cumsum(counts) - counts
        numbers = np.arange(len(of_parent)) - begins[of_parent] + first[of_parent]
        self._run_lanes(statement, Lanes(outside, of_parent), numbers, private)

    def _run_lanes(self, statement: Stmt, lanes: Lanes, numbers: NDArray[np.int64], private: frozenset[str]) -> None:
        """The passes with these numbers at once; those whose arrays have one shape, where shapes differ."""
        saved = {name: Variable(v.value, v.home) for name, v in self.variables.items()}
        try:
            self._run_alike(statement, lanes, numbers, private)
        except Ragged as ragged:
            kinds = np.unique(ragged.kinds)
            if ragged.lanes is not lanes or private or len(kinds) > MOST_SHAPES:
                raise
            self.variables = saved
            for kind in kinds:
                chosen = np.flatnonzero(ragged.kinds == kind)
                self.lanes = lanes.parent
                self._run_lanes(statement, Lanes(lanes.parent, lanes.of_parent[chosen]), numbers[chosen], private)

    def _run_alike(self, statement: Stmt, lanes: Lanes, numbers: NDArray[np.int64], private: frozenset[str]) -> None:
        outside, names = self.lanes, set(self.variables)
        self.lanes = lanes
        outer = {name: self.variables[name] for name in private if name in names}
        for name, variable in outer.items():
            self.variables[name] = Variable(variable.value, lanes)
        hidden = self.variables.get(statement.name)
        self.variables[statement.name] = Variable(Value(numbers, lanes), lanes)
        if self.run(statement.body) is not None:
            raise NotVectorized
        self.lanes = outside
        for name, variable in outer.items():
            mine = self.variables[name].value
            self.variables[name] = Variable(replaced(variable.value, variable.home, mine, lanes), variable.home)
        self._forget(names, statement.name, hidden)

    def _forget(self, names: set[str], loop_variable: str, hidden: Variable | None) -> None:
        """Variables that a loop has declared are gone."""
        for name in set(self.variables) - names:
            del self.variables[name]
        if hidden is not None:
            self.variables[loop_variable] = hidden

    def _one_after_another(self, statement: Stmt, low: Value, high: Value, written: Sequence[str]) -> Result | None:
        outside, names = self.lanes, set(self.variables)
        hidden = self.variables.get(statement.name)
        first, last = int(np.min(low.array)), int(np.max(high.array))
        uniform = deepest(low, high) is None
        if uniform and last - first >= MOST_PASSES and self._is_unknown(statement, written):
            try:
                self._scan(statement, first, last, written)
                self._forget(names, statement.name, hidden)
                return None
            except _NotScanned:
                pass
        for number in range(first, last + 1):
            self.variables[statement.name] = Variable(known_value(number), self.lanes)
            if not uniform:
                assert outside is not None
                inside = (low.rows(outside) <= number) & (number <= high.rows(outside))
                if not inside.any():
                    continue
                self.lanes = outside if inside.all() else Lanes(outside, np.flatnonzero(inside), is_branch=True)
            if first < last and self._breaks_by_lane(statement):
                raise NotTranslated("`break` by a condition that depends on parameters, or on the pass")
            result = self.run(statement.body)
            if result is not None and not uniform:
                raise NotVectorized
            if result is not None and result.kind != "Continue":
                self._forget(names, statement.name, hidden)
                return None if result.kind == "Break" else result
            self.lanes = outside
        self._forget(names, statement.name, hidden)
        return None

    def _breaks_by_lane(self, statement: Stmt) -> bool:
        """Whether a loop of several passes may be left by some lanes alone."""
        for inner in statement.body:
            if inner.kind == "IfElse" and _jumps(inner) - {"Return"} and self._decides_by_lane(inner):
                return True
            if inner.kind in ("Block", "SList") and self._breaks_by_lane(inner):
                return True
        return False

    def _is_unknown(self, statement: Stmt, written: Sequence[str]) -> bool:
        """Whether a loop computes anything that depends on parameters: one pass, tried."""
        saved = {name: Variable(v.value, v.home) for name, v in self.variables.items()}
        self.variables[statement.name] = Variable(self.value(statement.arguments[0]), self.lanes)
        try:
            self.run(statement.body)
            return any(not self.variables[name].value.is_known for name in written if name in saved)
        finally:
            self.variables = saved

    def _scan(self, statement: Stmt, first: int, last: int, written: Sequence[str]) -> None:
        """Passes one after another as a scan of JAX's, which carries what they write."""
        carried = [name for name in written if name in self.variables]
        before = {name: Variable(v.value, v.home) for name, v in self.variables.items()}
        lanes, jacobian = self.lanes, len(self.jacobian)

        def carry_of(variables: Mapping[str, Variable]) -> list[Any]:
            arrays = []
            for name in carried:
                value, home = variables[name].value, before[name].home
                array = value.array if home is None else value.rows(home)
                arrays.append(jnp.asarray(array) * 1.0)
            return arrays

        def one(carry: list[Any], number: Any) -> tuple[list[Any], None]:
            self.lanes = lanes
            self.variables = {name: Variable(v.value, v.home) for name, v in before.items()}
            for name, array in zip(carried, carry, strict=True):
                self.variables[name] = Variable(Value(array, before[name].home), before[name].home)
            self.variables[statement.name] = Variable(Value(number), lanes)
            if self.run(statement.body) is not None:
                raise _NotScanned
            return carry_of(self.variables), None

        start = carry_of(before)
        try:
            after, _ = jax.lax.scan(one, start, jnp.arange(first, last + 1))
        except (NotTranslated, NotVectorized, TypeError, IndexError, jax.errors.JAXTypeError) as error:
            self.variables, self.lanes = before, lanes
            del self.jacobian[jacobian:]
            raise _NotScanned from error
        self.variables, self.lanes = before, lanes
        for name, array in zip(carried, after, strict=True):
            home = before[name].home
            self.variables[name] = Variable(Value(array, home), home)

    # ---- functions ---------------------------------------------------------------------------------------------------

    @override
    def run_function(self, function: Function, values: Sequence[Value]) -> Value:
        if self.depth > 100:
            raise NotTranslated(f"the recursion of {function.name}")
        outside = self.variables
        self.variables = {name: Variable(v, self.lanes) for name, v in zip(function.parameters, values, strict=True)}
        self.variables[TARGET] = outside[TARGET]
        self.depth += 1
        try:
            result = self.run(function.body)
        finally:
            self.depth -= 1
        target, self.variables = self.variables[TARGET], outside
        self.variables[TARGET] = target
        return known_value(0) if result is None or result.value is None else result.value


class _NotScanned(Exception):
    """A loop cannot be a scan."""


def _negated(value: Value) -> Value:
    return apply(lambda m, x: -m.np.asarray(x), [value], elementwise=True)


def _jumps(statement: Stmt) -> set[str]:
    """By which kinds of statements control may leave one; those of a loop within stay there, but for `return`."""
    if statement.kind in ("Return", "Break", "Continue"):
        return {statement.kind}
    kinds = {kind for inner in statement.body for kind in _jumps(inner)}
    return kinds & {"Return"} if statement.kind in ("For", "While") else kinds


def interpreter_of(program: StanProgram, variables: dict[str, Variable]) -> Interpreter:
    """One for a section of a program."""
    functions: dict[str, list[Function]] = {}
    for function in program.functions:
        functions.setdefault(function.name, []).append(function)
    return Interpreter(functions, {**variables, TARGET: Variable(known_value(0.0), None)})

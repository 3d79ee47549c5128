"""A program's density by interpretation of its MIR: what is known is computed now by NumPy, the rest traced by JAX.

    statement: changes variables, adds to the target                expression: gives a value (lanes.py)

A loop whose passes are independent of each other (dependence.py) is interpreted once, for all passes as lanes. Of
others the passes are interpreted one after another, if there are few, or else are a scan of JAX's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.stan.dependence import TARGET, added, analyzed
from batchnuts.bridges.stan.functions import solvers
from batchnuts.bridges.stan.functions.containers import SIZES
from batchnuts.bridges.stan.functions.table import TABLE
from batchnuts.bridges.stan.lanes import (
    Index,
    Lanes,
    NotTranslated,
    NotVectorized,
    Ragged,
    Value,
    apply,
    deepest,
    element,
    known_value,
    replaced,
    total,
    with_elements,
)
from batchnuts.bridges.stan.mir import Expr, Function, SizedType, StanProgram, Stmt
from batchnuts.bridges.stan.transforms import constrained, free_size

MOST_PASSES = 16
"""Passes of a dependent loop that are interpreted one after another; more are a scan."""

MOST_SHAPES = 64
"""Shapes that the arrays of an independent loop's passes may have."""

MOST_CALLS = 3_000
"""Functions of parameters that are traced; each takes a part of a millisecond, and longer to compile."""

MOST_KNOWN = 10_000_000
"""Passes of a loop over known values."""


@dataclass
class Variable:
    """A variable of a program: its value now, and the lanes in which it was declared."""

    value: Value
    home: Lanes | None


@dataclass
class Result:
    """That control has left a body: what a function returns, or that a loop is left, or its pass."""

    value: Value | None = None
    kind: str = "Return"
    """Return, Break or Continue."""


@dataclass
class Interpreter:
    """Statements of one section. variables: those that are there before."""

    functions: Mapping[str, Sequence[Function]]
    variables: dict[str, Variable]
    position: Any = None
    """[dimension]: from which parameters are read."""
    read: int = 0
    """Numbers of it that were read."""
    lanes: Lanes | None = None
    jacobian: list[Any] = field(default_factory=list)
    """Logarithms of the transforms' Jacobians."""
    depth: int = 0
    """Of calls of functions."""
    calls: int = 0
    """Functions of parameters so far."""

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
            indices = self._indices(statement.indices, variable.value.shape)
            variable.value = with_elements(variable.value, variable.home, indices, value, self.lanes, adds=False)
        elif inner:
            assert self.lanes is not None
            if not _only_branches(self.lanes, variable.home):
                raise NotVectorized
            variable.value = replaced(variable.value, variable.home, value, self.lanes)
        else:
            variable.value = value

    def _accumulate(self, variable: Variable, statement: Stmt, value: Value) -> None:
        """Add what each lane adds."""
        assert self.lanes is not None
        if statement.indices:
            indices = self._indices(statement.indices, variable.value.shape)
            variable.value = with_elements(variable.value, variable.home, indices, value, self.lanes, adds=True)
            return
        sums = total(value, self.lanes, variable.home)
        variable.value = apply(_plus, [variable.value, sums], elementwise=True)

    def _add_to_target(self, value: Value) -> None:
        target = self.variables[TARGET]
        if self.lanes is not target.home:
            assert self.lanes is not None
            value = total(value, self.lanes, target.home)
        target.value = apply(_plus, [target.value, value], elementwise=True)

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
            self._call_function(name, statement.arguments)
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
        for chosen, branch in zip((holds, ~holds), branches, strict=False):
            if not chosen.any():
                continue
            self.lanes = outside if chosen.all() else Lanes(outside, np.flatnonzero(chosen), is_branch=True)
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
            if not _is_around(condition.lanes, variable.home):  # a sum over lanes has terms of both branches
                raise NotVectorized
            variable.value = apply(_chosen, [condition, first, second])

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
        return Result(apply(_chosen, [condition, *values]))

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

    # ---- expressions -------------------------------------------------------------------------------------------------

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
                return element(value, self._indices(indices, value.shape)) if indices else value
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
        return apply(_chosen, [decision, self.value(first), self.value(second)])

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

    def _indices(self, indices: Sequence[Expr], shape: tuple[int, ...]) -> list[Index]:
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
            return self._call_function(name, expression.arguments)
        if name in ("reduce_sum", "reduce_sum_static"):
            return self._reduce_sum(expression)
        if name.startswith(("integrate_ode_", "ode_")):
            return self._ode(expression)
        if name == "target":
            jacobian = Value(sum(self.jacobian, jnp.asarray(0.0)))
            return apply(_plus, [self.variables[TARGET].value, jacobian], elementwise=True)
        entry, values = TABLE.get(name), [self.value(argument) for argument in expression.arguments]
        if name in SIZES:
            return known_value(SIZES[name](expression.arguments[0].leaf, values[0].shape))
        if name in PARTS:
            whole, *places = values
            return element(whole, PARTS[name](whole.shape, *places))
        if entry is None:
            raise NotTranslated(f"the function {name}")
        call = entry.call
        if not all(value.is_known for value in values):
            self.calls += 1
            if self.calls > MOST_CALLS:
                raise NotTranslated(f"its length, more than {MOST_CALLS:,} calls of functions")
        if entry.typed:
            leaves = tuple(argument.leaf if not argument.depth else "Array" for argument in expression.arguments)
            call = _with_leaves(call, leaves)
        return apply(call, values, elementwise=entry.elementwise, needs_known=entry.needs_known)

    def _call_function(self, name: str, arguments: Sequence[Expr]) -> Value:
        """A function of the program's, in its own variables."""
        values = [self.value(argument) for argument in arguments]
        candidates = [f for f in self.functions.get(name, ()) if len(f.parameters) == len(arguments)]
        types = [argument.type for argument in arguments]
        function = min(candidates, key=lambda f: sum(a != b for a, b in zip(f.types, types)), default=None)
        if function is None:
            raise NotTranslated(f"the function {name}")
        if self.depth > 100:
            raise NotTranslated(f"the recursion of {name}")
        return self._run_function(function, values)

    def _run_function(self, function: Function, values: Sequence[Value]) -> Value:
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
        return self._run_function(candidates[0], [values[0], begin, end, *values[1:]])

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
                result = self._run_function(functions[0], [Value(t), Value(y), *values])
            finally:
                self.lanes = outside
            return jnp.asarray(result.array)

        def solve(m: Any, start: Any, begin: Any, times: Any, *arguments: Any) -> Any:
            begin, times = jnp.asarray(begin) * 1.0, jnp.asarray(times) * 1.0
            return solvers.solution(method, slope, jnp.asarray(start) * 1.0, begin, times, arguments, tolerances)

        varying = [value for value, own in zip(others, is_known) if not own]
        return apply(solve, [start, begin, times, *varying])


class _NotScanned(Exception):
    """A loop cannot be a scan."""


def _plus(m: Any, x: Any, y: Any) -> Any:
    return m.np.add(x, y)


def _negated(value: Value) -> Value:
    return apply(lambda m, x: -m.np.asarray(x), [value], elementwise=True)


def _chosen(m: Any, condition: Any, x: Any, y: Any) -> Any:
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


def _is_around(around: Lanes | None, lanes: Lanes | None) -> bool:
    """Whether lanes are those of a loop, or lie within it."""
    while lanes is not around and lanes is not None:
        lanes = lanes.parent
    return lanes is around


def _only_branches(lanes: Lanes, home: Lanes | None) -> bool:
    """Whether only branches, and no loops, lie between lanes and those around them."""
    inner: Lanes | None = lanes
    while inner is not home:
        if inner is None or not inner.is_branch:
            return False
        inner = inner.parent
    return True


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

"""Every mistake is named at the user's line (marked `# error`), with what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_source import load, marked_line
from mistake import FLOATS, INTS, Mistake, statement
from mistakes import MISTAKES

from batchnuts import autobatch
from batchnuts.autobatch import (
    CompileError,
    LaneInputError,
    TypeConflictError,
    UndefinedVariableError,
    UnsupportedSyntaxError,
    batch,
    ops,
)
from batchnuts.autobatch.backends.registry import has_jax

PATHS = (
    (
        "if n > 1:\n    y = 1\nelif n > -3:\n    y = 2\nif n > 9:\n    x = 1\nx = y  # error",
        "when `n > 1` (line 8) is false and `n > -3` (line 10) is false, no assignment",
    ),
    ("if n > 1 and x < 3:\n    y = 1\nx = y  # error", "when `n > 1` (line 8) is false, no assignment"),
    (
        "for i in range(n):\n    y = i\nx = y  # error",
        "when the `for` loop of line 8 has no iteration left, no assignment",
    ),
    ("for i in ():\n    y = i\nx = y  # error", "when the `for` loop of line 8 has no iteration left, no assignment"),
    (
        "for i, k in enumerate(range(n)):\n    y = i\nx = i  # error",
        "when the `for` loop of line 8 has no iteration left, no",
    ),
    (
        "for i in (n, n):\n    if i > 1:\n        break\n    y = i\nx = y  # error",
        "when `i > 1` (line 9) is true, no assignment",
    ),
    ("while n > 1:\n    n -= 1\n    y = n\nx = y  # error", "when `n > 1` (line 8) is false, no assignment"),
    ("if n > 1 and (y := x) > 2:\n    x = 0\nx = y  # error", "when `n > 1` (line 8) is false, no assignment"),
    ("if n > 1:\n    return 0\nx = y  # error\ny = 1", "when `n > 1` (line 8) is false, no assignment"),
    ("x = y  # error\ny = 1", "before it is assigned: always, no assignment"),
    ("if f(n) > 1:\n    y = 1\nx = y  # error", "when the condition of line 8 is false, no assignment"),
    ("if n > 1:\n    x = 2\nelse:\n    y = 1\nx = y  # error", "when `n > 1` (line 8) is true, no assignment"),
)

CASES = [(mistake, backend) for mistake in MISTAKES for backend in mistake.backends]


@pytest.mark.parametrize(("lines", "message"), PATHS)
def test_an_undefined_variable_names_the_path(lines: str, message: str, tmp_path: Path) -> None:
    module = load(tmp_path, statement("path", lines, "").text)
    with pytest.raises(UndefinedVariableError) as caught:
        module.f.run(*INTS, backend="numpy")
    assert message in str(caught.value)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


@pytest.mark.parametrize(("mistake", "backend"), CASES, ids=[f"{m.name}-{backend}" for m, backend in CASES])
def test_names_the_line_and_the_remedy(mistake: Mistake, backend: str, tmp_path: Path) -> None:
    module = load(tmp_path, mistake.text)
    with pytest.raises(mistake.kind, match=mistake.message) as caught:
        module.f.run(*mistake.inputs, backend=backend, mode="eager")
    source = caught.value.source
    assert source is not None
    assert source.line == marked_line(module)
    assert Path(source.filename) == Path(str(module.__file__))
    assert source.text.endswith("# error")
    assert str(caught.value).startswith(f"{source.filename}:{source.line}:{source.column + 1}\n")


def test_a_type_conflict_names_both_places(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "@batch\ndef f(n):\n    x = n  # first\n    if n > 1:\n        x = 0.5  # error\n    return x\n",
    )
    with pytest.raises(TypeConflictError) as caught:
        module.f.run(*INTS, backend="numpy")
    text = str(caught.value)
    assert f"{module.__file__}:{marked_line(module, '# first')}:9" in text
    assert f"{module.__file__}:{marked_line(module)}:13" in text
    assert "float64*[] here but int64[] at" in text


@pytest.mark.parametrize("name", ["x", "\u03c3"])
def test_the_caret_stands_under_the_mistake(name: str, tmp_path: Path) -> None:
    module = load(tmp_path, f"@batch\ndef f(n):\n    {name} = n; return {name} + nowhere\n")
    with pytest.raises(UndefinedVariableError) as caught:
        module.f.run(*INTS, backend="numpy")
    place, line, caret, *_ = str(caught.value).splitlines()
    assert line[caret.index("^") :] == "nowhere"
    assert place.endswith(f":{caret.index('^') - 3}")


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_the_users_own_exception_is_the_cause(backend: str, tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "class Mine(Exception):\n    pass\n"
        "def helper(n):\n    raise Mine('what I meant')\n"
        "@batch\ndef f(n):\n    return n + helper(n)  # error\n",
    )
    with pytest.raises(CompileError, match=r"(?s)`n \+ helper\(n\)` failed .* n: int64.*Mine: what I meant") as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    assert isinstance(caught.value.__cause__, module.Mine)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_a_failing_helper_is_named_with_its_own_line(backend: str, tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "def inner(n):\n    raise ValueError('too far in')  # raised\n"
        "def helper(n):\n    return ops.exp(inner(n))\n"
        "@batch\ndef f(n):\n    return n + helper(n)  # error\n",
    )
    with pytest.raises(CompileError) as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    line = marked_line(module, "# raised")
    assert f"It was raised in 'inner', {module.__file__}:{line}:\n    raise ValueError" in str(caught.value)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("math.sqrt(n)", r"\nWrite ops\.sqrt\(\.\.\.\), of batchnuts\.autobatch, in place of math\.sqrt\(\.\.\.\)"),
        ("np.sin(n)", r"\nWrite ops\.sin\(\.\.\.\), .* in place of np\.sin"),
        ("np.array([n, 1])", r"\nWrite ops\.stack\(\.\.\.\), .* in place of np\.array"),
        ("branches(n)", r"'branches' is an ordinary function .* Decorate it with @autobatch\.batch; if it was batched"),
        ("np.append(n, 1)", r"Use batchnuts\.autobatch\.ops or a function of (JAX|TensorFlow)"),
    ],
)
@pytest.mark.parametrize(
    "backend",
    ["tensorflow", pytest.param("auto", marks=pytest.mark.skipif(not has_jax(), reason="JAX is not installed"))],
)
def test_a_function_that_cannot_be_traced_says_what_to_use(
    call: str, advice: str, backend: str, tmp_path: Path
) -> None:
    text = "import math\ndef branches(n):\n    return n if n > 0 else -n\n"
    module = load(tmp_path, f"{text}@batch\ndef f(n):\n    return {call}  # error\n")
    with pytest.raises(CompileError, match=advice) as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)
    module.f.run(*INTS, backend="numpy")


def test_a_misspelled_function_of_ops_has_its_nearest(tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    return ops.sqroot(n)  # error\n")
    with pytest.raises(CompileError, match=r"no attribute 'sqroot'\nDid you mean ops\.sqrt\?$") as caught:
        module.f.run(*INTS, backend="numpy")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


AROUND = "TABLE = (1, 2, 3)\nVECTOR = np.arange(3)\nMATRIX = np.zeros((2, 2))\n"
OF_THE_LANE = {
    "[k for k in TABLE if k > n][0]": "a condition within a comprehension or lambda must be known",
    "sum(k for k in TABLE if k > n)": "use a `for` loop, or ops.where",
    "sum([k if k > n else 0 for k in TABLE])": "a condition within a comprehension",
    "sum((k > n) and 1 or 0 for k in TABLE)": "a condition within a comprehension",
    "sum(i for i in range(n))": "the end of a range within an expression must be known",
    "f'{n}' == '1'": "what a string or hash is made from must be known",
    "str(n) == '1'": "what a string or hash is made from",
    "'%s' % n == '1'": "what a string or hash is made from",
    "'{}'.format(n) == '1'": "what a string or hash is made from",
    "repr(n) == '1'": "what a string or hash is made from",
    "hash(n)": "what a string or hash is made from",
    "len({n, 1})": "what a string or hash is made from",
    "len({n: 1})": "what a string or hash is made from",
    "len(set((n, 1)))": "what a string or hash is made from",
    "len(frozenset(VECTOR + n))": "what a string or hash is made from",
    "bin(n) == '0b1'": "what a string or hash is made from",
    "'a' * n == 'a'": "a str times a lane's number has no length",
    "complex(n, 1)": "use autobatch.ops, or the backend's own function",
    "sum(map(lambda v: v if v > 2 else 0, VECTOR + n))": "a condition within a comprehension or lambda must be known",
    "sum(map(lambda v: v and 1, VECTOR + n))": "use a `for` loop, or ops.where",
    "sum(map(lambda v: v if v > n else 0, VECTOR))": "a condition within a comprehension or lambda",
    "sum(filter(lambda v: v > 2, VECTOR + n))": r"the condition of filter\(\) must be known .* a `for` loop, or ops",
    "sum(filter(lambda v: v > n, VECTOR))": r"the condition of filter\(\) must be known",
    "sum(filter(None, VECTOR + n))": r"the condition of filter\(\) must be known",
    "sorted(VECTOR + n)": r"the key that sorted\(\) compares must be known .* swap elements in a loop",
    "sorted((n, 1))[0]": r"the key that sorted\(\) compares must be known",
    "sorted(TABLE, key=lambda v: v * n)": r"the key that sorted\(\) compares must be known",
    "n in range(n)": "the end of a range within an expression",
    "TABLE.index(n)": "a value looked up in a tuple must be known .* compare with each element",
    "TABLE.count(n)": "a value looked up in a tuple",
    "{1: 2}.get(n, 0)": "a value looked up in a dict",
    "TABLE[n]": "the index of a tuple must be known .* ops.stack",
    "{1: 2}[n]": r"the index of a dict .* ops.stack\(tuple\(values.values\(\)\)\)",
    "'abc'[n] == 'a'": "Strings must be known when the program is compiled: write `if` and `else`",
    "round(float(n), n)": r"the number of digits of round\(\)",
    "round(2.5, n)": r"the number of digits of round\(\)",
    "(VECTOR + n)[[0, 9]]": "is outside an axis of 3 elements",
    "(VECTOR + n)[[0.5, 1]]": "an index must be an integer, not float64",
    "(MATRIX + n)[[0, 1], 1]": "one array of indices at a time",
    "(MATRIX + n)[[0, 1], [1, 0]]": "one array of indices at a time",
}


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
@pytest.mark.parametrize("expression", OF_THE_LANE)
def test_what_must_be_known_is_refused_on_every_backend(expression: str, backend: str, tmp_path: Path) -> None:
    module = load(tmp_path, f"{AROUND}@batch\ndef f(n):\n    return {expression}  # error\n")
    with pytest.raises(CompileError, match=OF_THE_LANE[expression]) as caught:
        module.f.run(*INTS, backend=backend, mode="eager")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


METHODS = {
    "a method": (
        "    @batch  # error\n    def f(self, n):",
        "f.run(INPUT)",
        "method 'f' of class 'Model' .* its `self` is",
    ),
    "a property": ("    @property  # error\n    @batch\n    def f(self):", "f", "method 'f' of class 'Model'"),
    "a classmethod": (
        "    @classmethod  # error\n    @batch\n    def f(cls, n):",
        "f(INPUT)",
        "its `cls` is not an array",
    ),
    "a classmethod's run": (
        "    @classmethod  # error\n    @batch\n    def f(cls, n):",
        "f.run(INPUT, backend='numpy')",
        "method 'f' of class 'Model' .* its `cls` is not an array",
    ),
    "a classmethod's run without more": (
        "    @classmethod  # error\n    @batch\n    def f(cls):",
        "f.run(INPUT, backend='numpy')",
        "its `cls` is not an array",
    ),
    "above a classmethod": ("    @batch  # error\n    @classmethod\n    def f(cls, n):", "f", "found a classmethod.*"),
    "above a staticmethod": ("    @batch  # error\n    @staticmethod\n    def f(n):", "f", "Put @staticmethod above"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_batched_method_is_refused_at_its_line(name: str, tmp_path: Path) -> None:
    head, use, message = METHODS[name]
    text = f"INPUT = np.array([1])\nclass Model:\n{head}\n        return 1\ndef use():\n    return Model().{use}\n"
    with pytest.raises(UnsupportedSyntaxError, match=message) as caught:
        load(tmp_path, text).use()
    source = caught.value.source
    assert source is not None
    assert source.text.endswith("# error")


def test_a_static_method_may_be_batched(tmp_path: Path) -> None:
    module = load(tmp_path, "class Model:\n    @staticmethod\n    @batch\n    def f(n):\n        return n\n")
    assert module.Model.f.run(*INTS, backend="numpy").tolist() == [1, 2, 3]


NO_FUNCTIONS = {
    "@batch  # error\nclass C:\n    pass\n": "found the class 'C'",
    "f = batch(len)  # error\n": "found a builtin_function_or_method. Write a `def` that calls it",
    "f = batch(batch)\nf = batch(f)  # error\n": "found one that is batched already",
    "import functools\nf = batch(functools.partial(pow, 2))  # error\n": "found a partial",
    "f = batch(3)  # error\n": "found a int",
    "@batch  # error\n@primitive\ndef f(n):\n    return n\n": "found a primitive",
}


@pytest.mark.parametrize("text", NO_FUNCTIONS)
def test_only_functions_are_batched(text: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSyntaxError, match=NO_FUNCTIONS[text]) as caught:
        load(tmp_path, text)
    source = caught.value.source
    assert source is not None
    assert source.text.endswith("# error")


@pytest.mark.parametrize("wraps", ["    @functools.wraps(f)\n", ""], ids=["wraps", "bare"])
def test_recursion_under_a_decorator_above_batch(wraps: str, tmp_path: Path) -> None:
    text = f"import functools\ndef traced(f):\n{wraps}    def call(*a):\n        return f(*a)\n    return call\n"
    body = "    return 1 if n < 1 else n * f(n - 1)  # error\n"
    module = load(tmp_path, f"{text}@traced\n@batch\ndef f(n):\n{body}")
    with pytest.raises(CompileError, match=r"decorator above @batch.* another name") as caught:
        module.f(*INTS)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


@pytest.mark.parametrize("helper", ["math.hypot(x, 1.0)", "np.append(x, 1.0)"])
@pytest.mark.parametrize(("backend", "library"), [("tensorflow", "TensorFlow"), ("jax", "JAX")])
def test_a_function_that_needs_values_says_which_library_traces(
    helper: str, backend: str, library: str, tmp_path: Path
) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    module = load(tmp_path, f"import math\n@batch\ndef f(x):\n    return {helper}  # error\n")
    with pytest.raises(
        CompileError, match=f"needs values, but {library} traces it before .* a function of {library}"
    ) as e:
        module.f.run(*FLOATS, backend=backend, mode="eager")
    assert e.value.source is not None
    assert e.value.source.line == marked_line(module)
    assert "backends" not in str(e.value), "no line of ours"


CHECKED_FIRST = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Positive:
    value: object
    def __post_init__(self):
        if not np.all(self.value > 0):
            raise ValueError(self.value)
        object.__setattr__(self, "twice", 2 * self.value)
@batch
def f(p):
    return p.twice  # error
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_an_attribute_that_post_init_could_not_set_says_so(backend: str, tmp_path: Path) -> None:
    if backend == "jax":
        pytest.importorskip("jax")
    module = load(tmp_path, CHECKED_FIRST)
    advice = "Set `twice` before what needs values, or make it a field or a property"
    with pytest.raises(CompileError, match=advice) as caught:
        module.f.run(module.Positive(FLOATS[0]), backend=backend, mode="eager")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_an_attribute_that_post_init_does_not_set_has_no_such_advice(tmp_path: Path) -> None:
    module = load(tmp_path, CHECKED_FIRST.replace("p.twice", "p.valeu"))
    with pytest.raises(CompileError, match="no attribute 'valeu'") as caught:
        module.f.run(module.Positive(FLOATS[0]), backend="numpy")
    assert "__post_init__" not in str(caught.value)


@pytest.mark.parametrize(("backend", "call"), [("tensorflow", "jnp.sin(x)"), ("jax", "tf.sin(x)")])
def test_a_function_of_the_other_library_says_which_backend_runs_it(backend: str, call: str, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    imports = "import jax.numpy as jnp\nimport tensorflow as tf\n"
    module = load(tmp_path, f"{imports}@batch\ndef f(x):\n    return {call}  # error\n")
    other = "jax" if backend == "tensorflow" else "tensorflow"
    with pytest.raises(
        CompileError, match=f"was given an array of .*: run with backend='{other}', or use batch"
    ) as caught:
        module.f.run(*FLOATS, backend=backend, mode="eager")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)
    np.testing.assert_allclose(module.f.run(*FLOATS, backend=other, mode="eager"), np.sin(FLOATS[0]), rtol=1e-6)


def test_a_decorator_beneath_batch_is_refused_at_its_line(tmp_path: Path) -> None:
    text = "import functools\ndef traced(f):\n    return functools.wraps(f)(lambda *a: f(*a))\n"
    module = load(tmp_path, f"{text}@batch  # error\n@traced\ndef f(n):\n    return n\n")
    with pytest.raises(CompileError, match="is wrapped by another decorator") as caught:
        module.f.run(*INTS, backend="numpy")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_dicts_whose_keys_stand_in_another_order(tmp_path: Path) -> None:
    body = "    d = {'a': n, 'b': n}\n    if n > 1:\n        d = {'b': n, 'a': 2}  # error\n    return d\n"
    module = load(tmp_path, f"@batch\ndef f(n):\n{body}")
    with pytest.raises(TypeConflictError, match="Write the keys in the same order") as caught:
        module.f.run(*INTS, backend="numpy")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_a_closure_variable_without_a_value_yet(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "def make(when):\n    @batch\n    def f(n):\n        return n + late  # error\n"
        "    if when == 'early':\n        f.run(np.array([1]), backend='numpy')\n    late = 2\n    return f\n",
    )
    with pytest.raises(UndefinedVariableError, match="name 'late' has no value yet") as caught:
        module.make("early")
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)
    assert module.make("late").run(*INTS, backend="numpy").tolist() == [3, 4, 5]


def test_a_literal_that_settles_late_is_no_conflict() -> None:
    @batch
    def late(n):
        x = 0
        z = 0.0
        for _ in range(n):
            z = ops.where(n > 2, x, 1)
            x = x + 0.5
        return x, z

    @batch
    def through_where(y, n):
        x = 0
        for _ in range(n):
            x = ops.where(n > 2, x, 1)
            x = x + y
        return x

    for backend in ("numpy", "tensorflow"):
        x, z = late.run(*INTS, backend=backend, mode="eager")
        assert x.tolist() == [0.5, 1.0, 1.5]
        assert z.tolist() == [1.0, 1.0, 1.0]
        total = through_where.run(np.ones(3, "float32"), *INTS, backend=backend, mode="eager")
        assert total.dtype == "float32"
        assert total.tolist() == [2.0, 2.0, 3.0]


def test_arithmetic_of_two_booleans_says_what_to_write(tmp_path: Path) -> None:
    module = load(tmp_path, "@batch\ndef f(n):\n    return (n > 1) + (n > 2)  # error\n")
    for backend in ("numpy", "tensorflow"):
        with pytest.raises(CompileError, match=r"Write int\(a\) \+ int\(b\)"):
            module.f.run(*INTS, backend=backend, mode="eager")


# ---- arguments ------------------------------------------------------------------------------------------------------


@batch
def add(a, b):
    return a + b


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), np.zeros(4)), "different numbers of lanes: 3 in 'a' and 4 in 'b'. Their first axes must agree"),
        ((np.zeros(3),), "add: missing a required argument: 'b'"),
        ((np.zeros(3), np.zeros(3), np.zeros(3)), "add: too many positional arguments"),
        ((np.zeros(3), np.array(1.0)), r"argument 'b' has an array without a lane axis; give shape \[lanes, ...\]"),
        ((np.zeros(3), np.array(["a", "b", "c"])), "argument 'b' holds <U1, expected numbers or booleans"),
        ((np.zeros(3), np.ma.masked_less(np.ones(3), 2)), "argument 'b' is a masked array, .* `x.mask` as another"),
    ],
)
@pytest.mark.parametrize("executor", ["virtual_machine", "stackless", "unbatched"])
def test_arguments_that_do_not_fit(arguments: tuple[Any, ...], message: str, executor: str) -> None:
    with pytest.raises(LaneInputError, match=message):
        add.run(*arguments, executor=executor, backend="numpy")


ENGINES = "auto, native, native_tensorflow, native_numpy, jax, tensorflow, numpy, reference"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"executor": "turbo"}, "executor must be one of virtual_machine, .*, unbatched, reference; found 'turbo'"),
        (
            {"backend": "turbo"},
            f"one of {ENGINES}, or a Backend object; found 'turbo'",
        ),
        (
            {"backend": None},
            f"backend must be one of {ENGINES}, or a Backend object; found None",
        ),
        ({"mode": "turbo", "backend": "numpy"}, "mode must be one of xla, graph, eager; found 'turbo'"),
        ({"mode": "turbo"}, "mode must be one of xla, graph, eager; found 'turbo'"),
        ({"schedule": "turbo"}, "schedule must be one of auto, earliest, most_active.* found 'turbo'"),
    ],
)
def test_unknown_options(option: dict[str, str], message: str) -> None:
    with pytest.raises(autobatch.OptionError, match=message) as caught:
        add.run(np.zeros(2), np.zeros(2), **option)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, autobatch.BatchnutsError)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"b": 1, "y": 2}, r"add: found the argument 'y', expected a, b\.$"),
        ({"a": 1, "b": 2, "backend": "numpy"}, r"'backend', expected a, b\. Options are given to add\.run\(\.\.\.\)\."),
    ],
)
def test_unknown_arguments(names: dict[str, Any], message: str) -> None:
    with pytest.raises(LaneInputError, match=message):
        add(**names)


def test_a_batched_primitive_called_by_one_lane_code_is_refused() -> None:
    @autobatch.primitive(batched=True)
    def double(x):
        return x * 2.0

    def helper(x):
        return double(x) + 1.0

    @autobatch.batch
    def program(x):
        y = helper(x)
        return y

    with pytest.raises(autobatch.CompileError, match="call it directly in the batched function"):
        program.run(np.ones(3), backend="numpy")


def test_a_list_of_numbers_is_no_array_of_lanes() -> None:
    @autobatch.batch
    def program(n):
        return n + 1

    with pytest.raises(autobatch.LaneInputError, match=r"numpy\.array\(n\)"):
        program.run([3, 7], backend="numpy")

"""BATCHNUTS_NATIVE_CHECKS: the corpus addresses no memory that is not its own, and what would is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CORPUS = """
import sys
sys.path[:0] = {path!r}
import numpy as np
from programs import CASES
from batchnuts.autobatch.language.pytree import flatten

for case in CASES[{first}::3]:
    found = flatten(case.function.run(*case.inputs, backend="native"))[0]
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    for a, b in zip(found, expected, strict=True):
        rtol = max(case.rtol or 0, 1e-6 if a.dtype.itemsize < 8 else 1e-12)
        np.testing.assert_allclose(a, b.astype(a.dtype), rtol=rtol, atol=1e-6)
print("sound")
"""

OUTSIDE = """
import ctypes
import numpy as np
from llvmlite import ir
from batchnuts.autobatch.ir.expression import Expression, Node, Ref
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native import expressions
from batchnuts.autobatch.native.arrays import Emitter
from batchnuts.autobatch.native.compile import code_of
from batchnuts.autobatch.native.types import POINTER

types = TensorType("float64", (4,)), TensorType("int64")
body = Expression(types, (Node("gather", (Ref(0), Ref(1), 0), (TensorType("float64"),)),), (Ref(2),))
module = ir.Module("outside")
function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 3), "f")
b = ir.IRBuilder(function.append_basic_block("entry"))
body_block = function.append_basic_block("body")
b.branch(body_block)
b.position_at_end(body_block)
em = Emitter(b, None)
values = em.memory(np.dtype("float64"), (4,), function.args[0])
index = em.scalar(np.dtype("int64"), em.load(function.args[1], np.dtype("int64")))
(result,) = expressions.emit(em, body, [values, index])
em.store(result.element(()), function.args[2])
b.ret_void()
call = code_of(module).function("f", *[ctypes.c_void_p] * 3)
x, out = np.arange(4.0), np.zeros(1)
for i in (3, {index}):
    at = np.array([i])
    call(x.ctypes.data, at.ctypes.data, out.ctypes.data)
    print(out[0], flush=True)
"""


def run(code: str, checks: str = "1") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BATCHNUTS_NATIVE_CHECKS": checks}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_third_of_the_corpus_stays_within_its_memory(first: int) -> None:
    done = run(CORPUS.format(path=sys.path, first=first))
    assert (done.returncode, done.stdout) == (0, "sound\n"), done.stdout + done.stderr


def test_an_index_outside_ends_the_process_with_a_line() -> None:
    done = run(OUTSIDE.format(index=4))
    assert done.returncode == -6
    assert done.stdout == "3.0\nbatchnuts: machine code: an index outside of 4 elements\n"
    assert run(OUTSIDE.format(index=4), checks="").stdout == "3.0\n3.0\n", "without checks it is the nearest inside"

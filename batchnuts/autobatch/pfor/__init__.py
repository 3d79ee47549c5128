"""A static loop vectorizer for TensorFlow graphs: `pfor` runs all iterations of a loop at once.

    values        what a tensor of the body is, for all iterations
    graphs        what TensorFlow knows about functions
    calls         functions that stay one op
    errors        what is reported at the user's line
    site          one op where it is converted
    traced_once   functions that are converted once for many programs
    registry      converters by op type
    rowwise       an op run row by row
    affine        integers of the body as sums
    flows         which tensors vary, before anything is converted
    converters/   by family of ops
    walk          a graph, op by op
    loop          pfor
    applications  vectorized_map, jacobian, hessian, per_example_gradient

Each imports only what stands above it.
"""

from batchnuts.process.quiet import import_tensorflow

import_tensorflow()  # before the modules below do so themselves

from batchnuts.autobatch.pfor.applications import hessian, jacobian, per_example_gradient, vectorized_map
from batchnuts.autobatch.pfor.errors import FallbackWarning, NoRule, PforError, Refused
from batchnuts.autobatch.pfor.loop import pfor
from batchnuts.autobatch.pfor.registry import REGISTRY, Converter, converts, table
from batchnuts.autobatch.pfor.site import Loop, Site
from batchnuts.autobatch.pfor.values import Invariant, Stacked

__all__ = [
    "REGISTRY",
    "Converter",
    "FallbackWarning",
    "Invariant",
    "Loop",
    "NoRule",
    "PforError",
    "Refused",
    "Site",
    "Stacked",
    "converts",
    "hessian",
    "jacobian",
    "per_example_gradient",
    "pfor",
    "table",
    "vectorized_map",
]

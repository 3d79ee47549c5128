"""Constant indices, compared with the axis that they index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def index_error(indices: NDArray[Any], length: int, shift: int = 0) -> IndexError | None:
    """The error for the first index that is not one of 0 to length - 1; None if all are.

    shift: what was added to negative ones before, to count from the front; taken away again in the message.
    """
    outside = (indices < 0) | (indices >= length)
    if not outside.any():
        return None
    place = tuple(int(i) for i in np.argwhere(outside)[0])
    index = int(indices[place])
    index -= shift if index < 0 else 0
    of_several = f" (element {list(place)} of the indices)" if place else ""
    return IndexError(
        f"the index {index}{of_several} is outside an axis of {length} elements; indices count from 0, so expected "
        f"0 to {length - 1}"
    )

"""What to do with a distribution that is given in place of a model or a density."""

from __future__ import annotations

from typing import Any


def how_to_wrap(value: Any) -> str:
    """The end of an error's message; empty for anything but a distribution."""
    if not callable(getattr(value, "log_prob", None)):
        return ""
    kinds = " ".join(kind.__name__ for kind in type(value).__mro__)
    if "Sequential" in kinds:
        wrapped = '`lambda p: distribution.log_prob([p["a"], p["b"]])` with `variables={"a": [], "b": []}`, say'
    elif "JointDistribution" in kinds:
        wrapped = "`lambda p: distribution.log_prob(**p)` with `variables`, the shapes of its parts by name"
    else:
        wrapped = (
            "`distribution.log_prob` for a flat position, or `lambda p: distribution.log_prob(**p)` with `variables` "
            "for one with named parts"
        )
    return f" A distribution has one: give Model.from_function {wrapped}; declare supports, as in `positive()`."

"""How many examples hypothesis draws for a property: few by default, many before a release.

`pytest --hypothesis-profile=release` draws TIMES["release"] as many.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

TIMES = {"default": 1, "release": 72, "campaign": 405}
"""How many times as many examples a profile draws."""

_PERCENT = 100

_COMMON: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
for _name, _times in TIMES.items():
    settings.register_profile(_name, max_examples=_PERCENT * _times, **_COMMON)


def examples(number: int) -> settings:
    """Draw so many examples, or as many times more as the profile says."""
    return settings(max_examples=number * settings.default.max_examples // _PERCENT)

"""How many examples hypothesis draws for a property: few by default, many before a release.

`pytest --hypothesis-profile=release` draws RELEASE times as many.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

RELEASE = 25
_PERCENT = 100

_COMMON: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("default", max_examples=_PERCENT, **_COMMON)
settings.register_profile("release", max_examples=_PERCENT * RELEASE, **_COMMON)


def examples(number: int) -> settings:
    """Draw so many examples, or as many times more as the profile says."""
    return settings(max_examples=number * settings.default.max_examples // _PERCENT)

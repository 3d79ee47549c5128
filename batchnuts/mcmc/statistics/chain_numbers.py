"""The numbers of some chains, in words."""

from __future__ import annotations

from collections.abc import Sequence


def some_numbers(numbers: Sequence[int], most: int = 20) -> str:
    """The first of the numbers of chains, and how many more there are."""
    more = len(numbers) - most
    return f"{', '.join(map(str, numbers[:most]))}{f' and {more} more' if more > 0 else ''}"


def named_chains(numbers: Sequence[int]) -> str:
    """The numbers of chains with the noun."""
    return f"chain{'s' * (len(numbers) != 1)} {some_numbers(numbers)}"


def restarted_in_words(numbers: Sequence[int], restart: object) -> str:
    """That these chains started again in warmup, and why, by the setting `sampler.warmup.restart`; empty for none."""
    if not numbers:
        return ""
    why = "from a log-density too low for any mode of weight" if restart == "auto" else "as sampler.warmup.restart asks"
    return f"In warmup {named_chains(numbers)} restarted near others, {why}."

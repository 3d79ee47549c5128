"""How fast the slowest chain is, and so when a phase, which ends when that chain does, is likely to end."""

from __future__ import annotations

from dataclasses import dataclass, field

POINTS = 64
"""The number of points that are kept of a phase."""


@dataclass
class Pace:
    """The pace of one phase: how many transitions every chain had made at which time since it began."""

    points: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])

    def note(self, seconds: float, transitions: int) -> None:
        """Note that at this time every chain has made so many transitions."""
        self.points.append((seconds, transitions))
        if len(self.points) > POINTS:
            self.points = [*self.points[:-1:2], self.points[-1]]

    def seconds_to(self, transitions: int) -> float | None:
        """Seconds from now until every chain has made so many, at the speed of the second half of the time so
        far; None while some chain has made none.

        The second half: the beginning of a phase may be slow, while programs are loaded, and short intervals say
        little, because chains report after many transitions at once.
        """
        last_time, last_count = self.points[-1]
        if not last_count or last_time <= 0:
            return None
        earlier_time, earlier_count = next(point for point in reversed(self.points) if point[0] <= last_time / 2)
        if last_count == earlier_count:
            earlier_time, earlier_count = self.points[0]
        return max(transitions - last_count, 0) * (last_time - earlier_time) / (last_count - earlier_count)

"""What the measurements say: seconds of each sampler on each posterior, and verdicts on claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from batchnuts.experiments.harness.results import ClaimResults, Value, Verdict
from batchnuts.experiments.time_to_answer.config import AnswerConfig, Claim
from batchnuts.experiments.time_to_answer.task import Measurement

Start = Literal["first", "second"]


@dataclass(frozen=True)
class AnswerResults(ClaimResults[AnswerConfig, Measurement]):
    """The results of the times to an answer."""

    @override
    def runs_of(self, curve: str, target: str, size: int) -> list[Measurement]:
        """The second starts at a point; none where a problem leaves the curve out."""
        return super().runs_of(curve, target, size) if curve in self.config.curves_of(target) else []

    def seconds(self, curve: str, problem: str, goal: int, start: Start = "second") -> Value | None:
        """The median over repetitions, and their range; None where there is none."""
        rows = self.runs_of(curve, problem, goal)
        seconds = [row.seconds if start == "second" else row.first_seconds for row in rows]
        return Value.of(goal, [time for time in seconds if time is not None])

    def peers_of(self, curve: str, problem: str, goal: int, start: Start = "second") -> dict[str, Value]:
        """The other curves that got there."""
        peers = [name for name in self.config.curves_of(problem) if not self.config.curves[name].ours]
        by_curve = {name: self.seconds(name, problem, goal, start) for name in peers if name != curve}
        return {name: value for name, value in by_curve.items() if value is not None}

    def ratio(self, curve: str, problem: str, goal: int, start: Start = "second") -> Value | None:
        """Our seconds over those of the fastest peer: below 1 where ours is the fastest of all. Infinite where only a
        peer got there; None where no peer did, or nothing was measured."""
        peers, own = self.peers_of(curve, problem, goal, start), self.seconds(curve, problem, goal, start)
        best = min(peers.values(), key=lambda value: value.value, default=None)
        if own is None and self.rows_of(curve, problem, goal) and best is not None:
            return Value(goal, math.inf, math.inf, math.inf, best.repetitions)
        return None if own is None or best is None else own.over(best)

    def judge(self, claim: Claim) -> Verdict:
        """One claim. A posterior counts where ours was measured; one on which no peer gets there is ours."""
        config = self.config
        if claim.figure == "seconds":
            assert claim.problem is not None
            seen = self.seconds(claim.curve, claim.problem, claim.goal, claim.start)
            if seen is None and self._measured(claim.curve, claim.problem, claim.goal):
                seen = Value(claim.goal, math.inf, math.inf, math.inf, 1)
            return Verdict(claim, seen, "-" if seen is None else in_seconds(seen))
        measured = [name for name in config.problems if self._measured(claim.curve, name, claim.goal)]
        if not measured:
            return Verdict(claim, None, "-")
        ratios = {name: self.ratio(claim.curve, name, claim.goal, claim.start) for name in measured}
        reached = [name for name in measured if self.seconds(claim.curve, name, claim.goal, claim.start) is not None]
        compared = {name: value for name, value in ratios.items() if value is not None}
        if claim.figure == "fastest":
            alone = sum(name not in compared for name in reached)
            values = compared.values()
            least, most = sum(value.high <= 1 for value in values), sum(value.low <= 1 for value in values)
            count = sum(value.value <= 1 for value in values) + alone
            low, high = ((number + alone) / len(measured) for number in (least, most))
            seen = Value(claim.goal, count / len(measured), low, high, 1)
            return Verdict(claim, seen, f"{count} of {len(measured)}")
        if not compared:
            return Verdict(claim, None, "-")
        worst = max(compared, key=lambda name: compared[name].value)
        value = compared[worst]
        # 1 where ours is the fastest
        value = Value(value.size, max(1.0, value.value), max(1.0, value.low), max(1.0, value.high), value.repetitions)
        text = "only a peer got there" if math.isinf(value.value) else f"{value.value:.2f}"
        return Verdict(claim, value, f"{text}, on {config.problems[worst].label}")

    def _measured(self, curve: str, problem: str, goal: int) -> bool:
        return curve in self.config.curves_of(problem) and bool(self.rows_of(curve, problem, goal))


def in_seconds(value: Value) -> str:
    """A value in seconds, with the range where there are several."""
    if math.isinf(value.value):
        return "did not get there"
    spread = f" ({value.low:.1f} to {value.high:.1f})" if value.repetitions > 1 else ""
    return f"{value.value:.1f} s{spread}"

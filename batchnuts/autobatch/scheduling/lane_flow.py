"""Where lanes go: for each block of a lowered program, the probabilities of the block that a lane runs next.

Before the program has run, these are guessed from its structure:

    goto, call        1 to the target
    branch            STAYS to what stays in the innermost loop around, the rest to what leaves it; else one half each.
                      A loop that calls its own function again stays less often (STAYS_RECURSIVE): a call that makes
                      one call or more on average would never end
    return            to each place the function is called from, in proportion to how often lanes get there
    halt              to the entry: other lanes are there, so this is what the machine sees in the long run
    everywhere        ENDS of the lanes halt, so that the long run is one and the same even where a loop has no way out

The model has no stack: after a return, the next block does not depend on the call.

After a run it is known how often lanes were at each block. The flow that is closest to the guess among those with
these counts has transition frequencies in proportion to guess x (a factor of the block) x (a factor of the next block);
alternating between rows and columns finds the factors (Sinkhorn and Knopp, Pacific J. Math. 21, 1967).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.ir.cfg import successors
from batchnuts.autobatch.ir.loops import calls_itself, innermost_loops
from batchnuts.autobatch.ir.program import (
    BranchOp,
    ControlFlowGraph,
    GotoOp,
    IndirectGotoOp,
    PushGotoOp,
)

STAYS = 3 / 4
"""Chance that a lane stays in a loop: four trips on average."""
STAYS_RECURSIVE = 0.4
"""The same where the loop calls its own function: three calls in all for each from outside. With one half, each call
would make one call on average, and none would end."""
ENDS = 1e-6
"""Probability that a lane ends at any block, beside halts of the program."""
BALANCING = 1000
"""Rounds of balancing rows and columns at most."""

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class LaneFlow:
    """The transition probabilities for `labels`, and their stationary distribution."""

    labels: tuple[str, ...]
    chances: Matrix
    """[i, j]: of a lane that leaves block i to come to block j next. Rows sum to 1."""
    visits: Vector
    """How often lanes run each block, as shares of all; visits = visits @ chances."""


def estimated_flow(graph: ControlFlowGraph) -> LaneFlow:
    """The flow of a lowered program, guessed as the module says."""
    blocks, labels = graph.blocks, graph.labels
    index = {label: i for i, label in enumerate(labels)}
    loops = innermost_loops(graph)
    recursive = {label: calls_itself(graph, loop) for label, loop in loops.items()}
    chances = np.zeros((len(labels), len(labels)))
    for i, block in enumerate(blocks):
        match block.terminator:
            case GotoOp(label) | PushGotoOp(target_label=label):
                chances[i, index[label]] = 1.0
            case BranchOp(_, yes, no):
                stays = STAYS_RECURSIVE if recursive.get(block.label) else STAYS
                chance = _chance_of(yes, no, loops.get(block.label, frozenset()), stays)
                chances[i, index[yes]] += chance
                chances[i, index[no]] += 1.0 - chance
    _fill_in_returns(graph, chances)
    chances *= 1.0 - ENDS
    chances[:, 0] += ENDS  # the entry is the first block
    return LaneFlow(labels, chances, _stationary(chances))


def counted_flow(graph: ControlFlowGraph, served: Mapping[str, int]) -> LaneFlow:
    """The flow of a lowered program after a run, from the number of lanes served at each block, by label."""
    guess = estimated_flow(graph)
    counts = np.array([served.get(label, 0) for label in guess.labels], float)
    visits = np.maximum(counts / counts.sum(), ENDS)
    moves = visits[:, None] * guess.chances  # [i, j]: the share of all steps that go from block i to block j
    for _ in range(BALANCING):
        moves *= (visits / moves.sum(0))[None, :]
        rows = moves.sum(1)
        moves *= (visits / rows)[:, None]
        if np.allclose(rows, visits, rtol=1e-6, atol=0.0):
            break
    chances = moves / moves.sum(1, keepdims=True)
    return LaneFlow(guess.labels, chances, _stationary(chances))


def _chance_of(yes: str, no: str, loop: frozenset[str], stays: float) -> float:
    if (yes in loop) == (no in loop):
        return 0.5
    return stays if yes in loop else 1.0 - stays


def _fill_in_returns(graph: ControlFlowGraph, chances: Matrix) -> None:
    """The rows of returns: to each place where a call comes back, in proportion to how often that call is made.

    Every call returns. So the visits are those of a process in which each call sends one lane into the function and one
    to the block after the call, and lanes end where they return: its dominant eigenvector. (The eigenvalue is 1 unless
    calls make more than one call on average; then the eigenvector gives the proportions in which they grow.)
    """
    index = {label: i for i, label in enumerate(graph.labels)}
    following = successors(graph)
    sends = chances.copy()
    for i, block in enumerate(graph.blocks):
        if isinstance(block.terminator, PushGotoOp):
            sends[i, index[block.terminator.resume_label]] += 1.0
        elif isinstance(block.terminator, IndirectGotoOp) and not following[block.label]:
            sends[i, 0] = 1.0  # not called from anywhere: the lane halts, and another one starts
    values, vectors = np.linalg.eig(sends.T)
    visits = np.abs(vectors[:, np.argmax(values.real)].real)
    visits = np.maximum(visits / visits.sum(), ENDS)  # an endless chain of calls is left, too
    calls: dict[str, float] = {}
    """By the block where a call comes back, how often it is made."""
    for i, block in enumerate(graph.blocks):
        if isinstance(block.terminator, PushGotoOp):
            resume = block.terminator.resume_label
            calls[resume] = calls.get(resume, 0.0) + visits[i]
    for i, block in enumerate(graph.blocks):
        if isinstance(block.terminator, IndirectGotoOp):
            resumes = following[block.label]
            total = sum(calls[resume] for resume in resumes)
            for resume in resumes:
                chances[i, index[resume]] = calls[resume] / total if total else 1.0 / len(resumes)
            if not resumes:
                chances[i, 0] = 1.0


def _stationary(chances: Matrix) -> Vector:
    """Shares x = x P, summing to 1."""
    count = len(chances)
    system = np.vstack([chances.T - np.eye(count), np.ones(count)])
    shares, *_ = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0), rcond=None)
    return np.asarray(np.maximum(shares, 0.0))

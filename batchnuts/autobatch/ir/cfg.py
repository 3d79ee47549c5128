"""Control-flow graphs: edges, reachability, and a simplification that removes empty and unreachable blocks."""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    BranchOp,
    ControlFlowGraph,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    PrimOp,
    Program,
    PushGotoOp,
    Terminator,
    jump_labels,
)


def relabel(terminator: Terminator, renaming: dict[str, str]) -> Terminator:
    """The terminator with its labels replaced where `renaming` names them."""

    def new(label: str) -> str:
        return renaming.get(label, label)

    match terminator:
        case GotoOp(label):
            return GotoOp(new(label))
        case BranchOp():
            if new(terminator.true_label) == new(terminator.false_label):
                return GotoOp(new(terminator.true_label))
            return replace(terminator, true_label=new(terminator.true_label), false_label=new(terminator.false_label))
        case PushGotoOp(resume, target):
            return replace(terminator, resume_label=new(resume), target_label=new(target))
        case IndirectGotoOp():
            return terminator


def successors(graph: ControlFlowGraph, *, through_calls: bool = True) -> dict[str, tuple[str, ...]]:
    """The labels control may reach next from each block.

    A return goes to the resume block of every call of the function the block belongs to (`through_calls`), so the
    answer for a lowered graph covers the whole program; without it a PushGotoOp leads to its resume block, which
    stays within one body. Labels of blocks that the graph does not have (a tail call out of one body) are left out.
    """
    resumes = _resumes(graph) if through_calls else {}
    labels = set(graph.labels)
    result = {}
    for block in graph.blocks:
        match block.terminator:
            case IndirectGotoOp():
                result[block.label] = tuple(resumes.get(block.owner, ())) if through_calls else ()
            case PushGotoOp(resume, target):
                result[block.label] = (target,) if through_calls else (resume,)
            case terminator:
                result[block.label] = tuple(label for label in jump_labels(terminator) if label in labels)
    return result


def _resumes(graph: ControlFlowGraph) -> dict[str, list[str]]:
    """For each function, the blocks where its callers go on; those of a function that jumps to it count as well."""
    owner = {block.label: block.owner for block in graph.blocks}
    resumes: dict[str, list[str]] = {name: [] for name in owner.values()}
    jumps: set[tuple[str, str]] = set()
    for block in graph.blocks:
        if isinstance(block.terminator, PushGotoOp):
            resumes[owner[block.terminator.target_label]].append(block.terminator.resume_label)
        else:
            jumps |= {(block.owner, owner[label]) for label in jump_labels(block.terminator)}
    for _ in resumes:
        for jumping, function in jumps:
            resumes[function] += [label for label in resumes[jumping] if label not in resumes[function]]
    return resumes


def predecessors(graph: ControlFlowGraph, *, through_calls: bool = True) -> dict[str, tuple[str, ...]]:
    """The reverse of `successors`."""
    result: dict[str, list[str]] = {label: [] for label in graph.labels}
    for label, following in successors(graph, through_calls=through_calls).items():
        for target in following:
            result[target].append(label)
    return {label: tuple(sources) for label, sources in result.items()}


def reachable(graph: ControlFlowGraph) -> frozenset[str]:
    """Labels that control can reach from the entry; callees and resume points included."""
    following = {block.label: jump_labels(block.terminator) for block in graph.blocks}
    for block in graph.blocks:
        if isinstance(block.terminator, PushGotoOp):
            following[block.label] += (block.terminator.resume_label,)
    seen: set[str] = set()
    todo = [graph.entry]
    while todo:
        label = todo.pop()
        if label not in seen:
            seen.add(label)
            todo.extend(following[label])
    return frozenset(seen)


def depth_first(graph: ControlFlowGraph) -> tuple[str, ...]:
    """All labels in reverse postorder of a depth-first walk through calls, so that few edges lead back; labels that it
    does not reach come last."""
    following = successors(graph)
    seen, finished = {graph.entry}, []
    path = [(graph.entry, iter(following[graph.entry]))]
    while path:
        label, remaining = path[-1]
        target = next((x for x in remaining if x not in seen), None)
        if target is None:
            finished.append(label)
            path.pop()
        else:
            seen.add(target)
            path.append((target, iter(following[target])))
    return (*reversed(finished), *(label for label in graph.labels if label not in seen))


def simplify_graph(graph: ControlFlowGraph) -> ControlFlowGraph:
    """Drop unreachable blocks, skip empty ones that only jump, and join a block to its only predecessor.

    A block with a gate is neither skipped nor joined to its predecessor: lanes gather before it.

    a: x = f() ; goto b          a: x = f() ; y = g(x) ; return
    b: goto c              -->
    c: y = g(x) ; return
    """
    blocks = {block.label: block for block in graph.blocks}
    skip: dict[str, str] = {}
    for label in blocks:
        seen = {label}
        target = label
        while not blocks[target].ops and not blocks[target].gate and isinstance(blocks[target].terminator, GotoOp):
            step = blocks[target].terminator.label  # type: ignore[union-attr]
            if step in seen:  # an endless empty loop stays as it is
                break
            seen.add(step)
            target = step
        if target != label:
            skip[label] = target
    relabelled = [replace(block, terminator=relabel(block.terminator, skip)) for block in graph.blocks]
    if graph.entry in skip and all(graph.entry != target for target in skip.values()):
        first = next(block for block in relabelled if block.label == skip[graph.entry])
        relabelled = [first, *(block for block in relabelled if block is not first)]
    graph = ControlFlowGraph(tuple(relabelled))
    alive = reachable(graph)
    graph = ControlFlowGraph(tuple(block for block in graph.blocks if block.label in alive))
    return _join_chains(graph)


def _join_chains(graph: ControlFlowGraph) -> ControlFlowGraph:
    jumps_in: dict[str, int] = dict.fromkeys(graph.labels, 0)
    jumps_in[graph.entry] += 1
    for block in graph.blocks:
        targets = list(jump_labels(block.terminator))
        if isinstance(block.terminator, PushGotoOp):
            targets.append(block.terminator.resume_label)
        for target in targets:
            jumps_in[target] += 1
    blocks = {block.label: block for block in graph.blocks}
    absorbed: set[str] = set()
    for label in graph.labels:
        while label not in absorbed:
            block = blocks[label]
            if not isinstance(block.terminator, GotoOp):
                break
            target = block.terminator.label
            if target == label or jumps_in[target] != 1 or blocks[target].owner != block.owner or blocks[target].gate:
                break
            blocks[label] = replace(block, ops=block.ops + blocks[target].ops, terminator=blocks[target].terminator)
            absorbed.add(target)
    return ControlFlowGraph(tuple(blocks[label] for label in graph.labels if label not in absorbed))


def simplify(program: Program) -> Program:
    """`simplify_graph` on every body."""
    return program.with_functions({f.name: replace(f, graph=simplify_graph(f.graph)) for f in program.all_functions()})


def without_dead_code(program: Program) -> Program:
    """The program, simplified, without functions that no reachable block calls."""
    program = simplify(program)
    reached = call_graph(program)["main"]
    return program.replace(functions=tuple(f for f in program.functions if f.name in reached))


def computes_little(block: Block, most: int) -> bool:
    """Whether the block has no gate and at most this many computing ops, all cheap and unable to fail on any value."""
    computing = [op for op in block.ops if not (isinstance(op, PrimOp) and op.function is COPY)]
    harmless = all(isinstance(op, PrimOp) and (op.function.speculable or not op.vars_in) for op in computing)
    return harmless and not block.gate and len(computing) <= most


Calls = dict[str, frozenset[str]]


def call_graph(program: Program) -> Calls:
    """For each function, the functions its body may call, directly or through others."""
    direct = {
        f.name: {op.function for b in f.graph.blocks for op in b.ops if isinstance(op, FunctionCallOp)}
        for f in program.all_functions()
    }
    reach = {name: set(callees) for name, callees in direct.items()}
    changed = True
    while changed:
        changed = False
        for callees in reach.values():
            more = set().union(*(reach[c] for c in callees)) - callees
            if more:
                callees |= more
                changed = True
    return {name: frozenset(callees) for name, callees in reach.items()}

"""Buffers that `write` changes in place, alone and as stacks, queues and tables of algorithms."""

from __future__ import annotations

import numpy as np

from batchnuts import autobatch
from batchnuts.autobatch import batch, ops, write
from programs.case import Case, floats, ints
from programs.structures import Point


@batch
def squares(n, m):
    buffer = np.zeros(5, dtype="int64")
    rows = np.zeros((3, 2))
    for i in range(n):
        buffer = write(buffer, i, i * i)
        if i < m:
            rows = write(rows, i, ops.stack([float(i), 0.5]))
            copy = write(buffer, 0, 7)
            buffer = write(copy, i, buffer[i] + copy[0])
    return buffer, rows


@batch
def recursive_record(trace, n, depth):
    """A structure of buffers written through a recursion."""
    trace = autobatch.write(trace, n, Point(depth, 0.5 * float(n)))
    if n == 0:
        return trace, depth
    trace, last = recursive_record(trace, n - 1, depth + 1)
    return trace, last + depth


@batch
def quicksort(a, low, high):
    """Hoare's partition in place, both sides by recursion with the buffer threaded through."""
    if low >= high:
        return a
    pivot = a[(low + high) // 2]
    i = low
    j = high
    while i <= j:
        while a[i] < pivot:
            i += 1
        while a[j] > pivot:
            j -= 1
        if i <= j:
            left, right = a[i], a[j]
            a = write(a, i, right)
            a = write(a, j, left)
            i += 1
            j -= 1
    a = quicksort(a, low, j)
    return quicksort(a, i, high)


@batch
def quickselect(a, low, high, k):
    """The k-th smallest: a tail call on one side only."""
    boundary = low
    for i in range(low, high):
        if a[i] < a[high]:
            kept, moved = a[boundary], a[i]
            a = write(a, boundary, moved)
            a = write(a, i, kept)
            boundary += 1
    kept, moved = a[boundary], a[high]
    a = write(a, boundary, moved)
    a = write(a, high, kept)
    if boundary == k:
        return a[k]
    if k < boundary:
        return quickselect(a, low, boundary - 1, k)
    return quickselect(a, boundary + 1, high, k)


@batch
def fresh_tables(n):
    """Arrays made on the spot and indexed by lane variables, in one block: no variable of the machine holds them."""
    weights = np.array([3, 1, 2])
    first = weights[n % 3]
    empty = np.zeros((2, 2))
    return first + np.arange(4)[-first], empty[n % 2, 0] + float(first)


LEFT = np.array([1, 3, -1, -1, 6, -1, -1])
RIGHT = np.array([2, 4, 5, -1, -1, -1, -1])
KEY = np.array([50, 30, 70, 10, 40, 90, 35])


@batch
def sum_above(node, bound):
    """A walk over a tree given by arrays around the function; whole subtrees are left out."""
    if node < 0:
        return 0
    if KEY[node] <= bound:
        return sum_above(RIGHT[node], bound)
    return KEY[node] + sum_above(LEFT[node], bound) + sum_above(RIGHT[node], bound)


@batch
def find_in_tree(left, right, keys, wanted):
    """Each lane has a tree of its own."""
    node = 0
    steps = 0
    while node >= 0 and keys[node] != wanted:
        node = left[node] if wanted < keys[node] else right[node]
        steps += 1
    return node, steps


@batch
def tree_heights(left, right, node, heights):
    """Heights of all nodes, written on the way up; the buffer goes through both calls."""
    if node < 0:
        return heights, 0
    heights, a = tree_heights(left, right, left[node], heights)
    heights, b = tree_heights(left, right, right[node], heights)
    height = max(a, b) + 1
    heights = write(heights, node, height)
    return heights, height


@batch
def sieve(n):
    """A table of flags, marked in strides."""
    composite = np.zeros(20, dtype=bool)
    count = 0
    for i in range(2, n):
        if composite[i]:
            continue
        count += 1
        k = i * i
        while k < n:
            composite = write(composite, k, True)
            k += i
    return composite, count


@batch
def own_stack(n):
    """A recursion written out with a stack of its own."""
    stack = np.zeros(12, dtype="int64")
    stack = write(stack, 0, n)
    height = 1
    total = 0
    while height > 0:
        height -= 1
        top = stack[height]
        if top <= 1:
            total += 1
            continue
        stack = write(stack, height, top - 1)
        stack = write(stack, height + 1, top - 2)
        height += 2
    return total


TREES = (ints([1, -1, 3, -1], [-1, 2, -1, -1], [1, 3, -1, -1]), ints([2, -1, -1, -1], [1, 3, -1, -1], [2, -1, -1, -1]))

CASES = (
    Case(squares, (ints(0, 3, 5), ints(1, 2, 0))),
    Case(recursive_record, (Point(np.zeros((3, 4), "int64"), np.zeros((3, 4))), ints(0, 3, 2), ints(5, 6, 7))),
    Case(quicksort, (ints([4, 1, 3, 2, 5], [1, 2, 3, 4, 5], [9, 9, 1, 9, 0]), ints(0, 1, 0), ints(4, 3, 4))),
    Case(quickselect, (floats([4, 1, 3, 2], [1, 2, 3, 4], [5, 5, 5, 0]), ints(0, 0, 0), ints(3, 3, 3), ints(1, 3, 2))),
    Case(fresh_tables, (ints(0, 4, 5),)),
    Case(sum_above, (ints(0, 0, 4, 6), ints(0, 45, 34, 99))),
    Case(find_in_tree, (*TREES, ints([20, 10, 30, 25], [10, 40, 20, 50], [50, 30, 60, 10]), ints(25, 99, 10))),
    Case(tree_heights, (*TREES, ints(0, 0, 1), np.zeros((3, 4), "int64"))),
    Case(sieve, (ints(2, 20, 13),)),
    Case(own_stack, (ints(0, 5, 3),)),
)

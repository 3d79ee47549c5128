"""What was emitted of a program, kept on disk by what the program itself is kept by: a later start emits nothing.

An entry says which machine code is the program's, and what drives it needs to know. The machine code has an entry of
its own, by its text (compile.py), so that programs of which the same is emitted share it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import astuple

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.native.arrays import CHECKS
from batchnuts.autobatch.native.compile import surroundings
from batchnuts.autobatch.native.emit import CodeNotes
from batchnuts.autobatch.native.segments import Segments, Wait
from batchnuts.autobatch.runtime.faults import Fault, FaultKind
from batchnuts.disk_cache.folder import current
from batchnuts.disk_cache.identity import digest_of


def notes_key(program: str, segments: Segments, extents: Mapping[int, int], profiled: bool) -> str:
    """The key of an entry. program: that of the program, which says how it was written and compiled; the segments say
    which of its primitives are emitted here."""
    parts = [(segment.label, len(segment.ops), isinstance(segment.end, Wait)) for segment in segments.segments]
    besides = (repr(parts), repr(list(extents)), repr(profiled), repr(os.environ.get(CHECKS)))
    return digest_of("emitted", program, *besides, *surroundings())


def kept_notes(key: str) -> tuple[CodeNotes, str] | None:
    """What is to be known of a program's code, and the key of that; None where it is not kept."""
    entries = current()
    content = None if entries is None else entries.get(key)
    if entries is None or content is None:
        return None
    try:
        entry = json.loads(content)
        faults = tuple(
            Fault(FaultKind(kind), subject, source and Source(*source)) for kind, subject, source in entry["faults"]
        )
        lists = (tuple(entry[name]) for name in ("sizes", "c_functions"))
        return CodeNotes(entry["scratch_bytes"], faults, *lists), entry["code"]
    except Exception:  # sound, but of something that this version does not read
        entries.drop(key)
        return None


def keep_notes(key: str, notes: CodeNotes, code: str) -> None:
    """Keep what is to be known of a program's code, whose key is `code`."""
    if (entries := current()) is None:
        return
    faults = [(fault.kind.value, fault.subject, fault.source and astuple(fault.source)) for fault in notes.faults]
    entry = {"code": code, "scratch_bytes": notes.scratch_bytes, "faults": faults}
    entry |= {"sizes": list(notes.sizes), "c_functions": list(notes.c_functions)}
    entries.put(key, json.dumps(entry).encode())

"""What a measurement was made with is reported as the system reports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import archspec.cpu
import pytest

from batchnuts.experiments.harness import provenance
from batchnuts.experiments.harness.provenance import describe_environment
from batchnuts.process.memory import machine_memory


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which cores may be used")
def test_the_machine_is_what_the_system_says() -> None:
    described = describe_environment()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert described["memory_gib"] == round(memory / 2**30, 1)
    assert described["processors_usable"] == len(os.sched_getaffinity(0))
    assert described["processors"] == os.cpu_count()
    assert 0 < machine_memory() <= memory
    assert described["processor"]
    assert described["packages"]["numpy"]


def test_the_processor_is_named_as_linux_names_it() -> None:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    if not names:
        pytest.skip("the system does not name its processor there")
    assert describe_environment()["processor"] == names[0].partition(":")[2].strip()


def test_a_processor_without_a_name_is_named_by_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archspec.cpu, "brand_string", lambda: None)
    monkeypatch.setattr(provenance.platform, "processor", lambda: "")
    monkeypatch.setattr(provenance.platform, "machine", lambda: "aarch64")
    assert describe_environment()["processor"] == "aarch64"


def test_without_an_affinity_all_cores_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        """As psutil's under macOS."""

    monkeypatch.setattr(provenance.psutil, "Process", Process)
    described: dict[str, Any] = describe_environment()
    assert described["processors_usable"] == described["processors"]

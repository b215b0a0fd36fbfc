"""Freed memory is there for the next large request."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_SCRIPT = """
import resource
from surgetank.gateway.heap import keep_freed_memory

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        held = [bytes(400_000) + b"x" for _ in range(4)]
        del held
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / rounds

faults(5)
by_default = faults(20)
keep_freed_memory()
faults(5)
print(by_default, faults(20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's own behaviour")
def test_large_blocks_are_used_again_without_a_page_fault() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, check=True)
    by_default, kept = map(float, done.stdout.split())
    assert kept < 0.1 * by_default

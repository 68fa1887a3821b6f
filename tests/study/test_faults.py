"""Faults of the system and those of a call."""

from __future__ import annotations

import errno

from zenith_tune.study.faults import is_system_fault


def test_a_lack_of_descriptors_is_a_fault_of_the_system() -> None:
    assert is_system_fault(OSError(errno.EMFILE, "Too many open files"))
    assert not is_system_fault(OSError(errno.E2BIG, "too long"))

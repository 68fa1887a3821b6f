"""The examples of verdict."""

from __future__ import annotations

from zenith_tune.runners.slurm.client import JobStatus
from zenith_tune.runners.slurm.verdict import describe_status, exit_code, never_starts


def test_a_job_beyond_its_partition_never_starts() -> None:
    assert never_starts("PartitionNodeLimit")
    assert not never_starts("Resources")
    assert not never_starts("QOSMaxJobsPerUserLimit")


def test_a_pending_job_has_its_reason() -> None:
    assert describe_status(JobStatus(job_id="7", state="PENDING", reason="Resources")) == "pending (Resources)"


def test_a_signal_is_an_exit_code() -> None:
    assert exit_code("3:0") == 3
    assert exit_code("0:9") == 137
    assert exit_code("") is None

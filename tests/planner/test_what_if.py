from __future__ import annotations

import pytest

from tests.layouts.specs import job
from tests.mentions import mentions
from tests.planner.planners import planner
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.errors import UsageError
from zenith_tune.planner.what_if import Change, changed, parse_changes

CLUSTER, JOB, BATCH = load_cluster("h100x64"), job(), 512


def after(text: str) -> tuple[ClusterSpec, JobSpec, int]:
    return changed(CLUSTER, JOB, BATCH, parse_changes(text))


def test_a_sign_adds_and_none_sets() -> None:
    memory = CLUSTER.gpu.memory_bytes
    assert after("mem=+8")[0].gpu.memory_bytes == memory + 8 * 2**30
    assert after("mem=-8")[0].gpu.memory_bytes == memory - 8 * 2**30
    assert after("mem=100")[0].gpu.memory_bytes == 100 * 2**30
    cluster, other_job, batch = after("gpus=+64,seq=4096,gbs=1024")
    assert (cluster.num_gpus, other_job.seq_len, batch) == (128, 4096, 1024)
    assert cluster.name == "h100x128"


def test_memory_that_is_set_below_what_there_is_hints_at_adding_it() -> None:
    at = planner("llama3-8b", "h100x8")
    hint = at.what_if(64, "mem=60").hint
    assert mentions(hint, "mem=60", "79.1 GiB", "mem=+60")
    assert at.what_if(64, "mem=+60").hint is None and at.what_if(64, "mem=-8").hint is None


@pytest.mark.parametrize(
    "text", ["memory=8", "mem=lots", "mem=", "", "gpus=12.5", "gpus=-64", "mem=-500", "gbs=0", "mem=8,mem=9"]
)
def test_a_mistake_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        after(text)
    assert "--what-if" in str(caught.value) and "\n" not in str(caught.value)


def test_a_sign_makes_a_change_relative() -> None:
    assert parse_changes("mem=+8") == [Change(key="mem", value=8.0, is_relative=True)]

from __future__ import annotations

import pytest

from tests.layouts.specs import job
from tests.mentions import mentions
from tests.planner.planners import planner
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.errors import UsageError
from zenith_tune.planner.what_if import Situation, parse_changes

NOW = Situation(cluster=load_cluster("h100x64"), job=job(), global_batch=512)


def test_a_sign_adds_and_none_sets() -> None:
    memory = NOW.cluster.gpu.memory_bytes
    assert NOW.changed(parse_changes("mem=+8")).cluster.gpu.memory_bytes == memory + 8 * 2**30
    assert NOW.changed(parse_changes("mem=-8")).cluster.gpu.memory_bytes == memory - 8 * 2**30
    assert NOW.changed(parse_changes("mem=100")).cluster.gpu.memory_bytes == 100 * 2**30
    then = NOW.changed(parse_changes("gpus=+64,seq=4096,gbs=1024"))
    assert (then.cluster.num_gpus, then.job.seq_len, then.global_batch) == (128, 4096, 1024)
    assert then.cluster.name == "h100x128"


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
        NOW.changed(parse_changes(text))
    assert "--what-if" in str(caught.value) and "\n" not in str(caught.value)

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.data_folder import measured_data
from tests.estimates.memory_cases import llama, memory_of
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_calibration.calibrate.memory_fit import MemoryRows
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.framework_spec import known_frameworks, load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UnknownNameError
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.memory import estimate_memory
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.units import MIB


def h200_runs() -> list[MeasuredRun]:
    return [run for run in read_measured(measured_data()) if run.source.startswith("h200") and run.memory_bytes]


def test_every_h200_run_is_estimated_within_half_a_percent_without_any_fit() -> None:
    runs = h200_runs()
    assert len(runs) >= 30
    for run in runs:
        estimated = MemoryRows.of([run], load_framework(run.framework)).printed(MemoryCoefficients())[0]
        assert estimated == pytest.approx(run.memory_bytes, rel=0.005), run


# One H200, torch 2.11, November 2026: Megatron Core 0.20 (--transformer-impl local), transformers 5.17 with accelerate.
# Peak allocated MiB without the matrix library's workspaces; 4 layers, hidden 1024, 32,000 words, unless said.
PROBES = [
    pytest.param("megatron-local", {"num_kv_heads": 16}, {"mbs": 2}, 5041.0, id="all heads"),
    pytest.param("megatron-local", {}, {"mbs": 2, "recompute": 1}, 4017.8, id="selective"),
    pytest.param("megatron-local", {}, {"mbs": 2, "recompute": 2, "recompute_layers": 1}, 3549.7, id="uniform 1"),
    pytest.param("megatron-local", {}, {"mbs": 2, "recompute": 2, "recompute_layers": 2}, 3951.8, id="uniform 2"),
    pytest.param("megatron-local", {}, {"mbs": 2, "recompute": 3, "recompute_layers": 2}, 4052.9, id="block 2"),
    pytest.param("megatron-local", {"tied_embeddings": True}, {"mbs": 2}, 4308.5, id="tied"),
    pytest.param("megatron-local", {"qk_norm": True}, {"mbs": 2}, 4954.3, id="normed queries"),
    pytest.param("hf-accelerate", {}, {"mbs": 16}, 22024.5, id="autocast"),
    pytest.param("hf-accelerate", {}, {"mbs": 16, "recompute": 2, "recompute_layers": 1}, 14343.0, id="checkpointed"),
    pytest.param("hf-accelerate", {"num_kv_heads": 16}, {"mbs": 8}, 12103.8, id="autocast, all heads"),
    pytest.param("hf-accelerate", {"qk_norm": True}, {"mbs": 8}, 12312.8, id="autocast, normed queries"),
    pytest.param("hf-accelerate", {"vocab": 2048}, {"mbs": 16}, 10027.5, id="few words"),
]


@pytest.mark.parametrize(("framework", "shape", "layout", "measured_mib"), PROBES)
def test_other_shapes_on_an_h200_are_estimated_within_a_percent(
    framework: str, shape: dict[str, int], layout: dict[str, int], measured_mib: float
) -> None:
    beside_workspaces = MemoryCoefficients(fixed_bytes=6 * MIB)
    flash = framework == "hf-accelerate"
    found = memory_of(llama(**shape), framework, {"flash_attention": flash, **layout}, coefficients=beside_workspaces)
    assert found.allocated_bytes[0] / MIB == pytest.approx(measured_mib, rel=0.01)


def test_a_mixture_of_experts_on_an_h200_is_estimated_within_a_percent() -> None:
    # The same machine; 8 experts of width 2048, 2 chosen, sequence 1024.
    experts = {"num_experts": 8, "top_k": 2, "moe_ffn_hidden": 2048, "ffn_hidden": 2048}
    beside_workspaces = MemoryCoefficients(fixed_bytes=6 * MIB)
    layout = {"flash_attention": False, "mbs": 4}
    found = memory_of(llama(**experts), "megatron-local", layout, seq_len=1024, coefficients=beside_workspaces)
    assert found.allocated_bytes[0] / MIB == pytest.approx(6896.1, rel=0.01)


def test_megatron_cores_7b_memory_test_is_estimated_within_two_percent() -> None:
    # gpt3_7b_tp1_pp4_memory_speed on H100, golden value of 2026-05-30: 56.55 GiB allocated on the last rank.
    model = llama(
        num_layers=32, hidden=4096, ffn_hidden=16384, num_heads=32, num_kv_heads=8, vocab=131073, gated_mlp=False
    )
    layout = {"pp": 4, "vp": 8, "dp": 2, "gbs": 8, "zero": 1}
    found = memory_of(model, "megatron", layout, seq_len=8192, stage=3.0)
    assert found.allocated_bytes[0] / 2**30 == pytest.approx(56.55, rel=0.02)


def random_layouts(size: int = 300) -> LayoutBatch:
    rng = np.random.default_rng(7)
    columns: dict[str, npt.ArrayLike] = {
        name: rng.choice([1, 2, 4], size) for name in ("tp", "pp", "vp", "cp", "dp", "mbs")
    }
    columns |= {"zero": rng.integers(0, 2, size), "recompute": rng.integers(0, 4, size), "recompute_layers": 1}
    columns |= {name: rng.integers(0, 2, size) == 1 for name in ("sequence_parallel", "flash_attention")}
    return LayoutBatch.of(**columns, gbs=256)


FRAMEWORKS = ["megatron", "megatron-local", "megatron-ci", "nanotron", "hf-accelerate", "fsdp", "deepspeed"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_many_layouts_at_once_are_estimated_as_one_at_a_time(framework: str, model: str) -> None:
    spec = load_framework(framework)
    workload = Workload.of(load_model(model), JobSpec(seq_len=4096, framework=spec))
    layouts, c = random_layouts(), MemoryCoefficients()
    together = estimate_memory(workload, layouts, spec, c)
    rows = Workload.stack([workload] * len(layouts))
    assert estimate_memory(rows, layouts, spec, c).device_bytes == pytest.approx(together.device_bytes)
    for index in range(0, len(layouts), 10):
        alone = estimate_memory(workload, layouts.take(np.array([index])), spec, c)
        assert alone.device_bytes[0] == pytest.approx(together.device_bytes[index])
        assert alone.stage[0] == together.stage[index]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("model", ["llama3-70b", "llama3-405b", "deepseek-v3"])
def test_no_stage_needs_more_than_the_one_that_is_reported(framework: str, model: str) -> None:
    spec = load_framework(framework)
    workload = Workload.of(load_model(model), JobSpec(seq_len=4096, framework=spec))
    layouts, c = random_layouts(), MemoryCoefficients()
    fullest = estimate_memory(workload, layouts, spec, c).allocated_bytes
    for rank in range(4):
        stage = np.minimum(float(rank), layouts.pp - 1.0)
        assert (estimate_memory(workload, layouts, spec, c, stage).allocated_bytes <= fullest * (1 + 1e-9)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_parts_add_up_to_the_device_memory(framework: str) -> None:
    layouts = random_layouts()
    spec = load_framework(framework)
    workload = Workload.of(load_model("llama3-8b"), JobSpec(seq_len=4096, framework=spec))
    found = estimate_memory(workload, layouts, spec, MemoryCoefficients())
    assert sum(found.parts.values()) == pytest.approx(found.device_bytes)
    assert all((part >= 0).all() for part in found.parts.values())


def test_a_larger_micro_batch_never_needs_less() -> None:
    found = memory_of(load_model("llama3-8b"), "megatron", {"tp": 2, "mbs": [1, 2, 4, 8], "gbs": 8})
    assert (np.diff(found.allocated_bytes) > 0).all()


def test_frameworks_go_by_their_aliases_and_unknown_ones_are_named() -> None:
    assert load_framework("Accelerate").name == "hf-accelerate"
    assert {"megatron", "nanotron", "hf-accelerate", "fsdp", "deepspeed"} <= set(known_frameworks())
    with pytest.raises(UnknownNameError, match=r"'megatrn'.*'megatron'"):
        load_framework("megatrn")

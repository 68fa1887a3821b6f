"""Models of the user's own that no config describes, built and run with fake tensors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.plan_runs import Plan, as_json, planning
from tests.requirements import need_module
from zenith_tune.describe.config_spec import model_spec_from_config
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.estimates.memory import estimate_memory
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.own_module import traced_model

HIDDEN, LAYERS, WORDS, SEQ = 256, 4, 1000, 128
JOB = ("--cluster", "h100x8", "--gbs", "64")
OWN = f"""
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(h), nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        self.attention = nn.MultiheadAttention(h, 4, batch_first=True)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))

class Own(nn.Module):
    def __init__(self, h, layers):
        super().__init__()
        self.words, self.head = nn.Embedding({WORDS}, h), nn.Linear(h, {WORDS}, bias=False)
        self.blocks = nn.ModuleList([Block(h) for _ in range(layers)])

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def build():
    return Own({HIDDEN}, {LAYERS})

def large():
    return Own(16384, 100)

def tied():
    model = build()
    model.head.weight = model.words.weight
    return model

class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.GELU()) for _ in range(6)])

    def forward(self, images):
        return self.blocks(self.first(images))

def images():
    return Images(), {{"images": torch.zeros(2, 3, 16, 16)}}

def fails():
    raise ValueError("two\\nlines")

def no_module():
    return 3

def frozen():
    return build().requires_grad_(False)

class Routed(Own):
    def forward(self, tokens):
        x = self.words(tokens)
        return super().forward(tokens) + x[x.sum(-1) > 0].sum()

def routed():
    return Routed({HIDDEN}, {LAYERS})
"""
SHAPE = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
LLAMA = f"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def whole():
    return LlamaForCausalLM(LlamaConfig(**{SHAPE}))

class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = whole()

    def forward(self, tokens):
        return self.inner(input_ids=tokens).logits
"""


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    need_module("engines", "torch")
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    need_module("engines", "transformers")
    path = tmp_path / "llama.py"
    path.write_text(LLAMA, encoding="utf-8")
    return path


def traced(where: str, framework: str = "fsdp", seq_len: int | None = SEQ) -> ModelSpec:
    return traced_model(where, framework=load_framework(framework), precision="bf16", seq_len=seq_len)[0]


def block_params() -> int:
    attention = 4 * HIDDEN * HIDDEN + 4 * HIDDEN
    return attention + 2 * HIDDEN + 8 * HIDDEN * HIDDEN + 5 * HIDDEN


def test_blocks_and_parameters_are_those_of_the_module(own: Path) -> None:
    spec = traced(f"{own}:build")
    assert (spec.num_layers, spec.hidden, spec.vocab) == (LAYERS, HIDDEN, WORDS)
    assert spec.dense_layer_params == block_params()
    assert spec.num_params == LAYERS * block_params() + 2 * WORDS * HIDDEN
    assert traced(f"{own}:tied").num_params == spec.num_params - WORDS * HIDDEN


def test_a_block_keeps_half_precision_unless_the_framework_casts_as_it_goes(own: Path) -> None:
    spec, cast = traced(f"{own}:build"), traced(f"{own}:build", "hf-accelerate")
    assert spec.traced is not None and cast.traced is not None
    # Inputs of the norm, of three projections, of the output's, and of both products; q, k, v, output; and its relu.
    half, widths = 2, (1 + 1 + 3 + 1 + 1) + 4
    assert spec.traced.saved_bytes == pytest.approx(half * widths * HIDDEN, rel=0.1)
    assert cast.traced.saved_bytes > spec.traced.saved_bytes


def test_a_model_of_any_size_takes_no_memory(own: Path) -> None:
    assert traced(f"{own}:large").num_params > 300e9


def test_inputs_that_come_with_the_module_say_its_tokens(own: Path, plan: Plan) -> None:
    shown = as_json(plan("--module", f"{own}:images", *JOB, "--json"))
    assert shown["seq_len"] == 16 * 16
    assert plan("--module", f"{own}:images", *JOB, "--seq", "77").code == 2


def test_a_plan_of_a_module_splits_none_of_its_layers(own: Path, plan: Plan) -> None:
    shown = as_json(plan("--module", f"{own}:build", *JOB, "--seq", str(SEQ), "--json"))
    assert shown["framework"] == "fsdp" and len(shown["assumptions"]) == 2
    for best in shown["best"]:
        assert {best["layout"][size] for size in ("tp", "pp", "cp", "ep")} == {1}


def test_a_module_of_a_package_is_found_from_the_current_folder(
    own: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = own.parent / "mine_of_test"
    package.mkdir()
    (package / "model.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(own.parent)
    before = list(sys.path)
    assert plan("--module", "mine_of_test.model:build", *JOB, "--seq", str(SEQ)).code == 0
    assert sys.path == before


@pytest.mark.parametrize("name", ["fails", "no_module", "frozen", "routed", "Block", "nothing"])
def test_what_cannot_be_planned_is_one_line(own: Path, plan: Plan, name: str) -> None:
    done = plan("--module", f"{own}:{name}", *JOB, "--seq", str(SEQ))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--module", "missing.py:build", "--seq", "8"),
        ("--module", "no.such.module:build", "--seq", "8"),
        ("--module", "build", "--seq", "8"),
        ("--module", "{own}:build"),
        ("--module", "{own}:build", "--seq", "8", "--model", "llama3-8b"),
        ("--module", "{own}:build", "--seq", "8", "--framework", "megatron"),
        ("--module", "{own}:build", "--seq", "8", "--emit", "megatron"),
    ],
)
def test_what_contradicts_a_module_is_refused(own: Path, plan: Plan, options: tuple[str, ...]) -> None:
    assert plan(*(each.format(own=own) for each in options), *JOB).code == 2


def test_without_torch_the_error_says_what_to_install(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own.write_text("def build():\n    return None\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError) as raised:
        traced(f"{own}:build")
    assert "pip install" in raised.value.hint


def test_a_config_that_the_module_carries_is_planned_with(llama: Path) -> None:
    spec = traced(f"{llama}:whole")
    assert spec.traced is None and spec.num_kv_heads == SHAPE["num_key_value_heads"]


def test_a_known_model_is_planned_alike_by_its_config_and_by_its_module(llama: Path) -> None:
    described = model_spec_from_config({"model_type": "llama", **SHAPE}, "llama")
    seen = traced(f"{llama}:Wrapped", "hf-accelerate", 1024)
    assert seen.num_params == described.num_params
    assert seen.num_layers == described.num_layers
    job = JobSpec(seq_len=1024, framework=load_framework("hf-accelerate"))
    assert activation_bytes(seen, job) == pytest.approx(activation_bytes(described, job), rel=0.03)
    best = [_best(spec, job) for spec in (seen, described)]
    assert best[0] == best[1]


def activation_bytes(spec: ModelSpec, job: JobSpec) -> float:
    layouts = batch_of([Layout(num_gpus=8, micro_batch=4, global_batch=64)])
    planner = _planner(spec, job)
    found = estimate_memory(Workload.of(spec, job), layouts, job.framework, planner.calibration.memory)
    return float(found.parts["activations"][0])


def _best(spec: ModelSpec, job: JobSpec) -> Layout:
    return _planner(spec, job).plan(64).best[0].layout


def _planner(spec: ModelSpec, job: JobSpec) -> Planner:
    from zenith_tune.describe.cluster_catalog import load_cluster

    return Planner(spec, load_cluster("h100x8"), job)

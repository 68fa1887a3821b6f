"""The hook in a process of its own, with small stand-ins for Accelerate and torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zenith_tune.evaluators import hooked_run as accelerate_run
from zenith_tune.hooks import accelerate as accelerate_hook
from zenith_tune.hooks.injection import hook_events
from zenith_tune.presets.accelerate.emit import HOOK_FILES

TORCH = """
class nn:
    class Module:
        trained = True
        def parameters(self):
            yield type("Parameter", (), {{"requires_grad": self.trained}})
class cuda:
    @staticmethod
    def is_available(): return {cuda}
    @staticmethod
    def synchronize(): pass
    @staticmethod
    def max_memory_reserved(): return 7
"""
ACCELERATOR = """
import torch
class GradientState:
    sync_gradients, end_of_dataloader = True, False
class State:
    class deepspeed_plugin:
        zero_stage, offload_optimizer_device, offload_param_device = 2, "cpu", object()
    class megatron_lm_plugin:
        megatron_lm_default_args = {"tensor_model_parallel_size": 4, "seq_length": 3, "recompute_method": None}
class AcceleratedOptimizer:
    gradient_state = GradientState()
    def step(self): return "stepped"
class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    def step(self): pass
class DistributedDataParallel(torch.nn.Module): pass
class Accelerator:
    process_index, num_processes, distributed_type, gradient_accumulation_steps, state = 0, 2, "MULTI_GPU", 2, State
    def prepare(self, *args): return args if len(args) > 1 else args[0]
    def backward(self, loss): return loss
"""
TRAIN = """
from accelerate.accelerator import *
accelerator, optimizer = Accelerator(), {optimizer}()
class Loader: batch_size = 4
print(len(accelerator.prepare(DistributedDataParallel(), optimizer, Loader())))
for step in range(4):
    accelerator.backward(1)
    optimizer.gradient_state.sync_gradients = step % 2 == 1
    optimizer.step()
print("trained")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    (folder / "accelerate").mkdir(parents=True)
    (folder / "torch.py").write_text(TORCH.format(cuda=True))
    (folder / "accelerate" / "__init__.py").write_text("__version__ = '9.9'\n")
    (folder / "accelerate" / "accelerator.py").write_text(ACCELERATOR)
    for name, text in HOOK_FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return folder


def run(program: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [folders[0].parent / "hook", *folders]))
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=500)


def events(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found = hook_events(done.stderr)
    assert len(found) == len(done.stderr.splitlines()), done.stderr
    return found


def test_hook_and_reader_know_the_same_wrappers() -> None:
    assert set(accelerate_hook.WRAPPERS) == set(accelerate_run.WRAPPER_NAMES)


@pytest.mark.parametrize("optimizer", ["AcceleratedOptimizer", "DeepSpeedOptimizerWrapper"])
def test_what_was_prepared_is_reported_and_every_step_once(site: Path, optimizer: str) -> None:
    done = run(TRAIN.format(optimizer=optimizer), site)
    assert (done.returncode, done.stdout) == (0, "3\ntrained\n")
    prepared, *steps = events(done)
    assert (prepared["processes"], prepared["wrapper"], prepared["type"]) == (2, "DistributedDataParallel", "MULTI_GPU")
    assert (prepared["version"], prepared["accumulation"], prepared["batch_sizes"]) == ("9.9", 2, [4])
    assert prepared["settings"] == {
        "zero_stage": 2,
        "offload_optimizer_device": "cpu",
        "tensor_model_parallel_size": 4,
    }
    assert [(step["step"], step["passes"], step["peak_bytes"]) for step in steps] == [(1, 2, 7), (2, 2, 7)]
    assert steps[0]["seconds"] <= steps[1]["seconds"]


def test_what_fsdp2_prepares_is_a_list(site: Path) -> None:
    (site / "accelerate" / "accelerator.py").write_text(
        ACCELERATOR.replace("return args if len(args) > 1 else args[0]", "return list(args)")
    )
    program = (
        "from accelerate.accelerator import *\nclass FSDPModule(torch.nn.Module): pass\n"
        "Accelerator().prepare(FSDPModule(), AcceleratedOptimizer())"
    )
    assert [event["wrapper"] for event in events(run(program, site))] == ["FSDPModule"]


def test_other_ranks_tell_no_steps_and_a_second_optimizer_is_none(site: Path) -> None:
    two = TRAIN.format(optimizer="AcceleratedOptimizer") + "AcceleratedOptimizer().step()\n"
    assert [event["event"] for event in events(run(two, site))].count("step") == 2
    setting = "accelerator, optimizer = "
    other = TRAIN.format(optimizer="AcceleratedOptimizer").replace(setting, f"Accelerator.process_index = 1\n{setting}")
    assert [event["event"] for event in events(run(other, site))] == ["prepared"]


def test_a_model_in_no_wrapper_is_reported_by_its_own_name(site: Path) -> None:
    program = "from accelerate.accelerator import *\nclass Gpt(torch.nn.Module): pass\nAccelerator().prepare(Gpt())"
    [event] = events(run(program, site))
    assert event["wrapper"] == "Gpt"


@pytest.mark.parametrize(
    "calls",
    [
        "prepare(DistributedDataParallel()); accelerator.prepare(Teacher())",
        "prepare(Teacher(), DistributedDataParallel())",
        "prepare(Teacher()); accelerator.prepare(DistributedDataParallel())",
    ],
)
def test_a_frozen_model_says_nothing_of_the_job(site: Path, calls: str) -> None:
    frozen = "class Teacher(torch.nn.Module): trained = False"
    program = f"from accelerate.accelerator import *\n{frozen}\naccelerator = Accelerator()\naccelerator.{calls}"
    assert [event["wrapper"] for event in events(run(program, site))] == ["DistributedDataParallel"]


def test_of_two_models_that_train_the_wrapped_one_is_reported(site: Path) -> None:
    two = "class Critic(torch.nn.Module): pass\nAccelerator().prepare(Critic(), DistributedDataParallel())"
    [event] = events(run(f"from accelerate.accelerator import *\n{two}", site))
    assert event["wrapper"] == "DistributedDataParallel"


def test_a_step_at_the_end_of_the_dataloader_is_reported(site: Path) -> None:
    ended = "optimizer.gradient_state.end_of_dataloader = step == 3\n    optimizer.step()"
    program = TRAIN.format(optimizer="AcceleratedOptimizer").replace("optimizer.step()", ended)
    assert [step["is_end"] for step in events(run(program, site))[1:]] == [False, True]


def test_a_compiled_model_is_reported_by_what_it_holds(site: Path) -> None:
    held = "class Optimized(torch.nn.Module): _orig_mod = DistributedDataParallel()"
    program = f"from accelerate.accelerator import *\n{held}\nAccelerator().prepare(Optimized())"
    [event] = events(run(program, site))
    assert event["wrapper"] == "DistributedDataParallel"


def test_an_accelerate_of_another_shape_is_left_alone(site: Path) -> None:
    (site / "accelerate" / "accelerator.py").write_text("class Accelerator: pass\n")
    done = run("from accelerate.accelerator import Accelerator\nprint(Accelerator.__name__)", site)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Accelerator\n", "")


def test_programs_without_accelerate_are_left_alone_and_the_users_own_sitecustomize_runs(site: Path) -> None:
    own = site / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.greeting = 'hello'\n")
    done = run("print(greeting)", site, own)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_fsdp_says_whether_it_offloads_in_either_version() -> None:
    class CPUOffloadPolicy:
        pass

    class OffloadPolicy:
        pass

    policies = (CPUOffloadPolicy(), OffloadPolicy(), SimpleNamespace(offload_params=True))
    states = [SimpleNamespace(fsdp_plugin=SimpleNamespace(cpu_offload=policy)) for policy in policies]
    assert [accelerate_hook.settings_of(state)["offload_params"] for state in states] == [True, False, True]


GIVING = """
from accelerate import accelerator as library
library.MegatronLMPlugin(2, pp_degree=None, other_megatron_args={"a": 1})
accelerator = library.Accelerator(gradient_accumulation_steps=8)
optimizer = library.AcceleratedOptimizer()
library.GradientState.active_dataloader = type("Loader", (), {"total_batch_size": 6})
accelerator.prepare(library.DistributedDataParallel(), optimizer)
for _ in range(4):
    accelerator.backward(1)
optimizer.step()
"""
PLUGIN = """
class MegatronLMPlugin:
    def __init__(self, tp_degree=None, pp_degree=None, other_megatron_args=None): pass
"""


def test_what_a_program_gives_itself_is_reported_and_the_samples_of_an_update(site: Path) -> None:
    taking = 'state = 0, 2, "MULTI_GPU", 2, State\n    def __init__(self, gradient_accumulation_steps=1): pass'
    library = ACCELERATOR.replace('state = 0, 2, "MULTI_GPU", 2, State', taking) + PLUGIN
    (site / "accelerate" / "accelerator.py").write_text(library)
    prepared, step = events(run(GIVING, site))
    assert prepared["given"] == {
        "Accelerator": {"gradient_accumulation_steps": 8},
        "MegatronLMPlugin": {"tp_degree": 2, "other_megatron_args": "dict"},
    }
    assert (step["passes"], step["samples"]) == (4, 24)

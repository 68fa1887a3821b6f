"""A torch of a few lines: optimizers with hooks, a GPU that counts, and flags that can be sent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from zenith_tune.hooks.injection import hook_files

OPTIMIZER = """
_hooks = []
def register_optimizer_step_post_hook(hook):
    _hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in _hooks:
            hook(self, (), {})
"""
CUDA = """
synchronized = 0
def is_available(): return True
def synchronize():
    global synchronized
    synchronized += 1
def mem_get_info(): return (70, 100)
def max_memory_allocated(): return 10 + synchronized
def max_memory_reserved(): return 20
def get_device_name(): return "Fake H200"
"""
NO_CUDA = "def is_available(): return False\n"
TORCH = """
from torch import cuda
long = object()
class Tensor:
    def __init__(self, values, dtype=long):
        self.values, self.dtype = list(values), dtype
    def numel(self): return len(self.values)
    def any(self): return any(self.values)
    def __setitem__(self, index, value): self.values[index] = value
from torch import distributed
"""
DISTRIBUTED = """
sent = []
def broadcast(tensor, src=None, group=None):
    sent.append(src)
    return "handle"
"""


def write_torch(folder: Path, *, optimizer: str = OPTIMIZER, cuda: str = CUDA) -> Path:
    """Write the packages torch and megatron into a folder, for PYTHONPATH."""
    files = {
        "torch/__init__.py": TORCH,
        "torch/cuda.py": cuda,
        "torch/distributed.py": DISTRIBUTED,
        "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer\n",
        "torch/optim/optimizer.py": optimizer,
        "megatron/__init__.py": "",
        "megatron/training/__init__.py": "",
        "megatron/training/training.py": "import torch\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def run_hooked(program: str, *places: Path, record: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as a rank under probe is run."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in hook_files({"probe": {"record": str(record)}}, folder=folder).items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, *places)))}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)

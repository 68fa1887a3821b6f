"""Stand in for what torchtitan asks of a device, so that it trains, as it is, on a machine that has none.

It reads the kind of the device from PyTorch, and calls what CUDA's module has and that of the CPU has not. Its
kernels for experts, which are not used here, are left out where there is no Triton to declare them.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

MEMORY = {"active_bytes.all.peak": 1 << 28, "reserved_bytes.all.peak": 1 << 29, "num_alloc_retries": 0, "num_ooms": 0}


def stand_in() -> None:
    import torch
    import torch.distributed

    found: Any = torch
    found._utils._get_available_device_type = lambda: "cpu"
    device, barrier = found.cpu, found.distributed.barrier
    device.get_device_name = lambda at=None: "CPU"
    device.get_device_properties = lambda at=None: types.SimpleNamespace(total_memory=1 << 34)
    device.memory_stats = lambda at=None: MEMORY
    device.reset_peak_memory_stats = lambda at=None: None
    device.empty_cache = lambda: None
    device.set_device = lambda at: None
    device.current_device = lambda: 0
    if importlib.util.find_spec("triton") is None:
        kernels = types.ModuleType("torchtitan.models.moe.kernels")
        kernels.__dict__["generate_permute_indices"] = None
        sys.modules[kernels.__name__] = kernels
    found.distributed.barrier = lambda *args, device_ids=None, **kwargs: barrier(*args, **kwargs)


class BeforeTitan(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> None:
        if fullname == "torchtitan":
            sys.meta_path.remove(self)
            stand_in()


sys.meta_path.insert(0, BeforeTitan())

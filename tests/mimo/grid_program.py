"""Make and destroy the groups of two grids on four ranks, and print what each rank saw as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.mimo.forked_world import run_world
from zenith_mimo.grid import HyperCommGrid


def raised(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except KeyError as error:
        return f"KeyError: {error.args[0]}"
    return "nothing"


def use_grids() -> dict[str, Any]:
    whole, tail = HyperCommGrid([2, 2], ["tp", "dp"]), HyperCommGrid([1, 2], ["tp", "dp"], rank_offset=2)
    early = raised(lambda: whole.get_pg("dp"))
    groups = {
        "tp": whole.create_pg("tp"),
        "dp": whole.create_pg(["dp"]),
        "dp-tp": whole.create_pg(["dp", "tp"]),
        "tail": tail.create_pg("dp"),
    }
    whole.register_view("expert", [1, 2, 2], ["expt_tp", "ep", "dp"], shared_dims=["dp"])
    groups["ep"] = whole.create_pg(["expt_tp", "ep"], view="expert", group_desc="experts")
    is_shared = whole.get_pg("dp", view="expert") is groups["dp"]
    sums = {}
    for name, group in groups.items():
        if group is not None:
            mine = torch.tensor(10 ** dist.get_rank())
            dist.all_reduce(mine, group=group)
            sums[name] = int(mine)
    result = {
        "early": early,
        "twice": raised(lambda: whole.create_pg(["tp", "dp"])),
        "sums": sums,
        "is_kept": whole.get_pg(["tp", "dp"]) is groups["dp-tp"] and tail.get_pg("dp") is groups["tail"],
        "is_shared": is_shared,
        "is_in_tail": tail.is_current_rank_in_grid(),
    }
    for _ in range(2):
        whole.destroy()
        tail.destroy()
    return {**result, "after": raised(lambda: whole.get_pg("tp")), "again": whole.create_pg("tp") is not None}


if __name__ == "__main__":
    print(json.dumps(run_world(4, use_grids)))

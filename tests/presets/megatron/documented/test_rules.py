"""The rules, stated a second time in the plainest way and compared over whole search spaces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mentions import mentions
from tests.presets.points import PLAIN
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.study.parameters import Params


class Model(NamedTuple):
    layers: int
    groups: int
    heads: int
    experts: int | None
    vision: bool


class Point(NamedTuple):
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    mbs: int
    granularity: str
    method: str
    num_layers: int
    vit: str


DENSE = Model(layers=30, groups=4, heads=12, experts=None, vision=False)
MIXTURE = Model(layers=48, groups=4, heads=32, experts=6, vision=False)
VISION = Model(layers=12, groups=6, heads=24, experts=None, vision=True)
VISION_MIXTURE = Model(layers=24, groups=2, heads=16, experts=128, vision=True)


def points_of(preset: MegatronPreset) -> Iterator[tuple[Params, Point]]:
    space = preset.get_search_space()
    for values in itertools.product(*(parameter.grid(1) for parameter in space.values())):
        yield dict(zip(space, values, strict=True)), Point(*values)  # type: ignore[arg-type]


def preset_for(folder: Path, model: Model | None, **args: Any) -> MegatronPreset:
    if model is None:
        return MegatronPreset(**args)
    config: dict[str, Any] = {
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.groups,
        "num_experts": model.experts,
    }
    if model.vision:
        config = {"text_config": config, "vision_config": {"depth": 2}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return MegatronPreset(model=str(folder), **args)


def documented(at: Point, n_gpus: int, gbs: int, model: Model | None) -> bool:
    total = at.tp * at.pp * at.cp * at.ep * at.etp
    if n_gpus % total != 0:
        return False
    if gbs % (n_gpus // total * at.mbs) != 0:
        return False
    if at.etp > at.tp:
        return False
    if model is None:
        return True
    if model.groups % at.tp != 0 or model.layers % at.pp != 0:
        return False
    if (model.layers // at.pp) % at.num_layers != 0:
        return False
    if model.experts is None and (at.ep, at.etp) != (1, 1):
        return False
    return not (model.vision and (at.granularity == "selective" or at.method == "block"))


def folded(at: Point, n_gpus: int, gbs: int, model: Model | None) -> bool:
    if n_gpus % (at.tp * at.pp * at.cp) != 0 or n_gpus % (at.etp * at.ep * at.pp) != 0:
        return False
    data_parallel = n_gpus // (at.tp * at.pp * at.cp)
    if gbs % (data_parallel * at.mbs) != 0:
        return False
    if at.granularity == "selective" and (at.method, at.num_layers) != ("uniform", 1):
        return False
    if model is None:
        return True
    if model.groups % at.tp != 0 and at.tp % model.groups != 0:
        return False
    if model.heads % at.tp != 0 or model.layers % at.pp != 0:
        return False
    if at.ep > 1 and (model.experts is None or model.experts % at.ep != 0):
        return False
    if model.experts is None and at.etp > 1:
        return False
    return not (model.vision and (at.granularity == "selective" or at.method == "block"))


@pytest.mark.parametrize("folding", [False, True])
@pytest.mark.parametrize(
    ("n_gpus", "gbs", "mbs_max", "model"),
    [
        (1, 1, 8, None),
        (1, 7, 8, VISION),
        pytest.param(4, 8, 8, None, marks=pytest.mark.slow),
        pytest.param(6, 12, 8, DENSE, marks=pytest.mark.slow),
        pytest.param(8, 16, 2, DENSE, marks=pytest.mark.slow),
        (8, 24, 1, MIXTURE),
        pytest.param(12, 12, 1, VISION, marks=pytest.mark.slow),
        pytest.param(16, 16, 1, VISION_MIXTURE, marks=pytest.mark.slow),
    ],
)
def test_what_is_pruned_is_what_the_rules_say_over_the_whole_space(
    tmp_path: Path, n_gpus: int, gbs: int, mbs_max: int, model: Model | None, folding: bool
) -> None:
    preset = preset_for(tmp_path, model, n_gpus=n_gpus, gbs=gbs, mbs_max=mbs_max, folding=folding)
    rule = folded if folding else documented
    num_kept = 0
    for params, at in points_of(preset):
        reason = preset.explain(params)
        assert (reason is None) == rule(at, n_gpus, gbs, model), (params, reason)
        assert preset.prune(params) is (reason is not None)
        assert reason is None or (reason.strip() and "\n" not in reason)
        num_kept += reason is None
    assert num_kept > 0


LEGAL: Params = {**PLAIN, "tp": 2}


@pytest.mark.parametrize(
    ("folding", "model", "change", "named"),
    [
        (False, None, {"tp": 8, "pp": 2}, ("n_gpus", "tp*pp*cp*ep*etp", 8, 16)),
        (False, None, {"mbs": 8}, ("gbs", "dp*mbs", 16, 32)),
        (False, None, {"etp": 4}, ("etp", "tp", 4, 2)),
        (False, DENSE, {"tp": 8}, ("num_query_groups", "tp", 4, 8)),
        (False, DENSE, {"pp": 4}, ("num_layers", "pp", 30, 4)),
        (False, DENSE, {"recompute_num_layers": 4}, ("recompute_num_layers", "num_layers/pp", 30, 4)),
        (False, VISION, {"recompute_granularity": "selective"}, ("recompute_granularity", "full")),
        (False, VISION, {"recompute_method": "block"}, ("recompute_method", "uniform")),
        (True, None, {"tp": 8, "cp": 2}, ("n_gpus", "tp*pp*cp", 8, 16)),
        (True, None, {"ep": 4, "etp": 4}, ("n_gpus", "etp*ep*pp", 8, 16)),
        (True, None, {"ep": 4, "mbs": 8}, ("gbs", "dp*mbs", 16, 32)),
        (True, VISION, {"tp": 4}, ("num_query_groups", "tp", 6, 4)),
        (True, DENSE, {"tp": 8}, ("num_attention_heads", "tp", 12, 8)),
        (True, DENSE, {"pp": 4}, ("num_layers", "pp", 30, 4)),
        (True, DENSE, {"ep": 2}, ("ep", 1, 2)),
        (True, MIXTURE, {"ep": 4}, ("num_experts", "ep", 6, 4)),
        (True, VISION, {"recompute_granularity": "selective"}, ("recompute_granularity", "full")),
        (True, VISION, {"recompute_method": "block"}, ("recompute_method", "uniform")),
        (True, None, {"recompute_granularity": "selective", "recompute_method": "block"}, ("same",)),
    ],
)
def test_every_rule_has_its_own_reason(
    tmp_path: Path, folding: bool, model: Model | None, change: Params, named: tuple[object, ...]
) -> None:
    preset = preset_for(tmp_path, model, n_gpus=8, gbs=16, folding=folding)
    assert preset.explain(LEGAL) is None
    assert mentions(preset.explain({**LEGAL, **change}), *named)


def test_experts_over_the_ranks_of_tensor_parallelism_are_legal_with_folding_only() -> None:
    folding = MegatronPreset(n_gpus=8, gbs=16, folding=True)
    plain = MegatronPreset(n_gpus=8, gbs=16)
    assert not folding.prune({**LEGAL, "tp": 4, "ep": 8})
    assert plain.prune({**LEGAL, "tp": 4, "ep": 8})
    assert folding.prune({**LEGAL, "tp": 4, "ep": 4, "etp": 4})


def test_explicit_numbers_win_over_the_config(tmp_path: Path) -> None:
    preset = preset_for(tmp_path, DENSE, n_gpus=8, gbs=16, num_layers=32, num_query_groups=8)
    assert preset.explain({**LEGAL, "tp": 8, "recompute_num_layers": 4}) is None
    assert preset.explain({**LEGAL, "pp": 4}) is None


def test_explicit_numbers_are_enough_without_a_model() -> None:
    preset = MegatronPreset(n_gpus=8, gbs=16, num_layers=30, num_query_groups=4)
    assert mentions(preset.explain({**LEGAL, "pp": 4}), "num_layers", "pp", 30, 4)
    assert mentions(preset.explain({**LEGAL, "tp": 8}), "num_query_groups", "tp", 4, 8)
    assert preset.explain({**LEGAL, "tp": 4, "ep": 2, "recompute_granularity": "selective"}) is None

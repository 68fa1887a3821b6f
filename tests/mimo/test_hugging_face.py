"""Models of transformers in the runtime, against transformers' own in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram
from tests.requirements import need_module

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_vision_tower_and_a_language_model_of_transformers_train_as_they_do_whole(
    run_program: RunProgram, tmp_path: Path
) -> None:
    need_module("engines", "transformers")
    found = run_program("hugging_face", str(tmp_path))
    for tower in ("siglip", "clip"):
        whole = found[tower]["whole"]
        assert whole[0] != whole[2]
        for rank in found[tower]["ranks"]:
            assert rank == {layout: pytest.approx(whole, rel=2e-5) for layout in ("own ranks", "split", "shared")}
        exported = found[tower]["exported"]
        layouts = {name.rpartition(" ")[0] for name in exported}
        assert layouts >= {"own ranks", "split", "shared"}
        assert min(exported.pop(f"{layout} moved") for layout in layouts) > 1e-3
        assert len(exported) == 3 * len(layouts) and max(exported.values()) < 2e-5
    for rank in found["larger"]:
        assert rank == {layout: pytest.approx(found["clip"]["whole"], rel=2e-5) for layout in ("sharded", "recomputed")}
    refused = found["refusals"]
    assert mentions(refused["tp"], "num_key_value_heads", 2, "tp", 4) and mentions(refused["folder"], "config.json")
    assert mentions(refused["stages"], 3, 2)
    assert mentions(refused["source"], "'language'", "clip") and mentions(refused["target"], "clip")


def test_pairs_of_towers_and_language_models_compute_what_transformers_do(
    run_program: RunProgram, tmp_path: Path
) -> None:
    need_module("engines", "transformers")
    found = run_program("pairs", str(tmp_path))
    assert len(found["pairs"]) == 6 * 5 * 2
    assert max(found["pairs"].values()) < 1e-10
    assert found["llava"] < 1e-10 and found["packed"] < 1e-10
    assert found["mrope"].pop("positions") == 0 and max(found["mrope"].values()) < 1e-10
    plain, recomputed = found["recomputed"]
    assert plain == pytest.approx(recomputed, rel=1e-10) and plain > 0
    refused = found["refusals"]
    assert mentions(refused["gemma"], "gemma", "llama", "mistral") and mentions(
        refused["dinov2"], "dinov2", "clip_vision_model"
    )
    assert mentions(refused["layer"], "layer", 4, "-2")
    assert (
        mentions(refused["width"], 32, 7) and mentions(refused["split"], "tp", 2) and mentions(refused["projector"], 3)
    )
    assert mentions(refused["positions"], "token 1", "images")

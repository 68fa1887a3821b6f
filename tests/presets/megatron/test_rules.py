"""Rules that changed from release to release, each with a tree that has it and one that has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.describe.megatron.test_version import write_tree
from tests.mentions import mentions
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.describe.megatron.version import NEWEST, read_version
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.presets.megatron.rules import own_overlap, switches_in
from zenith_tune.presets.megatron.version import VersionFeatures
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params, Value

DENSE = "--hidden-size 512 --num-attention-heads 16 --group-query-attention --num-query-groups 2"
EXPERTS = "--num-experts 8 --disable-bias-linear --moe-token-dispatcher-type alltoall"
PLAIN: Params = {"tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "none"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def command(minor: int, options: str, layers: int) -> str:
    job = "--seq-length 128 --vocab-size 1000 --bf16 --global-batch-size 32 --micro-batch-size 1 --log-interval 1"
    job += " --use-distributed-optimizer"
    return f"torchrun --nproc-per-node 8 m{minor}/pretrain_gpt.py --num-layers {layers} {DENSE} {job} {options}"


class Tuned:
    """Bind the preset to a command that uses a tree of a version, which is written first."""

    def __init__(self, minor: int, options: str = "", *, layers: int = 16, search: str = "default+cp") -> None:
        folder = Path(f"m{minor}")
        if not folder.exists():
            write_tree(folder, minor=minor)
        self.command = command(minor, options, layers)
        self.preset = MegatronLmPreset(cluster="h100x8", search=search)
        self.preset.bind(self.command)

    def explain(self, **change: Value) -> str | None:
        return self.preset.explain({**PLAIN, **change})

    def written(self, **change: Value) -> ParsedCommand:
        return ParsedCommand.of(self.preset.apply_parameters(self.command, {**PLAIN, **change}))


@pytest.mark.parametrize(
    ("first", "change", "options", "layers", "named"),
    [
        (16, {"tp": 4}, "", 16, ("tp 4", 2)),
        (13, {"pp": 8}, "", 18, ("18 layers", "8*1")),
        (11, {"pp": 8}, "", 14, ("14 layers", "8*1", "embedding")),
        (12, {"pp": 8}, EXPERTS, 14, ("14 layers", "8*1", "embedding")),
        (10, {"tp": 2, "etp": 1}, EXPERTS, 16, ("etp 1", "tp 2")),
        (10, {"pp": 2, "cp": 2, "ep": 4}, EXPERTS, 16, ("ep 4", "dp 2")),
        (8, {"cp": 2, "ep": 2}, EXPERTS, 16, ("ep", "cp", 1)),
    ],
)
def test_what_a_release_brought_is_pruned_before_it(
    first: int, change: Params, options: str, layers: int, named: tuple[object, ...]
) -> None:
    reason = Tuned(first - 1, options, layers=layers).explain(**change)
    assert mentions(reason, f"Megatron 0.{first}", f"0.{first - 1}.0", *named)
    assert Tuned(first, options, layers=layers).explain(**change) is None


def test_sizes_that_a_version_refuses_are_no_choices() -> None:
    assert Tuned(15).preset.get_search_space()["tp"].grid(1) == [1, 2]
    assert Tuned(16).preset.get_search_space()["tp"].grid(1) == [1, 2, 4, 8]
    assert Tuned(12, layers=18).preset.get_search_space()["pp"].grid(1) == [1, 2, 4]
    assert Tuned(13, layers=18).preset.get_search_space()["pp"].grid(1) == [1, 2, 4, 8]


def test_chunks_are_written_in_the_way_that_the_version_knows() -> None:
    older, newer = (Tuned(minor).written(pp=2, vp=4) for minor in (10, 11))
    assert older.get("--num-layers-per-virtual-pipeline-stage") == "2"
    assert not older.has("--num-virtual-stages-per-pipeline-rank")
    assert newer.get("--num-virtual-stages-per-pipeline-rank") == "4"
    assert not newer.has("--num-layers-per-virtual-pipeline-stage")


def test_the_experts_tensor_size_is_written_where_the_version_knows_it() -> None:
    older, newer = (Tuned(minor, EXPERTS).written(tp=2, etp=2, ep=2) for minor in (9, 10))
    assert older.get("--expert-model-parallel-size") == newer.get("--expert-model-parallel-size") == "2"
    assert not older.has("--expert-tensor-parallel-size")
    assert newer.get("--expert-tensor-parallel-size") == "2"


def test_modules_are_tried_where_the_version_knows_them() -> None:
    options = f"{EXPERTS} --moe-shared-expert-intermediate-size 64"
    modules = {}
    for minor in (11, 12, 13, 14):
        kinds = Tuned(minor, options, search="modules").preset.get_search_space()["recompute"].grid(1)
        modules[minor] = [kind for kind in map(str, kinds) if kind.startswith("selective/")]
    assert modules[11] == []
    assert modules[12] == modules[13] == ["selective/moe", "selective/layernorm"]
    assert modules[14] == ["selective/moe", "selective/shared_experts", "selective/layernorm"]


def test_the_overlap_of_experts_is_tried_where_the_version_knows_it() -> None:
    older, newer = (Tuned(minor, EXPERTS, search="ep+ep_overlap").preset.get_search_space() for minor in (13, 14))
    assert older["ep_overlap"].grid(1) == [False]
    assert newer["ep_overlap"].grid(1) == [False, True]


@pytest.mark.parametrize(("minor", "is_refused"), [(15, False), (16, True), (17, True), (18, False)])
def test_multi_token_prediction_is_overlapped_in_a_pipeline_alone_by_some_releases(
    minor: int, is_refused: bool
) -> None:
    tuned = Tuned(minor, f"{EXPERTS} --mtp-num-layers 1", search="default+ep_overlap")
    reason = tuned.explain(ep=2, ep_overlap=True)
    assert (reason is not None) == is_refused
    assert not is_refused or mentions(reason, "ep_overlap", "pp", f"Megatron 0.{minor}")
    assert tuned.explain(ep=2, pp=2, vp=2, ep_overlap=True) is None


def test_points_of_every_version_are_some_and_hold_its_rules() -> None:
    for minor in (7, 9, 10, 12, 15, 20):
        tuned = Tuned(minor, EXPERTS, layers=14)
        points = list(tuned.preset.points())
        assert points and all(tuned.preset.explain(point) is None for point in points)


def test_the_commands_own_split_is_left_to_the_user() -> None:
    tuned = Tuned(12, "--pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 4", layers=18)
    assert tuned.explain(pp=8) is None


def notes(minor: int, **version: int | str) -> str:
    write_tree(Path(f"m{minor}"), minor=minor, **version)  # type: ignore[arg-type]
    return Tuned(minor).preset.notes(command(minor, "", 16))[1]


def test_a_note_names_the_version_and_its_tree(here: Path) -> None:
    note = notes(16, patch=1)
    assert mentions(note, "Megatron 0.16.1", f"{here}/m16") and "warning" not in note


@pytest.mark.parametrize(("minor", "is_balanced"), [(12, False), (13, True), (20, True)])
def test_routing_is_balanced_by_releases_that_have_the_option(minor: int, is_balanced: bool) -> None:
    experts = "--num-experts 8 --disable-bias-linear --moe-token-dispatcher-type alltoall"
    found = Tuned(minor, experts)
    assert ("--moe-router-force-load-balancing" in found.preset.trial_command(found.command)) == is_balanced


def test_a_version_that_is_not_known_is_taken_for_the_newest_with_a_warning(here: Path) -> None:
    assert mentions(notes(21), "warning", "Megatron 0.21.0", f"{here}/m21", "0.20")
    assert Tuned(21).explain(tp=4) is None
    assert VersionFeatures(read_version(Path("m21"))).release == VersionFeatures(None).release == NEWEST
    assert mentions(notes(6), "warning", "Megatron 0.6.0", f"{here}/m6", "0.7")


def test_without_a_tree_the_newest_rules_are_taken() -> None:
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(command(20, "", 18))
    assert preset.explain({**PLAIN, "tp": 4, "pp": 2}) is None
    assert preset.explain({**PLAIN, "pp": 8}) is None


def test_switches_of_a_command_have_needs() -> None:
    assert [switch.need for switch in switches_in(MegatronArgs.of(["--tp-comm-overlap", "--bf16"]))] == [
        "sequence parallelism"
    ]


def test_a_command_overlaps_gradients() -> None:
    assert own_overlap("overlap", MegatronArgs.of(["--overlap-grad-reduce"])) == "grads"

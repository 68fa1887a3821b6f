"""Megatron-LM's MIMO example: what is read of its commands, and that emitted options obey its rules."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from zenith_mimo.preset.preset import MimoPreset
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.study.parameters import Params
from zenith_tune.testing import PresetContract

LAUNCH = "python -m torch.distributed.run --standalone --nproc-per-node 8 examples/mimo/pretrain_mimo.py"
MODEL = (
    "--num-layers 20 --hidden-size 2688 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--kv-channels 128 --seq-length 8192 --vocab-size 131072"
)
HYBRID = (
    "--hybrid-layer-pattern MEMEM*EMEMEM*EMEMEM* --num-experts 128 --moe-router-topk 6 --moe-ffn-hidden-size 1856 "
    "--moe-shared-expert-intermediate-size 3712 --mamba-num-heads 64 --mamba-head-dim 64"
)
BATCH = "--micro-batch-size 1 --global-batch-size 8 --img-h 512 --img-w 512 --pixel-shuffle"
LAYOUT = "--encoder-tp 2 --encoder-dp 2 --llm-offset 4 --llm-tp 2 --llm-pp 1 --llm-dp 2 --llm-ep 4 --llm-expt-tp 1"
COMMAND = f"{LAUNCH} {MODEL} {HYBRID} {BATCH} {LAYOUT}"
SHARDED = "--tensor-parallel-num-weight-shards 4 --expert-tensor-parallel-num-weight-shards 2"
SHAPE = (
    *("num-layers", "num-attention-heads", "num-query-groups", "mamba-num-heads", "mamba-num-groups", "seq-length"),
    *("tensor-parallel-num-weight-shards", "expert-tensor-parallel-num-weight-shards"),
)
CLUSTER = {"cluster": "h100x8"}
ROOMY: dict[str, Any] = {"memory_gib": 1000.0}
"""Layouts that only lack memory are no business of the rules."""


def bound(command: str = COMMAND, **args: object) -> MimoPreset:
    preset = MimoPreset(**{**CLUSTER, **args})  # type: ignore[arg-type]
    preset.bind(command)
    return preset


def point(**changes: int) -> Params:
    return {"encoder_ranks": 4, "encoder_tp": 2, "llm_tp": 2, "llm_pp": 1, "llm_ep": 4, "mbs": 1, **changes}


def emitted(preset: MimoPreset, params: Params, command: str = COMMAND) -> dict[str, int]:
    words = shlex.split(preset.apply_parameters(command, params))
    names = ("encoder-tp", "encoder-dp", "llm-offset", "llm-tp", "llm-pp", "llm-dp", "llm-ep", "llm-expt-tp")
    flags = {name: int(words[words.index(f"--{name}") + 1]) for name in names}
    assert all(words.count(f"--{name}") == 1 for name in names)
    shape = {name: int(words[words.index(f"--{name}") + 1]) for name in SHAPE if f"--{name}" in words}
    if "--hybrid-layer-pattern" in words:
        pattern = words[words.index("--hybrid-layer-pattern") + 1].split("/")[0]
        shape |= {"num-layers": len(pattern.replace("|", "")), "segments": len(pattern.split("|"))}
    return {**shape, **flags, "mbs": int(words[words.index("--micro-batch-size") + 1])}


def broken_rules(flags: Mapping[str, int], *, world: int, batch: int, experts: int) -> list[str]:
    """Return which rules of the example a set of options breaks, reckoned from the options alone."""
    encoder = set(range(flags["encoder-tp"] * flags["encoder-dp"]))
    tp, pp, shards = flags["llm-tp"], flags["llm-pp"], flags.get("tensor-parallel-num-weight-shards", flags["llm-tp"])
    size = shards * pp * flags["llm-dp"]
    lanes_of_language = flags["llm-dp"] * (shards // tp)
    expert = flags.get("expert-tensor-parallel-num-weight-shards", flags["llm-expt-tp"]) * flags["llm-ep"]
    groups = flags.get("num-query-groups", flags["num-attention-heads"])
    language = set(range(flags["llm-offset"], flags["llm-offset"] + size))
    lanes = sorted((flags["encoder-dp"], lanes_of_language))
    rules = {
        "spans are disjoint": not encoder & language,
        "spans cover the world": encoder | language == set(range(world)),
        "lanes divide one another": lanes[1] % lanes[0] == 0,
        "mbs * llm dp is a multiple of encoder dp": flags["mbs"] * lanes_of_language % flags["encoder-dp"] == 0,
        "the batch is a multiple of mbs * llm dp": batch % (flags["mbs"] * lanes_of_language) == 0,
        "experts are a multiple of ep": experts % flags["llm-ep"] == 0,
        "expert ranks fill the stages": size % (expert * pp) == 0,
        "weight shards are a multiple of tp": shards % tp == 0,
        "layers are a multiple of pp": flags.get("segments", 1) > 1 or flags["num-layers"] % pp == 0,
        "one segment is one stage": flags.get("segments", 1) in (1, pp),
        "heads are a multiple of tp": flags["num-attention-heads"] % tp == 0,
        "query groups are a multiple or a divisor of tp": groups % tp == 0 or tp % groups == 0,
        "Mamba heads are a multiple of tp": flags.get("mamba-num-heads", tp) % tp == 0,
        "Mamba groups are a multiple of tp": flags.get("mamba-num-groups", tp) % tp == 0,
        "the sequence is a multiple of tp": flags["seq-length"] % tp == 0,
    }
    return [rule for rule, holds in rules.items() if not holds]


class TestMegatronMimoPreset(PresetContract):
    def make(self) -> MimoPreset:
        return bound(self.command(), **ROOMY)

    def command(self) -> str:
        return f"{LAUNCH} {MODEL} {BATCH} {LAYOUT}"


@pytest.mark.parametrize("num_gpus", [8, 6, 16])
def test_every_planned_layout_is_emitted_by_the_rules(num_gpus: int) -> None:
    preset = bound(n_gpus=num_gpus, cluster=f"h100x{num_gpus}", mbs_max=2)
    points = list(preset.points())
    assert len(points) > 10
    for params in points:
        flags = emitted(preset, params)
        assert broken_rules(flags, world=num_gpus, batch=8, experts=128) == [], flags


DENSE = f"{LAUNCH} --num-layers 10 --hidden-size 1536 --seq-length 2040 --vocab-size 32000 {BATCH} {LAYOUT}"
THREE_GROUPS = "--num-attention-heads 12 --group-query-attention --num-query-groups 3"
MAMBA = COMMAND.replace("--mamba-num-heads 64", "--mamba-num-heads 12 --mamba-num-groups 6")


@pytest.mark.parametrize(
    ("command", "experts", "count"),
    [
        (f"{DENSE} {THREE_GROUPS}", 1, 20),
        (f"{DENSE} --num-attention-heads 24", 1, 20),
        (MAMBA, 128, 10),
        (COMMAND.replace("MEMEM*EMEMEM*EMEMEM*", "'MEMEM*|EMEMEM*|EMEMEM*|M'"), 128, 2),
        (f"{COMMAND} {SHARDED}", 128, 10),
    ],
)
def test_other_models_too_are_only_tried_as_megatron_takes_them(command: str, experts: int, count: int) -> None:
    preset = bound(command, mbs_max=2, **ROOMY)
    points = list(preset.points())
    assert len(points) >= count
    for params in points:
        flags = emitted(preset, params, command)
        assert broken_rules(flags, world=8, batch=8, experts=experts) == [], flags


@pytest.mark.parametrize(
    ("command", "good", "bad", "rule"),
    [
        (
            f"{DENSE} {THREE_GROUPS}",
            {"llm_pp": 2, "llm_tp": 1},
            {"llm_pp": 4, "llm_tp": 1},
            "layers are a multiple of pp",
        ),
        (
            f"{DENSE} {THREE_GROUPS}",
            {"encoder_ranks": 2, "llm_tp": 3},
            {"llm_tp": 2},
            "query groups are a multiple or a divisor of tp",
        ),
        (MAMBA, {"llm_tp": 2}, {"llm_tp": 4, "encoder_tp": 4}, "Mamba groups are a multiple of tp"),
        (
            COMMAND.replace("MEMEM*EMEMEM*EMEMEM*", "'MEMEM*EMEM|EM*EMEMEM*'"),
            {"llm_pp": 2, "llm_tp": 1, "llm_ep": 2},
            {"llm_pp": 1},
            "one segment is one stage",
        ),
        (
            f"{COMMAND} {SHARDED}",
            {"llm_ep": 2},
            {"encoder_ranks": 2, "llm_tp": 3},
            "weight shards are a multiple of tp",
        ),
    ],
)
def test_a_model_keeps_what_it_can_be_split_into(command: str, good: Any, bad: Any, rule: str) -> None:
    preset = bound(command, **ROOMY)
    space = preset.get_search_space()
    for changes, is_good in ((good, True), (bad, False)):
        params = {name: value for name, value in point(**changes).items() if name in space}
        broken = broken_rules(emitted(preset, params, command), world=8, batch=8, experts=128)
        assert (preset.explain(params) is None) == is_good, preset.explain(params)
        assert (broken == []) == is_good and (rule in broken) == (not is_good), broken


def test_weight_shards_are_ranks_that_read_samples_of_their_own() -> None:
    command = f"{COMMAND} {SHARDED}".replace("--llm-dp 2", "--llm-dp 1").replace("--llm-ep 4", "--llm-ep 2")
    preset = bound(command, **ROOMY)
    plain = bound(**ROOMY)
    params = point(llm_ep=2)
    assert preset.own_point(command) == params and preset.explain(params) is None
    assert emitted(preset, params, command)["llm-dp"] == 1 and emitted(plain, params)["llm-dp"] == 2
    # Each rank holds a quarter of the dense weights and of the two experts' halves, not a half of both.
    assert preset.space.predict(params).memory_bytes < 0.8 * plain.space.predict(params).memory_bytes
    assert any(mentions(note, "--llm-dp", "tp", 4) for note in preset.notes(command))
    filled = preset.apply_parameters(f"{command} --llm-dp {{llm_dp}}", params)
    assert filled.count("--llm-dp 1") == 2


@pytest.mark.parametrize(
    "launch",
    [
        "torchrun --nproc-per-node 8 -m examples.mimo.pretrain_mimo",
        "uv run --extra ssm python -m torch.distributed.run --nproc-per-node 8 -m examples.mimo.pretrain_mimo",
        "torchrun --nproc-per-node=8 --module examples.mimo.pretrain_mimo",
    ],
)
def test_the_example_is_known_as_a_module_too(launch: str, tmp_path: Path) -> None:
    command = COMMAND.replace(LAUNCH, launch)
    assert MimoPreset.recognises(command) and recognised_preset(command) == "mimo"
    preset = bound(command)
    assert preset.space.read.job.num_ranks == 8 and preset.own_point(command) == point()
    assert emitted(preset, point(mbs=2), command)["mbs"] == 2
    assert not MimoPreset.recognises(command.replace("pretrain_mimo", "pretrain_gpt"))
    script = tmp_path / "train.sh"
    script.write_text(command.replace(launch, f'ARGS=(--standalone)\n{launch} "${{ARGS[@]}}"') + ' "$@"\n')
    assert bound(f"bash {script}").own_point(f"bash {script}") == point()


@pytest.mark.parametrize(
    ("good", "bad", "rule"),
    [
        (point(), point(encoder_ranks=5, encoder_tp=1, llm_tp=1, llm_ep=1), "lanes divide one another"),
        (
            point(mbs=4, encoder_tp=1, llm_tp=4),
            point(encoder_tp=1, llm_tp=4),
            "mbs * llm dp is a multiple of encoder dp",
        ),
        (point(mbs=4), point(mbs=8), "the batch is a multiple of mbs * llm dp"),
        (point(llm_ep=2), point(encoder_ranks=2, llm_tp=2, llm_ep=4), "expert ranks fill the stages"),
        (point(llm_pp=2, llm_tp=1, llm_ep=2), point(llm_pp=2, llm_tp=1, llm_ep=4), "expert ranks fill the stages"),
    ],
)
def test_each_rule_keeps_what_obeys_it_and_prunes_what_does_not(good: Params, bad: Params, rule: str) -> None:
    preset = bound(mbs_max=8, **ROOMY)
    assert preset.explain(good) is None
    assert broken_rules(emitted(preset, good), world=8, batch=8, experts=128) == []
    assert preset.explain(bad) is not None
    assert rule in broken_rules(emitted(preset, bad), world=8, batch=8, experts=128)


def test_ep_has_only_divisors_of_the_experts_to_choose_from() -> None:
    space = bound(COMMAND.replace("--num-experts 128", "--num-experts 12")).get_search_space()
    assert space["llm_ep"].grid(1) == [1, 2, 3, 4, 6, 12]
    assert "llm_ep" not in bound(f"{LAUNCH} {MODEL} {BATCH} {LAYOUT}").get_search_space()


def test_spans_never_overlap_since_modules_never_share_ranks() -> None:
    preset = bound()
    assert preset.get_search_space()["encoder_ranks"].grid(1) == list(range(1, 8))
    for ranks in range(1, 8):
        flags = emitted(preset, point(encoder_ranks=ranks, encoder_tp=1, llm_tp=1, llm_ep=1))
        assert not {"spans are disjoint", "spans cover the world"} & set(
            broken_rules(flags, world=8, batch=8, experts=128)
        )


def test_the_encoder_is_never_pipelined_and_the_command_may_not_say_so() -> None:
    assert "encoder_pp" not in bound().get_search_space()
    with pytest.raises(UsageError, match=r"--llm-cp .*\b1\b.*\b2\b"):
        bound(f"{COMMAND} --llm-cp 2")
    with pytest.raises(UsageError, match="--llm-only"):
        bound(f"{COMMAND} --llm-only")


def test_uneven_images_are_never_joined_from_more_encoder_lanes() -> None:
    even, uneven = bound(mbs_max=4, **ROOMY), bound(mbs_max=4, images="12+1", **ROOMY)
    fan_in = point(encoder_tp=1, llm_tp=4, mbs=4)
    assert even.explain(fan_in) is None
    assert mentions(uneven.explain(fan_in), "encoder dp")
    assert uneven.explain(point()) is None
    lanes = [emitted(uneven, params) for params in uneven.points()]
    assert lanes and all(flags["encoder-dp"] <= flags["llm-dp"] for flags in lanes)


def test_switches_that_the_example_needs_are_added_once() -> None:
    preset = bound()
    written = preset.apply_parameters(f"{COMMAND} --use-distributed-optimizer", point())
    assert written.count("--use-distributed-optimizer") == written.count("--calculate-per-token-loss") == 1


def test_options_that_the_example_does_not_have_are_not_read() -> None:
    other = "--mimo-encoder-tp 8 --num-image-tiles 12 --training-stage stage1 --encoder-pp 2 --encoder-cp 2"
    plain, preset = bound(**ROOMY), bound(f"{COMMAND} {other}", **ROOMY)
    assert preset.own_point(f"{COMMAND} {other}") == point()
    assert preset.space.read.job == plain.space.read.job


NVIDIA = "--dynamic-resolution --pixel-shuffle --disable-vision-class-token"


@pytest.mark.parametrize(
    ("flags", "patches", "rows"),
    [
        # As the example's script: half of the 8192 tokens are image tokens, of four patches each.
        (NVIDIA, 16384, 4096),
        (f"{NVIDIA} --image-seq-length 1024", 4096, 1024),
        ("--dynamic-resolution", 4096, 4096),
        ("", 14 * 14, 14 * 14),
        ("--img-h 512 --img-w 512 --pixel-shuffle", 1024, 256),
        ("--img-h 448 --img-w 224 --patch-dim 14", 32 * 16, 32 * 16),
    ],
)
def test_the_encoder_is_as_heavy_as_its_images(flags: str, patches: int, rows: int) -> None:
    command = COMMAND.replace("--img-h 512 --img-w 512 --pixel-shuffle", flags)
    encoder = bound(command, **ROOMY).space.read.job.encoder
    assert encoder.hidden_numbers == (patches + 8) * 1280  # RADIO's eight class tokens
    assert encoder.output_numbers == rows * 2688


def test_the_encoder_of_the_examples_own_script_takes_half_a_second() -> None:
    command = COMMAND.replace("--img-h 512 --img-w 512 --pixel-shuffle", NVIDIA)
    at = point(encoder_tp=1, mbs=2)
    stage_s = bound(command, device_flops=0.4 * 989e12, **ROOMY).space.predict(at).encoder_stage_s
    # 32 blocks of 2 s (12 h^2 + 2 s h) forward and twice that backward, at 40% of an H100's 989 TFLOP/s.
    s, h = 16384, 1280
    assert stage_s == pytest.approx(3 * 32 * 2 * s * (12 * h * h + 2 * s * h) / (0.4 * 989e12), rel=0.03)
    assert 0.4 < stage_s < 0.6
    # 32 of the layers that took 4.49 and 11.58 ms on an H200 (benchmarks/results/h200-mimo-2026-11-17.json).
    measured = bound(command, cluster="h200x8", **ROOMY).space.predict(at).encoder_stage_s
    assert measured == pytest.approx(32 * (4.49e-3 + 11.58e-3), rel=0.05)


def test_small_layers_take_what_starting_them_takes() -> None:
    # A tile of 224 * 224 pixels: an H200 takes as long for it as for an eighth of it.
    command = COMMAND.replace("--img-h 512 --img-w 512 ", "")
    preset = bound(command, cluster="h200x8", **ROOMY)
    stages = [preset.space.predict(point(encoder_tp=tp, mbs=2)).encoder_stage_s for tp in (1, 4)]
    assert stages[1] >= stages[0] > 32 * 2e-3


def test_prefetching_features_needs_an_encoder_without_tensor_parallelism() -> None:
    command = f"{COMMAND} --freeze-vit --mimo-encoder-prefetch"
    preset = bound(command, **ROOMY)
    assert {params["encoder_tp"] for params in preset.points()} == {1}
    assert mentions(preset.explain(point()), "tp", 1, 2)
    for wrong in (f"{COMMAND} --mimo-encoder-prefetch", f"{command} --freeze-projection"):
        with pytest.raises(UsageError, match="--mimo-encoder-prefetch"):
            bound(wrong)


def test_one_connection_is_set_where_validate_args_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    setting, split, whole = "CUDA_DEVICE_MAX_CONNECTIONS=1", point(), point(llm_tp=1)
    preset = bound(**ROOMY)
    written = preset.apply_parameters(COMMAND, split)
    assert written.startswith(f"{setting} python ") and preset.apply_parameters(written, split) == written
    assert setting not in preset.apply_parameters(COMMAND, whole)
    two = f"cd here && {COMMAND}"
    assert bound(two, **ROOMY).apply_parameters(two, split).startswith(f"export {setting}; cd here && ")
    # Blackwell does not need it, expert overlap wants another value, and once is enough.
    assert setting not in bound(cluster="b200x8", **ROOMY).apply_parameters(COMMAND, split)
    overlapped = f"{COMMAND} --overlap-moe-expert-parallel-comm"
    assert setting not in bound(overlapped, **ROOMY).apply_parameters(overlapped, split)
    said = f"{setting} {COMMAND}"
    assert bound(said, **ROOMY).apply_parameters(said, split).count(setting) == 1


def test_images_may_be_given_as_shares() -> None:
    items = bound(images="0:10+1:60+4:30", **ROOMY).space.read.job.items
    assert [items.count(number) for number in (0, 1, 4)] == [6, 39, 19]  # of 64
    assert items != tuple(sorted(items))
    for wrong in ("1:2:3", "1:0", "a:1", "1:"):
        with pytest.raises(UsageError, match="images"):
            bound(images=wrong)


def test_only_ranks_of_one_node_reach_one_another_over_its_fast_link() -> None:
    device = bound(n_gpus=16, cluster="h100x16").space.read.job.device
    assert device.link_between([(0, 7), (8, 15)]) == device.fast_link
    assert device.link_between([(0, 7), (7, 8)]) == device.link
    assert device.link.bytes_per_s < device.fast_link.bytes_per_s


def test_a_shell_script_that_passes_its_arguments_on_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'LLM_DP=2\n{LAUNCH} {MODEL} {BATCH} --encoder-tp 2 --llm-dp "$LLM_DP" "$@"\n')
    preset = bound(f"bash {script}")
    assert preset.own_point(f"bash {script}") == {k: v for k, v in point().items() if k != "llm_ep"}
    written = preset.apply_parameters(f"bash {script}", {k: v for k, v in point(mbs=2).items() if k != "llm_ep"})
    assert written.startswith(f"CUDA_DEVICE_MAX_CONNECTIONS=1 bash {script} ") and "--micro-batch-size 2" in written


@pytest.mark.parametrize(
    ("command", "args", "named"),
    [
        (COMMAND.replace("--hidden-size 2688", ""), {}, ("--hidden-size",)),
        (COMMAND.replace("--global-batch-size 8", ""), {}, ("--global-batch-size",)),
        (COMMAND.replace("--nproc-per-node 8", ""), {}, ("--gpus 8",)),
        (COMMAND.replace("MEMEM*EMEMEM*EMEMEM*", "MGMG"), {}, ("M * - E", "G")),
        (
            f"{COMMAND} --decoder-first-pipeline-num-layers 3",
            {},
            ("--decoder-first-pipeline-num-layers",),
        ),
        (f"{COMMAND} --num-virtual-stages-per-pipeline-rank 2", {}, ("--num-virtual-stages-per-pipeline-rank",)),
        (f"{COMMAND} --mamba-num-groups 6", {}, ("Mamba heads", "Mamba groups", 64, 6)),
        (f"{COMMAND} --freeze-lm --freeze-vit --freeze-projection", {}, ("--freeze-",)),
        (
            f"{COMMAND.replace('--llm-expt-tp 1', '--llm-expt-tp 2')} --expert-tensor-parallel-num-weight-shards 3",
            {},
            ("expert tp", 3, 2),
        ),
        (COMMAND.replace("--img-h 512", "--img-h 500"), {}, (500, 512, 16)),
        (f"{COMMAND} --image-seq-length 100", {}, (100, 256)),
        (f"{COMMAND} --dynamic-resolution --image-seq-length 8192", {}, ("--seq-length", 8192)),
        (COMMAND, {"encoder_heads": 7}, ("encoder_hidden", "encoder_heads", 1280, 7)),
    ],
)
def test_what_a_plan_lacks_is_named(command: str, args: dict[str, object], named: tuple[object, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        bound(command, **args)
    assert mentions(caught.value, *named)


def test_recomputation_stays_what_the_command_says() -> None:
    plain, full = bound(), bound(f"{COMMAND} --recompute-granularity full --recompute-method uniform")
    for preset, recomputes in ((plain, False), (full, True)):
        assert {each.candidate.language_recompute for each in preset.space.plan.ranked} == {recomputes}
        assert not any(preset.prune(params) for params in preset.points())
    assert full.space.plan.num_too_large < plain.space.plan.num_too_large

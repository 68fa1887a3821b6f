from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.presets.megatron.test_commands import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params

PLAIN: Params = {"tp": 1, "pp": 1, "vp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1, "recompute": "none"}
SHAPE = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 --bf16"
SMALL = f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} --micro-batch-size 1 --global-batch-size 64"


def bound(command: str, **keywords: int | str) -> MegatronLmPreset:
    preset = MegatronLmPreset(**keywords)  # type: ignore[arg-type]
    preset.bind(command)
    return preset


def applied(command: str, change: Params, **keywords: int | str) -> ParsedCommand:
    return ParsedCommand.of(bound(command, **keywords).apply_parameters(command, {**PLAIN, **change}))


def test_sizes_and_batches_are_replaced_where_they_stand_and_added_where_not() -> None:
    line = applied(LLAMA3_8B, {"tp": 4, "pp": 2, "mbs": 2})
    assert "--micro-batch-size 2 --global-batch-size 128" in line.text
    assert "--tensor-model-parallel-size 4" in line.text
    assert "--pipeline-model-parallel-size 2" in line.text
    assert not line.has("--context-parallel-size"), "Megatron takes 1 by itself"
    assert line.text.startswith(LLAMA3_8B[:200])
    assert not line.has("--expert-model-parallel-size") and not line.has("--expert-tensor-parallel-size")


def test_the_spelling_of_the_command_is_kept() -> None:
    command = (
        "torchrun --nproc_per_node=8 pretrain_gpt.py --num_layers=32 --hidden_size=4096 --num_attention_heads=32 "
        "--seq_length=4096 --micro_batch_size=1 --global_batch_size=64 --recompute_granularity=selective"
    )
    text = applied(command, {"tp": 2, "pp": 2, "vp": 4, "mbs": 4, "recompute": "full/block2"}).text
    assert text == (
        "torchrun --nproc_per_node=8 pretrain_gpt.py --num_layers=32 --hidden_size=4096 --num_attention_heads=32 "
        "--seq_length=4096 --micro_batch_size=4 --global_batch_size=64 --recompute_granularity=full "
        "--tensor_model_parallel_size=2 --pipeline_model_parallel_size=2 "
        "--num_virtual_stages_per_pipeline_rank=4 --recompute_method=block --recompute_num_layers=2 "
        "--sequence_parallel"
    )


def test_what_the_script_has_already_is_not_said_again(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'exec {SMALL} --tensor-model-parallel-size 4 --sequence-parallel "$@"\n')
    command = f"bash {script}"
    assert applied(command, {"tp": 4, "mbs": 1}).text == command
    assert applied(command, {"tp": 1, "mbs": 2}).text == (
        f"{command} --tensor-model-parallel-size 1 --micro-batch-size 2"
    )


def test_experts_always_get_both_of_their_sizes() -> None:
    line = applied(MIXTRAL, {"tp": 2, "ep": 4})
    assert (line.get("--expert-model-parallel-size"), line.get("--expert-tensor-parallel-size")) == ("4", "1")


@pytest.mark.parametrize(("vp", "wanted"), [(4, "4"), (1, None)])
def test_chunks_replace_layers_per_chunk_and_one_chunk_needs_no_option(vp: int, wanted: str | None) -> None:
    line = applied(MIXTRAL, {"pp": 2, "vp": vp, "ep": 8})
    assert line.get("--num-virtual-stages-per-pipeline-rank") == wanted
    assert not line.has("--num-layers-per-virtual-pipeline-stage")


@pytest.mark.parametrize(
    "own", ["", "--recompute-activations", "--recompute-granularity full --recompute-method block"]
)
@pytest.mark.parametrize(
    ("recompute", "wanted"),
    [
        ("none", (None, None, None)),
        ("selective", ("selective", None, None)),
        ("full/uniform1", ("full", "uniform", "1")),
        ("full/block8", ("full", "block", "8")),
    ],
)
def test_recomputation_is_set_whatever_was_there(own: str, recompute: str, wanted: tuple[str | None, ...]) -> None:
    line = applied(f"{SMALL} {own} --lr 1", {"recompute": recompute})
    assert tuple(line.get(f"--recompute-{name}") for name in ("granularity", "method", "num-layers")) == wanted
    assert not line.has("--recompute-activations")
    assert line.get("--lr") == "1"


def test_sequence_parallelism_comes_and_goes_with_tp() -> None:
    assert not applied(LLAMA3_8B, {"tp": 1}).has("--sequence-parallel")
    assert applied(LLAMA3_8B, {"tp": 2}).text.count("--sequence-parallel") == 1
    assert applied(SMALL, {"tp": 2}).get("--sequence-parallel") == ""


def test_sequence_parallelism_of_the_command_is_kept_when_tp_is_raised_from_1() -> None:
    local = f"{SMALL} --transformer-impl local --no-persist-layer-norm"
    assert applied(f"{local} --sequence-parallel", {"tp": 2}).get("--sequence-parallel") == ""
    assert not applied(local, {"tp": 2}).has("--sequence-parallel")


def test_a_command_without_the_distributed_optimizer_gets_it_where_a_point_says_so() -> None:
    assert applied(SMALL, {"zero": 1}).has("--use-distributed-optimizer")
    assert not applied(SMALL, {"zero": 0}).has("--use-distributed-optimizer")


def test_a_pipeline_that_does_not_go_evenly_is_counted_or_laid_out() -> None:
    line = applied(DEEPSEEK_V3, {"tp": 2, "pp": 16, "ep": 16, "etp": 1})
    assert line.get("--pipeline-model-parallel-layout") == "Et*3|(t*4|)*14,t*2mL"
    assert not line.has("--num-virtual-stages-per-pipeline-rank")
    even = f"{SMALL} --num-layers 30 --account-for-loss-in-pipeline-split --account-for-embedding-in-pipeline-split"
    counted = applied(even, {"pp": 8})
    assert counted.get("--account-for-embedding-in-pipeline-split") == ""
    assert counted.get("--account-for-loss-in-pipeline-split") == ""
    assert not applied(even, {"pp": 2}).has("--account-for-loss-in-pipeline-split")


def test_a_split_of_the_commands_own_is_left_alone_while_its_pipeline_is() -> None:
    line = applied(DEEPSEEK_V3, {"tp": 2, "pp": 8, "vp": 4, "ep": 32, "etp": 1})
    assert line.get("--pipeline-model-parallel-layout") == "Et*3|(tt|)*29m|L"


def test_the_distributed_optimizer_is_switched_only_where_it_is_searched() -> None:
    assert applied(LLAMA3_8B, {}).has("--use-distributed-optimizer")
    off = applied(LLAMA3_8B, {"zero": 0}, search="default+zero")
    # Gathering ahead needs the optimizer that is off.
    assert not off.has("--use-distributed-optimizer") and not off.has("--overlap-param-gather")
    assert off.has("--overlap-grad-reduce")
    assert applied(SMALL, {"zero": 1}, search="default+zero").has("--use-distributed-optimizer")


def test_applying_a_point_twice_changes_nothing_more() -> None:
    for command in (LLAMA3_8B, MIXTRAL, SMALL):
        preset = bound(command)
        for point in list(preset.points())[::97]:
            once = preset.apply_parameters(command, point)
            assert preset.apply_parameters(once, point) == once


def test_placeholders_are_filled_and_the_rest_is_set() -> None:
    command = SMALL.replace("--micro-batch-size 1", "--micro-batch-size {mbs}").replace(" 8 ", " {n_gpus} ")
    text = bound(command, n_gpus=8).apply_parameters(command, {**PLAIN, "tp": 2, "mbs": 4})
    assert "--nproc-per-node 8 " in text and "--micro-batch-size 4 " in text
    assert text.count("--micro-batch-size") == 1 and "--tensor-model-parallel-size 2" in text


def test_another_global_batch_is_set() -> None:
    assert applied(SMALL, {}, gbs=128).get("--global-batch-size") == "128"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.sh"


def test_a_script_that_passes_its_arguments_on_gets_the_options(script: Path) -> None:
    script.write_text(f'{SMALL} \\\n    --log-interval 1 "$@"\n')
    line = applied("bash train.sh --lr 1", {"tp": 2, "recompute": "selective"})
    assert line.text.startswith("bash train.sh --lr 1 --tensor-model-parallel-size 2 ")
    assert line.get("--recompute-granularity") == "selective" and line.has("--sequence-parallel")


def test_a_trial_logs_every_iteration_and_the_point_itself_does_not() -> None:
    command = f"{SMALL} --log_interval 50"
    preset = bound(command)
    assert ParsedCommand.of(preset.trial_command(command)).get("--log-interval") == "1"
    assert (
        ParsedCommand.of(preset.apply_parameters(command, preset.own_point(command) or {})).get("--log-interval")
        == "50"
    )


def test_experts_are_measured_with_balanced_routing_and_the_point_itself_is_not() -> None:
    preset = bound(MIXTRAL)
    own = preset.own_point(MIXTRAL)
    assert own is not None and own["routing"] == "balanced"
    written = preset.apply_parameters(MIXTRAL, own)
    assert ParsedCommand.of(preset.trial_command(written)).get("--moe-router-force-load-balancing") == ""
    assert not ParsedCommand.of(written).has("--moe-router-force-load-balancing")


@pytest.mark.parametrize(
    ("command", "keywords"),
    [
        (SMALL, {}),
        (MIXTRAL, {"routing": "as-is"}),
        (f"{MIXTRAL} --moe-router-force-load-balancing", {}),
    ],
)
def test_routing_is_left_alone_where_there_is_none_or_somebody_says_so(
    command: str, keywords: dict[str, int | str]
) -> None:
    preset = bound(command, **keywords)
    assert "routing" not in preset.get_search_space()
    count = command.count("--moe-router-force-load-balancing")
    assert preset.trial_command(command).count("--moe-router-force-load-balancing") == count


def test_a_routing_that_is_none_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="as-is"):
        MegatronLmPreset(routing="asis")


def test_a_study_without_balanced_routing_continues_without() -> None:
    preset = bound(MIXTRAL)
    recorded = {name: [value] for name, value in (preset.own_point(MIXTRAL) or {}).items() if name != "routing"}
    preset.continue_with(recorded)
    assert "--moe-router-force-load-balancing" not in preset.trial_command(MIXTRAL)
    preset = bound(MIXTRAL)
    preset.continue_with({**recorded, "routing": ["balanced"]})
    assert "--moe-router-force-load-balancing" in preset.trial_command(MIXTRAL)


def test_a_script_that_does_not_pass_its_arguments_on_logs_as_it_does(script: Path) -> None:
    script.write_text(f"{SMALL} --tensor-model-parallel-size $1\n")
    command = "bash train.sh {tp}"
    preset = bound(command, search="tp")
    assert preset.trial_command("bash train.sh 2") == "bash train.sh 2"


def test_one_that_does_not_is_refused_with_a_hint(script: Path) -> None:
    script.write_text(f"{SMALL}\n")
    with pytest.raises(UsageError) as caught:
        bound("bash train.sh")
    assert mentions(caught.value.problem, "train.sh", "tp, pp, vp, mbs, recompute")
    assert mentions(caught.value.hint, '"$@"', "pretrain_gpt.py", "{tp}")


def test_placeholders_do_for_a_script_that_does_not(script: Path) -> None:
    script.write_text(f"{SMALL} --tensor-model-parallel-size $TP --micro-batch-size ${{MBS:-1}}\n")
    command = "TP={tp} MBS={mbs} bash train.sh"
    assert applied(command, {"tp": 4, "mbs": 2}, search="tp+mbs").text == "TP=4 MBS=2 bash train.sh"
    with pytest.raises(UsageError) as caught:
        bound(command, search="tp+mbs+recompute")
    assert mentions(caught.value.problem, "train.sh", "recompute") and not mentions(caught.value.problem, "tp")
    assert '"$@"' in caught.value.hint


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        (
            f'{SMALL} --recompute-granularity full "$@"',
            ("--recompute-granularity", "train.sh"),
            ("recompute", "search"),
        ),
        (
            f'{SMALL} --num-layers-per-virtual-pipeline-stage 4 "$@"',
            ("--num-layers-per-virtual-pipeline-stage", "train.sh"),
            ("pp", "vp", "search"),
        ),
        (
            f'{SMALL} "$@" --tensor-model-parallel-size 2',
            ("--tensor-model-parallel-size", "train.sh", '"$@"'),
            ('"$@"', "pretrain_gpt.py"),
        ),
    ],
)
def test_what_a_script_fixes_is_refused_in_one_line(
    script: Path, text: str, problem: tuple[str, ...], hint: tuple[str, ...]
) -> None:
    script.write_text(text)
    with pytest.raises(UsageError) as caught:
        bound("bash train.sh")
    assert mentions(caught.value.problem, *problem) and mentions(caught.value.hint, *hint)
    assert "\n" not in str(caught.value)


def test_what_a_script_fixes_is_no_matter_where_it_is_not_searched(script: Path) -> None:
    script.write_text(f'{SMALL} --recompute-granularity selective --tensor-model-parallel-size 2 "$@"')
    line = applied("bash train.sh", {"tp": 4}, search="tp+mbs")
    assert line.get("--tensor-model-parallel-size") == "4"


def test_an_option_in_a_variable_of_the_command_cannot_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MORE", "--recompute-activations")
    with pytest.raises(UsageError, match=r"--recompute-activations .*variable"):
        bound(f"{SMALL} $MORE")


def test_a_switch_that_a_variable_follows_is_not_guessed_at() -> None:
    with pytest.raises(UsageError, match=r"--recompute-activations .*search"):
        bound(f"{SMALL} --recompute-activations $MORE")


def test_another_batch_needs_its_place_in_a_script_too(script: Path) -> None:
    script.write_text(f'torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} "$@" --global-batch-size 64')
    with pytest.raises(UsageError, match=r'train.sh .*--global-batch-size .*"\$@"'):
        bound("bash train.sh --micro-batch-size 1", gbs=128)


@pytest.mark.parametrize(
    "script",
    [
        'A=""; grep -q root /etc/passwd && A="--tensor-model-parallel-size 4"\nRUN $A "$@"\n',
        'A=(--tensor-model-parallel-size 2); A[1]=4\nRUN "${A[@]}" "$@"\n',
        'TP=2; declare -n r=TP; r=4\nRUN --tensor-model-parallel-size $TP "$@"\n',
        'RUN --tensor-model-parallel-size 2 "$@"\nRUN --tensor-model-parallel-size 4 "$@"\n',
        'A=$(cat args.txt)\nRUN $A "$@"\n',
        'echo "--tensor-model-parallel-size 4" | xargs RUN "$@"\n',
        'RUN --tensor-model-parallel-size ${OWN_TP:-2} "$@"\n',
    ],
)
def test_where_arguments_are_not_surely_known_every_size_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("OWN_TP", "4")
    path = tmp_path / "train.sh"
    path.write_text(script.replace("RUN", SMALL))
    for tp in (1, 2, 4):
        line = applied(f"bash {path}", {"tp": tp, "mbs": 1})
        assert (line.get("--tensor-model-parallel-size"), line.get("--micro-batch-size")) == (str(tp), "1")


def test_a_command_whose_arguments_a_file_replaces_is_refused() -> None:
    with pytest.raises(UsageError, match="--yaml-cfg"):
        bound(f"{SMALL} --yaml-cfg x.yaml")

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.presets.megatron.test_commands import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL
from tests.presets.megatron.test_space import PLAIN, space, tiny
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.preset import MegatronLmPreset

LATENT = "--multi-latent-attention --q-lora-rank 32"
SHARED = "--moe-shared-expert-intermediate-size 64"
EXPERTS = "--num-experts 4 --disable-bias-linear"
OPTION = "--recompute-modules"


def modules(command: str, search: str = "modules") -> list[str]:
    kinds = map(str, space(command, search).choices["recompute"])
    return [kind.removeprefix("selective/") for kind in kinds if kind.startswith("selective/")]


def applied(command: str, recompute: str) -> list[str]:
    preset = MegatronLmPreset(search="modules")
    preset.bind(command)
    return shlex.split(preset.apply_parameters(command, {**PLAIN, "recompute": recompute}))


def behind(words: list[str], option: str) -> list[str]:
    """Return the values of the last occurrence of an option, as argparse would."""
    at = len(words) - words[::-1].index(option)
    end = next((i for i in range(at, len(words)) if words[i].startswith("--")), len(words))
    return words[at:end]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", ["mlp"]),
        ("--transformer-impl local", ["mlp", "layernorm"]),
        (LATENT, ["mlp", "layernorm", "mla_up_proj"]),
        (EXPERTS, ["moe", "layernorm"]),
        (f"{EXPERTS} --moe-layer-freq [0]*1+[1]*5", ["mlp", "moe", "layernorm"]),
        (f"{EXPERTS} --moe-grouped-gemm", ["moe", "moe_act", "layernorm"]),
        (f"{EXPERTS} --moe-grouped-gemm --transformer-impl local", ["moe", "layernorm"]),
        (f"{EXPERTS} {SHARED}", ["moe", "shared_experts", "layernorm"]),
        (f"{EXPERTS} {SHARED} --moe-shared-expert-overlap", ["moe", "layernorm"]),
        (f"{EXPERTS} --moe-grouped-gemm --fp8-format hybrid", ["moe"]),
        (f"{EXPERTS} --recompute-modules moe", ["layernorm"]),
        (f"{EXPERTS} --recompute-modules=moe", ["layernorm"]),
        (f"{EXPERTS} --moe-layer-recompute", []),
        ("--cuda-graph-impl local", []),
        ("--enable-cuda-graph", []),
        ("--cuda-graph-impl none", ["mlp"]),
        ("--fine-grained-activation-offloading", []),
    ],
)
def test_modules_are_those_that_model_and_switches_have(options: str, names: list[str]) -> None:
    assert modules(tiny(options)) == names


def test_modules_are_searched_on_request_alone() -> None:
    assert modules(MIXTRAL, "default") == modules(MIXTRAL, "recompute") == []
    assert modules(MIXTRAL, "default+modules") == modules(MIXTRAL) == ["moe", "moe_act", "layernorm"]


def test_a_module_is_written_behind_its_option() -> None:
    words = applied(LLAMA3_8B, "selective/mlp")
    assert behind(words, OPTION) == ["mlp"]
    assert behind(words, "--recompute-granularity") == ["selective"]


@pytest.mark.parametrize("kind", ["none", "selective", "full/uniform1"])
def test_other_kinds_name_no_module(kind: str) -> None:
    assert OPTION not in applied(LLAMA3_8B, kind)


def test_plain_selective_keeps_the_modules_that_the_command_has() -> None:
    command = f"{MIXTRAL} --recompute-modules layernorm"
    assert behind(applied(command, "selective"), OPTION) == ["layernorm"]
    assert behind(applied(command, "selective/moe"), OPTION) == ["moe"]
    assert applied(command, "selective/moe").count(OPTION) == 1


def test_a_layout_with_a_module_is_selective_to_the_planner() -> None:
    found = space(LLAMA3_8B, "modules")
    plain, mlp = (found.layout({**PLAIN, "recompute": kind}) for kind in ("selective", "selective/mlp"))
    assert plain.recompute == mlp.recompute == "selective"
    assert plain.recompute_layers == mlp.recompute_layers == 0
    assert plain != mlp


def test_several_modules_in_the_command_are_refused_in_one_line() -> None:
    preset = MegatronLmPreset(search="default+modules")
    with pytest.raises(UsageError) as caught:
        preset.bind(DEEPSEEK_V3)
    assert mentions(caught.value.problem, "--recompute-modules", "mla_up_proj layernorm")
    assert mentions(caught.value.hint, "modules", "search")
    MegatronLmPreset().bind(DEEPSEEK_V3)


def test_modules_in_a_script_give_way_to_those_that_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = tiny(f"{EXPERTS} --recompute-modules layernorm moe")
    Path("train.sh").write_text(f'{text} "$@"\n')
    assert behind(applied("bash train.sh", "selective/moe"), OPTION) == ["moe"]
    Path("train.sh").write_text(f'{tiny(EXPERTS)} "$@" --recompute-modules moe\n')
    with pytest.raises(UsageError, match=r'train.sh .*--recompute-modules .*"\$@"'):
        applied("bash train.sh", "selective/moe")

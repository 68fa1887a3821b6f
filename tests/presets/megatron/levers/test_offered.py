"""Which levers a layout is offered, what they write, and what a log must say of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from zenith_tune.evaluators.failures.no_effect import disagreement
from zenith_tune.hooks.packages import PACKAGES
from zenith_tune.presets.levers import Lever, names_on_request
from zenith_tune.presets.megatron.job import recompute_name
from zenith_tune.presets.megatron.levers.memory import module_cost
from zenith_tune.presets.megatron.levers.offered import LEVERS, NAMES
from zenith_tune.presets.megatron.preset import APEX, MegatronLmPreset, installed
from zenith_tune.study.parameters import Value

PARTS = {"compute", "recompute", "tp", "cp", "ep", "bubble", "p2p", "dp", "optimizer", "overhead"}
DENSE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --bf16 "
    "--position-embedding-type rope --use-distributed-optimizer"
)
EXPERTS = (
    "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 16 --num-experts 32 --swiglu "
    "--moe-router-topk 4 --moe-ffn-hidden-size 1408 --untie-embeddings-and-output-weights --disable-bias-linear --bf16 "
    "--use-distributed-optimizer"
)
REST = "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000"
DOCS = Path(__file__).parents[4] / "docs"


class Studied:
    """Ask the preset of one command, in a tree of the release that is named."""

    def __init__(self, folder: Path, model: str, release: str = "0.20", gpu: str = "h100", before: str = "") -> None:
        package = folder / "megatron" / "core"
        package.mkdir(parents=True)
        major, minor = release.split(".")
        (package / "package_info.py").write_text(f"MAJOR = {major}\nMINOR = {minor}\nPATCH = 0\nPRE_RELEASE = ''\n")
        self.command = f"{before}torchrun --nproc-per-node 8 {folder}/pretrain_gpt.py {model} {REST}"
        self.preset = MegatronLmPreset(cluster=f"{gpu}x8")
        self.preset.bind(self.command)
        self.own = self.preset.own_point(self.command) or {}

    def levers(self, **point: Value) -> dict[str, Lever]:
        return {lever.label: lever for lever in self.preset.levers(self.command, {**self.own, **point})}

    def written(self, **point: Value) -> str:
        return self.preset.apply_parameters(self.command, {**self.own, **point})


def test_declarations_are_whole() -> None:
    for lever in LEVERS:
        assert lever.source, lever.name
        assert lever.saves.keys() <= PARTS, lever.name
        assert lever.excludes | lever.needs.keys() <= {*NAMES, *(each.label for each in LEVERS)}, lever.name
        assert all(saved <= 0.8 for saved in lever.saves.values()), "nothing hides the whole of a part"
        assert lever.saves or lever.memory or lever.effect, "it must be of some use"
        for other in LEVERS:
            same = lever is not other and (lever.name, lever.value) == (other.name, other.value)
            overlapping = lever.first <= other.last and other.first <= lever.last
            assert not (same and overlapping), f"{lever.name} is declared twice for a release"


def test_the_page_has_every_declaration() -> None:
    done = subprocess.run([sys.executable, DOCS / "generate_levers.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_fused_loss_is_the_one_that_the_release_takes(tmp_path: Path) -> None:
    found = {
        release: next(label for label in Studied(tmp_path / release, DENSE, release).levers() if "loss" in label)
        for release in ("0.9", "0.11", "0.12", "0.17", "0.18", "0.20")
    }
    native, engine = "loss_fusion=native", "loss_fusion=te"
    assert [found[release] for release in found] == [native, native, engine, engine, native, native]


def test_dispatchers_and_the_overlap_that_needs_one(tmp_path: Path) -> None:
    levers = Studied(tmp_path, EXPERTS).levers(ep=4)
    assert {"dispatcher=alltoall", "dispatcher=deepep"} <= levers.keys() and "dispatcher=hybridep" not in levers
    assert "dispatcher=hybridep" in Studied(tmp_path / "rack", EXPERTS, gpu="gb200").levers(ep=4)
    assert levers["ep_overlap"].needs == {"dispatcher"} and levers["delay_wgrad"].needs == {"ep_overlap"}
    given = Studied(tmp_path / "given", f"{EXPERTS} --moe-token-dispatcher-type alltoall").levers(ep=4)
    assert not given["ep_overlap"].needs and "dispatcher=alltoall" not in given
    assert "ep_overlap" not in Studied(tmp_path / "old", EXPERTS, "0.13").levers(ep=4)
    assert not {"ep_overlap", "dispatcher=deepep"} & Studied(tmp_path / "one", EXPERTS).levers(ep=1).keys()


def test_graphs_capture_whole_layers_of_dense_models_alone(tmp_path: Path) -> None:
    local, engine = "cuda_graphs=local", "cuda_graphs=transformer_engine"
    assert {local, engine} <= Studied(tmp_path / "dense", DENSE).levers().keys()
    experts = Studied(tmp_path / "experts", EXPERTS).levers()
    assert engine in experts and local not in experts
    assert local not in Studied(tmp_path / "again", DENSE).levers(recompute="full/uniform1")
    expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
    assert local not in Studied(tmp_path / "segments", DENSE, before=expandable).levers()


def test_a_module_replaces_the_recomputation_of_the_layout(tmp_path: Path) -> None:
    studied = Studied(
        tmp_path, f"{DENSE} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    )
    levers = studied.levers(recompute="full/uniform1")
    mlp, nothing = levers["modules=mlp"], levers["modules=none"]
    assert 0 < mlp.memory < nothing.memory and "modules=mlp" not in studied.levers(recompute="none")
    text = studied.written(recompute="full/uniform1", modules="mlp")
    assert "--recompute-granularity selective" in text and "--recompute-modules mlp" in text
    assert "--recompute-method" not in text and "--recompute-num-layers" not in text
    assert "--recompute" not in studied.written(recompute="full/uniform1", modules="none")


def test_label_and_layout_are_those_of_the_command_with_its_levers(tmp_path: Path) -> None:
    studied = Studied(tmp_path, DENSE.replace("--use-distributed-optimizer", ""))
    own = {**studied.own, "zero": 1, "recompute": "full/block4"}

    def shown(**levers: Value) -> tuple[str, str, int]:
        point = {**own, **levers}
        layout = studied.preset.planned_layout(studied.command, point)
        return studied.preset.label(point), recompute_name(layout), layout.zero

    assert shown() == ("Z1 mbs1 full/block4", "full/block4", 1)
    assert shown(modules="none") == ("Z1 mbs1 modules=none", "none", 1)
    assert shown(modules="mlp") == ("Z1 mbs1 modules=mlp", "selective", 1)
    assert shown(manual_gc=True) == ("Z1 mbs1 full/block4 manual_gc", "full/block4", 1)
    assert shown(torch_fsdp2=True) == ("mbs1 full/block4 torch_fsdp2", "full/block4", 3)


def test_the_layout_with_any_lever_can_be_planned(tmp_path: Path) -> None:
    for name, model in {"dense": DENSE, "experts": EXPERTS}.items():
        studied = Studied(tmp_path / name, model)
        for lever in LEVERS:
            if lever.is_known(studied.preset._space.job):
                point = {**studied.own, lever.name: lever.value}
                assert studied.preset.planned_layout(studied.command, point).num_gpus == 8


def test_a_module_costs_its_share_of_the_forward_pass(tmp_path: Path) -> None:
    model = Studied(tmp_path, DENSE).preset.subject(Studied(tmp_path / "again", DENSE).command).model
    cost = module_cost("mlp", model, 4096)["compute"]
    # Llama 8B: 176 of 218 million weights of a layer are in its MLP; a forward pass is a third of a step.
    assert cost == pytest.approx(0.8 / 3, rel=0.2)
    # NVIDIA, Megatron-Bridge: 704 to 594 TFLOP/s for Llama 70B.
    assert cost == pytest.approx(704 / 593.6 - 1, abs=0.09)


def test_fsdp_is_offered_where_the_command_leaves_connections_free(tmp_path: Path) -> None:
    assert "fsdp" in Studied(tmp_path / "free", DENSE).levers()
    assert "fsdp" not in Studied(tmp_path / "tp", DENSE).levers(tp=2)
    assert "fsdp" not in Studied(tmp_path / "one", DENSE, before="CUDA_DEVICE_MAX_CONNECTIONS=1 ").levers()
    assert "fsdp" not in Studied(tmp_path / "save", f"{DENSE} --save here --save-interval 10").levers()


@pytest.mark.parametrize("release", ["0.12", "0.20"])
def test_the_best_command_with_fsdp_is_tuned_again(tmp_path: Path, release: str) -> None:
    first = Studied(tmp_path / "first", DENSE, release)
    assert "fsdp" in first.levers()
    best = first.written(fsdp=True)
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(best)
    own = preset.own_point(best)
    assert own is not None and preset.explain(own) is None
    assert preset.planned_layout(best, own).zero == 3 and preset.layout(own).zero == 1
    points = list(preset.points())
    assert points and all(point["tp"] == point["pp"] == 1 for point in points)
    for point in points[:3]:
        assert preset.apply_parameters(best, point).count("fsdp") == best.count("fsdp"), "it stays"
    levers = {lever.name for lever in preset.levers(best, own)}
    assert "overlap" in levers and not levers & {"fsdp", "torch_fsdp2", "bucket_size", "cuda_graphs", "bf16_grads"}
    less = {preset.planned_layout(best, point).zero for point in points}
    assert less == {3} and all((batch.zero == 3).all() for batch, _ in preset.tables(best) or ())


def test_torchs_fsdp_takes_the_distributed_optimizer_away(tmp_path: Path) -> None:
    studied = Studied(tmp_path / "new", f"{DENSE} --overlap-grad-reduce --overlap-param-gather")
    assert studied.levers()["torch_fsdp2"].is_on_request
    best = studied.written(torch_fsdp2=True)
    assert "--use-torch-fsdp2" in best and "--use-distributed-optimizer" not in best
    assert "--overlap-param-gather" not in best
    dumped = studied.preset.logged_as({**studied.own, "torch_fsdp2": True})
    assert dumped["use_torch_fsdp2"] is True and dumped["use_distributed_optimizer"] is False
    for name, model in {"old": "0.11", "fp16": "0.20"}.items():
        text = DENSE.replace("--bf16", "--fp16") if name == "fp16" else DENSE
        assert "torch_fsdp2" not in Studied(tmp_path / name, text, model).levers()
    assert "torch_fsdp2" not in Studied(tmp_path / "saves", f"{DENSE} --save here --save-interval 5").levers()
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(best)
    own = preset.own_point(best)
    assert own is not None and "zero" not in own and preset.planned_layout(best, own).zero == 3
    assert not {lever.name for lever in preset.levers(best, own)} & {"fsdp", "torch_fsdp2", "overlap"}


def test_a_log_must_not_say_what_a_lever_takes_away(tmp_path: Path) -> None:
    full = f"{DENSE} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    studied = Studied(tmp_path, full)
    assert studied.preset.logged_as(studied.own)["recompute_method"] == "uniform"
    dumped = studied.preset.logged_as({**studied.own, "modules": "mlp"})
    assert dumped["recompute_granularity"] == "selective" and "recompute_method" not in dumped
    assert "recompute_method" not in studied.preset.logged_as({**studied.own, "modules": "none"})


def test_low_precision_follows_the_gpu(tmp_path: Path) -> None:
    def numerics(name: str, gpu: str) -> set[str]:
        return {label for label, lever in Studied(tmp_path / name, DENSE, gpu=gpu).levers().items() if lever.numerics}

    assert {"fp8=tensorwise", "bf16_grads", "bf16_moments"} == numerics("hopper", "h100")
    assert {"fp8=mxfp8", "fp4", "bf16_grads", "bf16_moments"} == numerics("blackwell", "gb200")
    assert {"bf16_grads", "bf16_moments"} == numerics("ampere", "a100")
    assert {*names_on_request(LEVERS)} == {"fp8", "fp4", "bf16_grads", "bf16_moments", "torch_fsdp2"}


def test_a_switch_that_megatron_would_turn_off_again_is_not_offered(tmp_path: Path) -> None:
    off = f"{DENSE} --no-bias-gelu-fusion --no-bias-swiglu-fusion --no-rope-fusion"
    levers = Studied(tmp_path, off).levers()
    assert {"swiglu_fusion", "rope_fusion"} <= levers.keys() and "gelu_fusion" not in levers
    text = Studied(tmp_path / "again", off).written(rope_fusion=True)
    assert "--no-rope-fusion" not in text and "--no-bias-swiglu-fusion" in text


def test_what_a_script_holds_is_not_taken_away(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f'torchrun --nproc-per-node 8 pretrain_gpt.py {DENSE} {REST} --no-rope-fusion "$@"\n')
    preset = MegatronLmPreset(cluster="h100x8")
    preset.bind(f"bash {script}")
    own = preset.own_point(f"bash {script}")
    assert own is not None
    names = {lever.name for lever in preset.levers(f"bash {script}", own)}
    assert "overlap" in names and "rope_fusion" not in names


@pytest.mark.parametrize(
    ("lever", "dumped", "is_on"),
    [
        ({"modules": "mlp"}, "  recompute_granularity .... selective\n  recompute_modules .... ['mlp']", True),
        ({"modules": "mlp"}, "  recompute_granularity .... selective\n  recompute_modules .... ['moe']", False),
        ({"modules": "none"}, "  recompute_granularity .... None", True),
        ({"rope_fusion": True}, "  apply_rope_fusion .... False", False),
        ({"attention": "flash"}, "  attention_backend .... AttnBackend.flash", True),
        ({"attention": "flash"}, "  attention_backend .... AttnBackend.unfused", False),
        ({"fp8": "tensorwise"}, "  fp8 .... hybrid\n  fp8_recipe .... delayed", False),
        ({"bf16_grads": True}, "  accumulate_allreduce_grads_in_fp32 .... True", False),
        ({"bucket_size": 134217728}, "  ddp_bucket_size .... 134217728", True),
    ],
)
def test_the_dump_of_a_run_proves_a_lever(tmp_path: Path, lever: dict[str, Value], dumped: str, is_on: bool) -> None:
    studied = Studied(tmp_path, DENSE)
    asked = studied.preset.logged_as({**studied.own, **lever})
    assert (disagreement(dumped, asked) is None) == is_on


def test_a_note_names_what_may_be_tried(tmp_path: Path) -> None:
    def noted(preset: MegatronLmPreset, command: str) -> str:
        return next((line for line in preset.notes(command) if "optional settings" in line), "")

    studied = Studied(tmp_path, DENSE)
    line = noted(studied.preset, studied.command)
    assert "overlap" in line and "tp_overlap" in line and "--allow" in line and "ep_overlap" not in line
    bare = MegatronLmPreset(cluster="h100x8", levers="none")
    bare.bind(studied.command)
    assert not noted(bare, studied.command)


RELEASES = [pytest.param(f"0.{minor}", marks=[] if minor in (9, 20) else pytest.mark.slow) for minor in range(9, 21)]
OFF = (
    "--no-masked-softmax-fusion --no-bias-swiglu-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion "
    "--no-rope-fusion --no-gradient-accumulation-fusion"
)
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
OWN: dict[str, tuple[str, dict[str, Value]]] = {
    "bare": (DENSE, {}),
    "off": (f"{DENSE} {OFF}", {}),
    "underscores": (f"{DENSE} {OFF}".replace("-", "_").replace("__", "--"), {}),
    "local": (f"{DENSE} {OFF} --transformer-impl local", {}),
    "full": (f"{DENSE} {FULL}", {"recompute": "full/uniform"}),
    "split": (f"{DENSE} --sequence-parallel", {"tp": 2}),
    "experts": (f"{EXPERTS} --moe-token-dispatcher-type alltoall", {"ep": 8}),
    "allgather": (EXPERTS, {"ep": 8}),
}


def options_of(command: str) -> Counter[str]:
    """Count the options of a command, however they are spelled."""
    names = (word.partition("=")[0] for word in command.split() if word.startswith("--"))
    return Counter(name.replace("_", "-") for name in names)


@pytest.mark.parametrize("release", RELEASES)
def test_a_lever_is_written_once_and_then_known_to_be_on(tmp_path: Path, release: str) -> None:
    seen: set[str] = set()
    for name, (model, point) in OWN.items():
        studied = Studied(tmp_path / name, model, release)
        for label, lever in studied.levers(**point).items():
            seen.add(lever.name)
            best = studied.written(**{**point, lever.name: lever.value})
            options = options_of(best)
            assert not [option for option in options if options[option] > 1 or f"--no-{option[2:]}" in options], best
            again = MegatronLmPreset(cluster="h100x8")
            again.bind(best)
            own = again.own_point(best)
            assert own is not None and label not in {each.label for each in again.levers(best, own)}, best
    assert {"overlap", "rope_fusion", "gradient_fusion", "softmax_fusion", "dispatcher", "tp_overlap"} <= seen


@pytest.mark.parametrize(
    ("own", "lever"),
    [
        ("--manual-gc --manual-gc-interval 20", "manual_gc"),
        ("--manual-gc", "manual_gc"),
        ("--cross-entropy-loss-fusion", "loss_fusion"),
        ("--no-overlap-grad-reduce", "overlap"),
        ("--no-tp-comm-overlap", "tp_overlap"),
        ("--ddp-bucket-size 1000000 --overlap-grad-reduce", "bucket_size"),
        ("--attention-backend fused", "attention"),
        ("--cuda-graph-impl local --te-rng-tracker", "cuda_graphs"),
        ("--fp8-format e4m3", "fp8"),
    ],
)
def test_what_the_command_says_itself_is_not_contradicted(tmp_path: Path, own: str, lever: str) -> None:
    levers = Studied(tmp_path, f"{DENSE} --sequence-parallel {own}").levers(tp=2)
    assert levers and lever not in {each.name for each in levers.values()}


@pytest.mark.parametrize("release", RELEASES)
def test_a_lever_does_not_go_beside_one_of_the_command_that_excludes_it(tmp_path: Path, release: str) -> None:
    pairs: dict[tuple[str, str], tuple[str, dict[str, Value]]] = {
        ("ep_overlap", "cuda_graphs"): (f"{EXPERTS} --moe-token-dispatcher-type alltoall", {"ep": 8}),
        ("cuda_graphs", "fsdp"): (DENSE, {}),
        ("bucket_size", "fsdp"): (f"{DENSE} --overlap-grad-reduce", {}),
        ("bf16_grads", "fsdp"): (DENSE, {}),
        ("fsdp", "gradient_fusion"): (f"{DENSE} --no-gradient-accumulation-fusion", {}),
    }
    for (first, second), (model, point) in pairs.items():
        studied = Studied(tmp_path / f"{first}-{second}", model, release)
        levers = {lever.name: lever for lever in studied.levers(**point).values()}
        if not {first, second} <= levers.keys():
            continue  # this release does not have both
        best = studied.written(**{**point, first: levers[first].value})
        again = MegatronLmPreset(cluster="h100x8")
        again.bind(best)
        own = again.own_point(best)
        assert own is not None and second not in {lever.name for lever in again.levers(best, own)}, best


def test_an_explicit_kernel_of_the_loss_or_dispatcher_stands(tmp_path: Path) -> None:
    native = Studied(
        tmp_path / "loss", f"{DENSE} --cross-entropy-loss-fusion --cross-entropy-fusion-impl native", "0.14"
    )
    assert "loss_fusion=te" not in native.levers()
    plain = Studied(tmp_path / "plain", f"{DENSE} --cross-entropy-loss-fusion", "0.14")
    assert "loss_fusion=te" in plain.levers(), "nobody has asked for the other"
    flex = Studied(tmp_path / "flex", f"{EXPERTS} --moe-token-dispatcher-type flex")
    assert not any(label.startswith("dispatcher") for label in flex.levers(ep=8))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", {}),
        ('zenithtune-accelerate: {"packages": {"deep_ep": true}}', {"deep_ep": True}),
        (
            'x\nzenithtune-accelerate: {"packages": {"deep_ep": false}}\n'
            '[rank0]: zenithtune-accelerate: {"packages": {"deep_ep": true}}',
            {"deep_ep": True},
        ),
        ('zenithtune-accelerate: {"packages": {"deep_ep"zenithtune-', {}),
        ("UserWarning: Transformer Engine and Apex are not installed. Falling back", dict.fromkeys(APEX, False)),
    ],
)
def test_a_log_tells_which_packages_are_there(log: str, expected: dict[str, bool]) -> None:
    assert installed(log) == expected


def test_what_a_package_is_missing_for_is_named_and_not_tried(tmp_path: Path) -> None:
    assert {lever.package for lever in LEVERS} - {None} == {*PACKAGES}
    studied = Studied(tmp_path, EXPERTS)
    assert studied.levers(ep=8)["dispatcher=deepep"].is_unsure, "nobody knows before the command ran"
    for is_there in (True, False):
        studied.preset.read_baseline(f'zenithtune-accelerate: {{"packages": {{"deep_ep": {str(is_there).lower()}}}}}')
        lever = studied.levers(ep=8)["dispatcher=deepep"]
        assert not lever.is_unsure and lever.is_left_out == (not is_there)

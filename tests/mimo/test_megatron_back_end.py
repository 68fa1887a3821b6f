"""Both back-ends train the same layouts as one process does: the runtime here, and Megatron's own multimodal model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram
from tests.requirements import skip
from zenith_mimo.megatron.support import MegatronSupport
from zenith_mimo.planning.candidate import why_not
from zenith_mimo.planning.config import MimoLayout, ModuleLayout
from zenith_mimo.preset.preset import MimoPreset
from zenith_tune.errors import UsageError

TREE = "ZENITHTUNE_MEGATRON"
"""Names what PYTHONPATH needs for megatron-core 0.17 or newer, which wants Python 3.12: a tree or an unpacked wheel."""
OLDER = MegatronSupport(version="0.17.1", bridges_shared_ranks=False, splits_by_sample=False)
NEWER = MegatronSupport(version="0.20.0", bridges_shared_ranks=True, splits_by_sample=True)
UNEVEN, RECUT_SINCE_0_18 = {"uneven fan-in"}, {"uneven fan-out", "shared ranks, dp4 to tp2 dp2"}
"""What Megatron's back-end refuses."""
LIMITS = {"loss": 1e-6, "grads": 5e-5, "norm": 1e-6, "weights": 1e-5}
"""Single precision against double; the errors seen are a third of these or less."""


EXAMPLE = """
import runpy, warnings
from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda
pretend_cuda()
warnings.simplefilter("ignore")
runpy.run_path("examples/mimo_train.py", run_name="__main__")
"""


@pytest.fixture
def newer_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (tree := os.environ.get(TREE)):
        skip("megatron-mimo", f"{TREE} does not name a tree of megatron-core 0.17 or newer")
    monkeypatch.setenv("PYTHONPATH", str(tree))


@pytest.mark.slow
@pytest.mark.own_environment
def test_the_example_prints_the_same_losses_with_both_back_ends(
    newer_megatron: None, start: Callable[..., Any]
) -> None:
    options = (
        "--train-iters 3 --global-batch-size 4 --encoder-tp 2 --llm-pp 2 --llm-layers 2 --use-distributed-optimizer"
    )
    losses = []
    for back_end in ("runtime", "megatron"):
        done = start("-c", EXAMPLE, *options.split(), "--backend", back_end)
        assert done.returncode == 0, done.stderr[-3000:]
        losses.append([float(loss) for loss in re.findall(r"lm loss: (\S+) \|", done.stdout)])
    assert len(losses[0]) == 3 and losses[1] == pytest.approx(losses[0], rel=2e-3)


@pytest.mark.slow
@pytest.mark.own_environment
def test_modules_that_the_user_specifies_train_alike_in_two_layouts(
    newer_megatron: None, run_program: RunProgram
) -> None:
    own, shared = run_program("megatron_specs").values()
    assert own == pytest.approx(shared, rel=1e-4)
    assert own[-1] < own[0]


@pytest.mark.slow
@pytest.mark.own_environment
@pytest.mark.parametrize("half", [0, 1])
def test_both_back_ends_train_every_layout_as_one_process_does(
    newer_megatron: None, run_program: RunProgram, half: int
) -> None:
    found = run_program("megatron", f"{half}/2", "runtime,megatron")
    is_new = tuple(map(int, found.pop("version")["megatron"].split(".")[:2])) >= (0, 18)
    refused = {name for name, of in found.items() if "refused" in of["megatron"]}
    assert refused == set(found) & (UNEVEN if is_new else UNEVEN | RECUT_SINCE_0_18)
    trained = {(name, by): one for name, of in found.items() for by, one in of.items() if "refused" not in one}
    assert len(trained) == 2 * len(found) - len(refused)
    too_large = {
        key: {kind: error for kind, error in one["errors"].items() if not error <= LIMITS[kind]}
        for key, one in trained.items()
    }
    assert {key: errors for key, errors in too_large.items() if errors} == {}
    assert [key for key, one in trained.items() if not one["is_alike"]] == []


def modules(encoder: ModuleLayout, language: ModuleLayout) -> MimoLayout:
    return MimoLayout(modules={"vision": encoder, "language": language})


FAN_IN = modules(ModuleLayout(dp=2), ModuleLayout(offset=2))
FAN_OUT = modules(ModuleLayout(), ModuleLayout(dp=2, offset=1))
RECUT = modules(ModuleLayout(dp=2), ModuleLayout(tp=2))
ALIKE = modules(ModuleLayout(dp=2), ModuleLayout(dp=2))


@pytest.mark.parametrize(
    ("layout", "even", "by_older", "by_newer"),
    [
        (FAN_IN, True, True, True),
        (FAN_IN, False, False, False),
        (FAN_OUT, True, True, True),
        (FAN_OUT, False, False, True),
        (RECUT, True, False, True),
        (RECUT, False, False, False),
        (ALIKE, False, True, True),
        (MimoLayout(modules={"language": ModuleLayout()}), True, False, False),
    ],
)
def test_a_version_refuses_what_it_would_train_wrongly(
    layout: MimoLayout, even: bool, by_older: bool, by_newer: bool
) -> None:
    for support, is_trained in ((OLDER, by_older), (NEWER, by_newer)):
        if is_trained:
            support.check(layout, has_even_items=even)
        else:
            with pytest.raises(UsageError):
                support.check(layout, has_even_items=even)


def test_a_version_without_the_multimodal_optimizer_is_refused_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "megatron" / "core"
    (package / "models" / "mimo").mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.16.1'")
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as caught:
        MegatronSupport.of_installed()
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]
    assert mentions(str(caught.value), "0.17", "0.16.1")


def test_a_version_that_imports_what_is_not_installed_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "megatron" / "core"
    (package / "models" / "mimo").mkdir(parents=True)
    (package / "__init__.py").write_text("import triton_of_nobody")
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as caught:
        MegatronSupport.of_installed()
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]
    assert mentions(str(caught.value), "pip install triton_of_nobody") and "\n" not in str(caught.value)


def test_a_study_of_the_megatron_back_end_plans_what_it_can_train() -> None:
    layers = "--encoder-layers 4 --llm-layers 6"

    def plans(options: str) -> list[Any]:
        preset = MimoPreset(n_gpus=4)
        preset.bind(f"torchrun --nproc-per-node 4 examples/mimo_train.py {layers} {options}")
        job = preset.space.read.job
        candidates = [preset.space.candidate(point) for point in preset.points()]
        assert candidates and all(why_not(job, candidate) is None for candidate in candidates)
        return candidates

    uneven, even = plans("--backend megatron --images 2,1"), plans("--backend megatron --images 1")
    own = plans("--images 2,1")
    assert all(one.encoder.dp <= one.language.dp for one in uneven)
    assert {one.encoder.dp == one.language.dp for one in uneven if one.is_colocated} == {True}
    assert {one.encoder.dp == one.language.dp for one in even if one.is_colocated} == {True, False}
    assert any(one.encoder.dp > one.language.dp for one in own)
    assert all(4 % one.encoder.pp == 0 and 6 % one.language.pp == 0 for one in [*uneven, *even])


@pytest.mark.slow
def test_the_example_refuses_the_back_end_without_a_gpu(start: Callable[..., Any]) -> None:
    done = start("examples/mimo_train.py", "--backend", "megatron", "--images", "1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert mentions(done.stderr, "Megatron", "GPU")

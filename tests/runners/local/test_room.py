from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.runners.fake_nvidia_smi import put_on_path
from zenith_tune.errors import UsageError
from zenith_tune.runners.local.room import LocalRoom, Slot, SlotPool, VisibleGpus, gpu_sets
from zenith_tune.study.resources import Resources

TWO_GPUS = Resources(gpus_per_node=2)


@pytest.fixture
def eight_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, num_gpus=8)


@pytest.fixture
def no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, num_gpus=None)


def room(resources: Resources, parallel: int | None, **environment: str) -> LocalRoom:
    return LocalRoom.of(resources, parallel, environment)[0]


@pytest.mark.usefixtures("eight_gpus")
def test_auto_makes_as_many_slots_as_there_are_gpus_for() -> None:
    chosen, note = LocalRoom.of(TWO_GPUS, None, {})
    assert chosen.num_slots == 4
    assert mentions(note, "4 trials", "0,1", "2,3", "4,5", "6,7")


@pytest.mark.usefixtures("eight_gpus")
def test_the_variable_names_the_gpus_that_may_be_used() -> None:
    chosen = room(TWO_GPUS, None, CUDA_VISIBLE_DEVICES="6,7,1")
    assert chosen.num_slots == 1
    assert VisibleGpus.of({"CUDA_VISIBLE_DEVICES": "6,7,-1,3"}).names == ("6", "7")
    assert VisibleGpus.of({"CUDA_VISIBLE_DEVICES": ""}).names == ()
    assert VisibleGpus.of({"CUDA_VISIBLE_DEVICES": "GPU-8a, GPU-9b"}).names == ("GPU-8a", "GPU-9b")


@pytest.mark.usefixtures("eight_gpus")
def test_no_gpu_and_no_port_is_given_twice() -> None:
    chosen = room(TWO_GPUS, None)
    slots = [chosen.take() for _ in range(4)]
    assert sorted(gpu for slot in slots for gpu in slot.gpus) == [str(number) for number in range(8)]
    assert len({slot.port for slot in slots}) == 4
    waiting: list[Slot] = []
    thread = threading.Thread(target=lambda: waiting.append(chosen.take()))
    thread.start()
    thread.join(0.1)
    assert not waiting
    chosen.give_back(slots[2])
    thread.join(500)
    assert waiting[0].gpus == slots[2].gpus


@pytest.mark.usefixtures("eight_gpus")
def test_a_slot_keeps_the_trial_to_its_own() -> None:
    slot = room(TWO_GPUS, 2).take()
    environment = slot.environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert slot.command("torchrun t.py") == f"torchrun --master-port {environment['MASTER_PORT']} t.py"
    assert slot.place == "GPU 0,1"


@pytest.mark.usefixtures("eight_gpus")
def test_the_only_slot_has_the_gpus_that_were_asked_for() -> None:
    chosen, note = LocalRoom.of(Resources(gpus_per_node=5), None, {})
    assert mentions(note, "0,1,2,3,4")
    for _ in range(2):
        slot = chosen.take()
        assert slot.environment() == {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert slot.command("torchrun t.py") == "torchrun t.py"
        chosen.give_back(slot)
    assert list(chosen.own_variables) == ["CUDA_VISIBLE_DEVICES"]
    assert LocalRoom.of(Resources(gpus_per_node=1), None, {"CUDA_VISIBLE_DEVICES": "3"})[1].endswith("GPU 3")


@pytest.mark.usefixtures("eight_gpus")
def test_one_at_a_time_changes_nothing() -> None:
    slot = room(TWO_GPUS, 1).take()
    assert (slot.environment(), slot.command("torchrun t.py"), slot.place) == ({}, "torchrun t.py", "")


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize(
    ("resources", "parallel", "problem"),
    [
        (TWO_GPUS, 5, "5 trials of 2 GPUs.* 10.* 8"),
        (Resources(gpus_per_node=16), None, "16 GPUs.* 8"),
        (Resources(), None, "--gpus-per-trial"),
        (Resources(nodes=2, gpus_per_node=2), 2, "2 nodes of 2 GPUs"),
    ],
)
def test_what_can_never_start_is_refused(resources: Resources, parallel: int | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        room(resources, parallel)


@pytest.mark.usefixtures("no_gpus")
def test_without_gpus_auto_is_one_at_a_time_and_a_number_is_taken_at_its_word() -> None:
    chosen, note = LocalRoom.of(TWO_GPUS, None, {})
    assert chosen.num_slots == 1 and mentions(note, "no GPU")
    four = room(TWO_GPUS, 4)
    assert four.num_slots == 4
    assert "CUDA_VISIBLE_DEVICES" not in four.take().environment()


def test_an_nvidia_smi_that_fails_is_a_machine_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, num_gpus=None, script="echo broken; exit 9")
    assert VisibleGpus.of({}).names == ()


def test_gpus_are_cut_into_sets() -> None:
    assert gpu_sets(["0", "1", "2", "3", "4"], 2) == [("0", "1"), ("2", "3")]


def test_a_slot_is_taken_once() -> None:
    pool = SlotPool(["n1", "n2"])
    assert pool.take(lambda slot: slot != "n1") == "n2"
    assert pool.take(lambda slot: slot != "n2") == "n1"

"""The longest samples come first in a run that confirms a point: in process, with small stand-ins for loaders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.presets.trainer.runs import bound, run
from zenith_tune.hooks import longest
from zenith_tune.hooks.process import PREFIX
from zenith_tune.study.trial import CONFIRMED_ON, Outcome, Trial


class Batches:
    """Cut what a sampler yields into batches, as torch's and Accelerate's do."""

    def __init__(self, sampler: Any, size: int) -> None:
        self.sampler, self.size = sampler, size

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        return (order[at : at + self.size] for at in range(0, len(order), self.size))


class Order(list[int]):
    """A sampler."""

    epoch = 3


def loader(lengths: list[int], *, micro_batch: int = 2) -> SimpleNamespace:
    samples = [{"input_ids": list(range(length))} for length in lengths]
    batches = Batches(Order(range(len(lengths))), micro_batch)
    return SimpleNamespace(dataset=samples, batch_sampler=SimpleNamespace(batch_sampler=batches))


def order(loader: SimpleNamespace) -> list[list[int]]:
    return list(loader.batch_sampler.batch_sampler)


def test_the_first_two_updates_have_the_longest_and_the_others_what_they_had() -> None:
    made = loader([1, 9, 2, 3, 8, 1, 1, 1, 1, 1])
    found = longest.reorder(made, 2)
    assert (found["samples"], found["length"], found["shortest"], found["looked_at"]) == (2, 9, 1, 10)
    assert order(made) == [[1, 4], [1, 4], [4, 5], [6, 7], [8, 9]]
    assert order(made) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], "the second epoch is the loader's own"
    sampler = made.batch_sampler.batch_sampler.sampler
    assert len(sampler) == 10 and sampler.epoch == 3


def test_samples_of_one_length_stay_in_their_order() -> None:
    made = loader([4, 4, 4, 4])
    assert longest.reorder(made, 2)["shortest"] == 4 and order(made) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("sample", "length"),
    [
        ({"input_ids": [1, 2], "labels": [1, 2]}, 2),
        ({"prompt_ids": [1], "chosen_ids": [1, 2], "rejected_ids": [1, 2, 3]}, 6),
        ({"text": "abcd", "number": 5}, 4),
        ({"pixels": [1.0]}, 0),
        ((1, 2), 0),
    ],
)
def test_a_sample_is_as_long_as_its_tokens_or_its_text(sample: Any, length: int) -> None:
    assert longest.length_of(sample) == length


def test_a_large_dataset_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longest, "MOST_SAMPLES", 5)
    samples = [{"input_ids": [0] * at} for at in range(100)]
    found = longest.lengths_of(samples)
    assert len(found) == 5 and all(length == at for at, length in found.items())
    monkeypatch.setattr(longest, "MOST_S", -1.0)
    assert len(longest.lengths_of(samples)) == 1


def trainer(made: Any, **args: Any) -> SimpleNamespace:
    own = {"train_batch_size": 2, "gradient_accumulation_steps": 2, "world_size": 1, **args}
    passes: list[Any] = []
    return SimpleNamespace(
        args=SimpleNamespace(**own),
        passes=passes,
        get_train_dataloader=lambda: made,
        training_step=lambda model, inputs: passes.append(inputs),
    )


def reported(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capfd.readouterr().err.removeprefix(PREFIX))
    return found


def test_a_trainer_tells_what_its_first_updates_have(capfd: pytest.CaptureFixture[str]) -> None:
    made = loader([1, 2, 3, 4, 5, 6, 7, 8])
    watched = trainer(made)
    longest.install(watched)
    assert watched.get_train_dataloader() is made and order(made)[:4] == [[7, 6], [5, 4]] * 2
    event = reported(capfd)
    assert (event["event"], event["samples"], event["updates"]) == ("longest", 4, 2)


def test_a_stream_is_lengthened_where_its_samples_are_cut_at_a_length(capfd: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    stream = SimpleNamespace(dataset=iter(()), batch_sampler=None)
    longest.install(plain := trainer(stream))
    plain.get_train_dataloader()
    assert reported(capfd)["problem"]
    longest.install(cut := trainer(stream, max_length=5))
    cut.get_train_dataloader()
    assert reported(capfd)["length"] == 5
    batch = {"input_ids": torch.tensor([[1, 2], [3, 4]]), "labels": torch.tensor([[1, 2], [3, 4]]), "count": 2}
    for _ in range(5):
        cut.training_step(None, batch)
    assert [list(each["input_ids"].shape) for each in cut.passes] == [[2, 5]] * 4 + [[2, 2]]
    assert cut.passes[0]["labels"].tolist() == [[1, 2, 1, 2, 1], [3, 4, 3, 4, 3]] and cut.passes[0]["count"] == 2


def test_the_updates_with_the_longest_samples_are_no_speed() -> None:
    preset = bound()
    event = {"event": "longest", "updates": 2, "samples": 8, "length": 64, "shortest": 3, "looked_at": 100, "of": 100}
    log = run().replace('"seconds": 100.0', '"seconds": 80.0')  # the second takes 21 s in place of 1 s
    own = {"parameters": preset.own_point("")}
    assert preset.evaluator().read_run(log).timed[0][0] == 21.0  # type: ignore[attr-defined]
    log += f"{PREFIX}{json.dumps(event)}\n"
    read = preset.evaluator().read_run(log)  # type: ignore[attr-defined]
    assert [step_s for step_s, _ in read.timed] == [1.0] * 5
    extra = preset.evaluator().measure(log, own).extra
    assert extra["longest_sample"] == 64 and extra[CONFIRMED_ON]
    same = {**event, "shortest": 64}
    extra = preset.evaluator().measure(f"{run()}{PREFIX}{json.dumps(same)}\n", own).extra
    assert CONFIRMED_ON not in extra, "all are of one length"


def test_what_runs_out_of_memory_on_the_longest_samples_has_a_smaller_point() -> None:
    preset = bound(mbs_max=8)
    point = {"mbs": 4, "checkpointing": False}
    confirming = preset.confirming(point)
    assert confirming.smaller == {"mbs": 2, "checkpointing": False}
    assert confirming.files.keys() - preset.files(point).keys() == {"hook/zenithtune_hooks/longest.py"}
    assert preset.confirming({"mbs": 1, "checkpointing": False}).smaller == {"mbs": 1, "checkpointing": True}
    assert preset.confirming({"mbs": 1, "checkpointing": True}).smaller is None
    preset.observe(Trial(params=point, outcome=Outcome.OOM, identity="x", rerun_of=1))
    assert preset.prune(point) and not preset.prune({**point, "checkpointing": True})
    assert not preset.prune({**point, "mbs": 2})

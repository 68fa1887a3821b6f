"""The hook's parts in process, with small stand-ins for the classes of transformers."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from zenith_tune.hooks.orders import Orders
from zenith_tune.hooks.process import PREFIX
from zenith_tune.hooks.trainer import Arguments, TokenCount, TrainerWatch

NO_ORDERS = Orders("no such trial/hook")
CALLBACKS = SimpleNamespace(TrainerCallback=object)
VALUES = {"per_device_train_batch_size": 2, "save_strategy": "no", "of_a_later_release": 1}


@pytest.fixture
def classes() -> SimpleNamespace:
    """Return classes as transformers and TRL have them, with the values of the hook."""

    @dataclass
    class TrainingArguments:
        output_dir: str | None = None
        per_device_train_batch_size: int = 8
        save_strategy: str = "steps"
        seen: list[Any] = field(default_factory=list)

        def __post_init__(self) -> None:
            self.seen.append((self.per_device_train_batch_size, self.save_strategy))

    @dataclass
    class Config(TrainingArguments):
        beta: float = 0.1

    class OwnInit(TrainingArguments):
        def __init__(self, folder: str) -> None:
            super().__init__(folder, per_device_train_batch_size=64)

    Arguments(VALUES).install(SimpleNamespace(TrainingArguments=TrainingArguments))
    return SimpleNamespace(base=TrainingArguments, config=Config, own_init=OwnInit)


def test_fields_are_set_before_anything_reads_them(classes: SimpleNamespace) -> None:
    args = classes.base("out", 4, save_strategy="epoch")
    assert (args.output_dir, args.per_device_train_batch_size, args.save_strategy) == ("out", 2, "no")
    assert args.seen == [(2, "no")]


def test_classes_that_are_made_of_it_have_them_too(classes: SimpleNamespace) -> None:
    for args in (classes.config(beta=0.5, per_device_train_batch_size=16), classes.own_init("out"), classes.base()):
        assert (args.per_device_train_batch_size, args.save_strategy) == (2, "no")
        assert args.seen == [(2, "no")]
    assert classes.config(beta=0.5).beta == 0.5 and classes.own_init("out").output_dir == "out"


def test_copies_stay_what_they_were_copied_from(classes: SimpleNamespace) -> None:
    args = classes.config(beta=0.5)
    args.per_device_train_batch_size = 7
    assert copy.copy(args).per_device_train_batch_size == 7
    assert replace(args, beta=0.7).beta == 0.7


def test_an_argument_that_nobody_knows_is_refused_as_ever(classes: SimpleNamespace) -> None:
    with pytest.raises(TypeError):
        classes.config(nonsense=1)


class Trainer:
    """What a Trainer has of what the hook looks at."""

    def __init__(self, args: Any) -> None:
        self.args, self.model, self.trained = args, SimpleNamespace(is_gradient_checkpointing=True), 0
        self.callback_handler = SimpleNamespace(callbacks=[EarlyStoppingCallback(), object()])

    def remove_callback(self, callback: Any) -> None:
        self.callback_handler.callbacks.remove(callback)

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        assert resume_from_checkpoint is None
        self.trained += 1


class EarlyStoppingCallback:
    pass


def test_a_trainer_says_what_it_was_made_with_and_ends_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    watch = TrainerWatch(
        ["per_device_train_batch_size", "optim", "not_there"], ["json", "no_such_package"], 3, NO_ORDERS
    )
    kind = type("Trainer", (Trainer,), {})
    watch.install_trainer(SimpleNamespace(Trainer=kind))
    args = SimpleNamespace(per_device_train_batch_size=4, optim=SimpleNamespace(value="adamw"), world_size=1, n_gpu=1)
    trainer = kind(args)
    with pytest.raises(SystemExit) as ended:
        trainer.train("checkpoint-1000")
    assert ended.value.code == 0 and trainer.trained == 1
    assert [type(each) for each in trainer.callback_handler.callbacks] == [object]
    event = json.loads(capfd.readouterr().err.removeprefix(PREFIX))
    assert event["arguments"] == {"per_device_train_batch_size": 4, "optim": "adamw"}
    assert (event["world"], event["packages"], event["checkpointing"]) == (1, ["json"], True)


def test_a_trial_ends_after_enough_updates_for_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("zenith_tune.hooks.trainer.time.monotonic", lambda: now[0])
    ended_at = []
    for seconds, least_s in ((1.0, 10.0), (4.0, 10.0), (1.0, 0.0)):
        callback = TrainerWatch([], [], 3, NO_ORDERS).end_in_time(None, CALLBACKS, least_s)
        control = SimpleNamespace(should_training_stop=False)
        for step in range(1, 100):
            now[0] += seconds
            callback.on_step_end(None, SimpleNamespace(global_step=step), control)
            if control.should_training_stop:
                ended_at.append(step)
                break
    assert ended_at == [11, 4, 3]


def test_the_parser_tells_where_arguments_come_from() -> None:
    class HfArgumentParser:
        dataclass_types = (SimpleNamespace(per_device_train_batch_size=8),)

        def parse_args_into_dataclasses(self) -> str:
            return "parsed"

        def parse_json_file(self, path: str) -> str:
            return path

        parse_yaml_file = parse_json_file

    watch = TrainerWatch([], [], 3, NO_ORDERS)
    watch.install_parser(SimpleNamespace(HfArgumentParser=HfArgumentParser))
    parser = HfArgumentParser()
    assert parser.parse_args_into_dataclasses() == "parsed" and watch.read_from == "options"
    assert parser.parse_yaml_file("a") == "a" and watch.read_from == "file"


def test_a_program_that_trains_without_a_trainer_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    watch = TrainerWatch([], [], 2, NO_ORDERS)
    for _ in range(2):
        watch.stepped()
    with pytest.raises(SystemExit):
        watch.stepped()
    assert json.loads(capfd.readouterr().err.removeprefix(PREFIX)) == {"event": "no_trainer"}
    watch = TrainerWatch([], [], 0, NO_ORDERS)
    watch.is_training = True
    watch.stepped()


def test_tokens_that_are_no_padding_are_counted() -> None:
    torch = pytest.importorskip("torch")
    count, passes = TokenCount(), []
    trainer = SimpleNamespace(training_step=lambda model, inputs, num: passes.append(num))
    count.install(trainer)
    padded = {"input_ids": torch.ones(2, 3), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
    trainer.training_step(None, padded, 8)
    trainer.training_step(None, {"input_ids": torch.ones(1, 5)}, 8)
    assert passes == [8, 8] and count.taken() == {"tokens": 9} and count.taken() == {}
    for other in ({"input_ids": torch.ones(2, 3)}, {"pixels": torch.ones(2, 3)}):
        trainer.training_step(None, padded, 8)
        trainer.training_step(None, other, 8)
        assert count.taken() == {}, "what a mask does not tell is not counted"

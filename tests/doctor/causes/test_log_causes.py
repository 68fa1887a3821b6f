"""What a log shows to be wrong: each cause with its rank, its figures, its evidence and what to do."""

from __future__ import annotations

import pytest

from tests.doctor.causes import logs
from zenith_tune.doctor.causes.cause import Cause, CauseKind
from zenith_tune.doctor.logged_run import log_causes

HEALTHY_END = (
    "[after training is done] datetime: 2026-11-01 10:10:00\n"
    "[W1101 TCPStore.cpp:115] recvValue failed on SocketImpl: Connection closed by peer\n"
)


def only(log: str) -> Cause:
    (cause,) = log_causes(log)
    assert cause.evidence and cause.actions
    assert all(line.rstrip("…") in " ".join(log.split()) for line in cause.evidence)
    return cause


def test_a_collective_that_timed_out_names_the_rank_that_did_not_come() -> None:
    cause = only(logs.steps() + "".join(logs.WATCHDOG.format(rank, 880) for rank in range(8) if rank != 3))
    assert (cause.kind, cause.rank, cause.is_fatal) == (CauseKind.TIMEOUT, 3, True)
    assert cause.figures["collective"] == "ALLREDUCE" and cause.figures["timeout_s"] == 600
    assert cause.figures["waiting_ranks"] == [0, 1, 2, 4, 5, 6, 7]


def test_a_rank_that_waits_in_an_earlier_collective_is_the_one_behind() -> None:
    waits = "".join(logs.WATCHDOG.format(rank, 877 if rank == 6 else 880) for rank in range(8))
    cause = only(logs.steps() + waits)
    assert cause.rank == 6 and cause.figures["sequence"] == 877


def test_a_time_out_before_the_last_steps_did_not_end_the_run() -> None:
    assert log_causes(logs.WATCHDOG.format(0, 1) + logs.steps()) == ()


def test_a_check_that_finds_nan_is_one_cause_with_its_rank_and_iteration() -> None:
    cause = only(logs.steps() + logs.NAN_ASSERTION)
    assert (cause.kind, cause.rank, cause.figures["iteration"]) == (CauseKind.NOT_FINITE, 5, 7)


def test_losses_that_are_nan_are_named_with_their_first_iteration() -> None:
    cause = only(logs.steps(count=4) + logs.steps(first=5, count=4, loss="NAN"))
    assert (cause.kind, cause.figures["iteration"]) == (CauseKind.NOT_FINITE, 5)


def test_gradients_of_fp16_that_were_infinite_at_the_start_are_no_cause() -> None:
    first = logs.steps(count=1).replace("grad norm: 1.0", "grad norm: inf")
    assert log_causes(first + logs.steps(first=2)) == ()


def test_a_straggler_is_named_with_how_far_it_is_behind() -> None:
    reports = logs.STRAGGLER.format(0, 150.0, 5, 2.0) * 3 + logs.STRAGGLER.format(0, 104.0, 2, 2.0)
    cause = only(logs.steps() + reports)
    assert (cause.kind, cause.rank, cause.is_fatal) == (CauseKind.STRAGGLER, 5, False)
    assert cause.figures["behind"] == pytest.approx(0.5) and cause.figures["num_slowest"] == 3


@pytest.mark.parametrize("slowest", [[(104.0, 5)] * 4, [(150.0, rank) for rank in range(1, 6)]], ids=["near", "any"])
def test_ranks_that_differ_a_little_or_by_turns_are_no_stragglers(slowest: list[tuple[float, int]]) -> None:
    assert log_causes(logs.steps() + "".join(logs.STRAGGLER.format(0, time, rank, 2.0) for time, rank in slowest)) == ()


def test_an_allocation_that_failed_has_the_allocators_own_hint() -> None:
    cause = only(logs.steps() + logs.OUT_OF_MEMORY)
    assert (cause.kind, cause.rank) == (CauseKind.OUT_OF_MEMORY, 2)
    assert cause.figures["unallocated_bytes"] == pytest.approx(9.5 * 2**30)
    assert "expandable_segments" in cause.actions[0]
    packed = only(logs.OUT_OF_MEMORY.replace("9.50 GiB is reserved", "90.50 MiB is reserved"))
    assert not any("expandable_segments" in action for action in packed.actions)


@pytest.mark.parametrize("before", ["", logs.steps()], ids=["at-start", "trained"])
@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (CauseKind.NOT_FOUND, "bash: line 1: torchrunn: command not found\n"),
        (CauseKind.NOT_FOUND, "train.sh: line 12: torchrunn: command not found\n"),
        (CauseKind.KILLED, "/bin/bash: line 1:  1234 Killed                  python train.py\n"),
        (CauseKind.CRASH, "Fatal Python error: Segmentation fault\n\nSegmentation fault (core dumped)\n"),
        (CauseKind.CRASH, "Segmentation fault (core dumped)\n"),
        (CauseKind.CRASH, "[rank4]: RuntimeError: CUDA error: an illegal memory access was encountered\n"),
        (CauseKind.CRASH, "RuntimeError: CUDA error: an illegal memory access was encountered\n"),
    ],
)
def test_a_death_without_a_traceback_is_found(kind: CauseKind, end: str, before: str) -> None:
    assert only(before + end).kind is kind


@pytest.mark.parametrize(
    "line",
    [
        "train.sh: line 3: nvidia-smi: command not found\n",
        "sent 12 Killed requests\n",
        "[rank4]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
    ],
)
def test_what_stands_before_the_steps_did_not_end_the_run(line: str) -> None:
    assert log_causes(line + logs.steps()) == ()


def test_a_gpu_with_memory_errors_is_to_be_taken_out() -> None:
    ecc = only(logs.steps() + "[rank4]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    other = only(logs.steps() + "[rank4]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
    assert ecc.rank == other.rank == 4
    assert "drain" in ecc.actions[0] and not any("drain" in action for action in other.actions)


def test_a_rank_is_spoken_of_where_one_is_known() -> None:
    assert only(logs.CRASH).rank is None and not any("rank" in action for action in only(logs.CRASH).actions)


def test_the_trainers_log_gets_no_options_of_megatron() -> None:
    lost = "{'loss': 'nan', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.01'}\n" * 3
    waits = "".join(logs.WATCHDOG.format(rank, 880) for rank in range(8) if rank != 3)
    for log in (lost, lost.replace("nan", "1.5") + waits):
        assert not any(" --" in action or "Megatron" in action for action in only(log).actions)


def test_an_allocation_that_failed_is_quoted_by_its_exception_and_not_by_the_source() -> None:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB"
    source = f'    if mem > 70: raise RuntimeError("{message}")\n'
    log = f'Traceback (most recent call last):\n  File "own.py", line 9, in <module>\n{source}RuntimeError: {message}\n'
    assert only(log).evidence[0].startswith("RuntimeError: ")


def test_a_plain_traceback_is_a_crash_with_the_line_that_raised() -> None:
    cause = only(logs.CRASH)
    assert cause.kind is CauseKind.CRASH and "IndexError" in cause.finding
    assert any("model.py" in line for line in cause.evidence)
    assert only(logs.TRAINER + logs.CRASH).kind is CauseKind.CRASH


def test_an_option_that_was_refused_is_a_matter_of_configuration() -> None:
    cause = only(logs.REFUSED)
    assert (cause.kind, cause.rank) == (CauseKind.CONFIGURATION, 0)


def test_a_job_that_the_scheduler_ended_was_killed() -> None:
    line = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-01T10:00:00 DUE TO TIME LIMIT ***\n"
    assert only(logs.steps() + line).kind is CauseKind.KILLED


@pytest.mark.parametrize(
    "log",
    [
        logs.steps(2.0) + logs.TIMERS.format(900.0) * 3,
        logs.steps(2.0) + logs.STRAGGLER.format(0, 104.0, 5, 900.0) * 3,
        "".join(logs.STEP.format(n, 6000.0 if n % 5 == 0 else 2000.0, "2.0") for n in range(1, 31)),
    ],
    ids=["timers", "report", "spread"],
)
def test_iterations_that_wait_for_data_are_named_with_their_share(log: str) -> None:
    cause = only(log)
    assert (cause.kind, cause.is_fatal) == (CauseKind.DATA_STALL, False)
    share = cause.figures["share"]
    assert isinstance(share, float) and 0.25 < share < 0.5


@pytest.mark.parametrize(
    "log",
    [
        logs.steps() + HEALTHY_END,
        logs.TRAINER,
        logs.TITAN,
        logs.BRIDGE,
        logs.steps() + logs.TIMERS.format(9),
    ],
    ids=["end", "trainer", "titan", "bridge", "timers"],
)
def test_a_healthy_log_shows_no_cause(log: str) -> None:
    assert log_causes(log) == ()


@pytest.mark.parametrize("log", [logs.TRAINER + "{'loss': 'nan', 'grad_norm': 'nan', 'epoch': '0.02'}\n",
                                 logs.TITAN.replace("8.12345", "nan")], ids=["trainer", "titan"])  # fmt: skip
def test_other_trainers_losses_that_are_nan_are_named(log: str) -> None:
    from zenith_tune.study.trial_log import without_escapes

    (cause,) = log_causes(without_escapes(log))
    assert cause.kind is CauseKind.NOT_FINITE and cause.evidence

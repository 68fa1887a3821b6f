"""The first failing rank's cause, in every form that launchers give to a log that many processes write."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.data_folder import measured_data
from zenith_tune.evaluators.failures.failures import Failure, FailureKind, classify, ending_lines
from zenith_tune.evaluators.failures.rank_errors import split_prefix
from zenith_tune.study.trial import Outcome
from zenith_tune.study.trial_log import TrialLog

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 3 has a total capacity of 79.1 GiB"
ABORT = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited"
CAUSE = "ValueError: broken sample"
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST, Timeout(ms)=600000)"
ITERATION = " iteration        1/     100 | elapsed time per iteration (ms): 500.0 | lm loss: 1.0E+00 |\n"

RANKED = {
    "torch": "[rank{}]: ",
    "torchrun --tee": "[default{}]:",
    "torchrun with a role": "[trainer{}]:",
    "number in brackets": "[{}]:",
    "srun --label": "{}: ",
    "srun --label of ten tasks": " {}: ",
    "Open MPI": "[1,{}]<stderr>:",
    "pdsh around torch": "node0: [rank{}]: ",
    "pdsh around srun": "gpu-h100-17.cluster.local: {}: ",
    "an address": "10.0.0.7: [default{}]:",
    "a clock": "[2026-11-15 01:11:41,123] [rank{}]: ",
    "Lightning": "[rank: {}] ",
    "a bare word": "rank{}: ",
}
ranked = pytest.mark.parametrize("mark", RANKED.values(), ids=RANKED)


def traced(error: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "train.py", line 3, in main', "    step()", error]


def marked(mark: str, lines: list[str], rank: int | None = None) -> str:
    return "".join(f"{mark if rank is None else mark.format(rank)}{line}\n" for line in lines)


def report(
    rank: int, exit_code: int, at: str = "01:11:41", mark: str = "", others: str = "  <NO_OTHER_FAILURES>"
) -> str:
    lines = ["=" * 60, "train.py FAILED", "-" * 60, "Failures:", *others.split("\n"), "-" * 60]
    lines += ["Root Cause (first observed failure):", "[0]:", f"  time      : 2026-11-15_{at}", "  host      : node0"]
    lines += [f"  rank      : {rank} (local_rank: 0)", f"  exitcode  : {exit_code} (pid: 1041)", "  error_file: <N/A>"]
    return marked(mark, [*lines, "  traceback : To enable traceback see: https://pytorch.org", "=" * 60])


@pytest.mark.parametrize("mark", RANKED.values(), ids=RANKED)
def test_what_is_shown_of_a_failed_log_is_the_traceback_of_the_rank_that_failed(tmp_path: Path, mark: str) -> None:
    others = marked(mark, traced("ConnectionResetError: Connection reset by peer"), 0)
    log = others + marked(mark, traced(CAUSE), 3) + marked("", traced("ChildFailedError:")) + report(3, 1)
    path = tmp_path / "log.txt"
    path.write_text(log)
    shown = ending_lines(path, failure(log).message, 20)
    assert [len(shown), shown[-1].endswith(CAUSE)] == [4, True] and "Traceback" in shown[0]
    assert [line.endswith(CAUSE) for line in ending_lines(path, failure(log).message, 1)] == [True]


TORCHRUN = "E1119 api.py:1002] failed (exitcode: {code}) local_rank: 3 (pid: 1041) of binary: python\n"
ACCELERATE = [
    "Traceback (most recent call last):",
    '  File "x/accelerate/commands/launch.py", line 9',
]
FOOTERS = {
    "torchrun": TORCHRUN.format(code=1) + marked("", traced("ChildFailedError:")) + report(3, 1),
    "torchrun after a signal": "Sending process 7 closing signal SIGTERM\n" + TORCHRUN.format(code=1),
    "accelerate": marked("", [*ACCELERATE, "subprocess.CalledProcessError: Command '['python']' returned 1."]),
    "deepspeed": "[ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = 1\n",
}


@pytest.mark.parametrize("footer", FOOTERS.values(), ids=FOOTERS)
def test_a_rank_that_ends_without_a_traceback_is_quoted_and_not_its_launcher(tmp_path: Path, footer: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text("rank 0 waits\nkey model.layers is missing\n" + footer)
    cause = failure(path.read_text()).message
    assert cause.endswith("key model.layers is missing")
    assert ending_lines(path, cause, 20) == ["rank 0 waits", "key model.layers is missing"]


def test_a_launcher_whose_ranks_printed_nothing_is_shown_itself(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(TORCHRUN.format(code=1))
    assert ending_lines(path, "exit code 1", 20) == [TORCHRUN.format(code=1).strip()]


def test_a_rank_that_crashed_is_the_cause_and_not_the_connection_that_others_lost_to_it() -> None:
    lost = "Gloo connectFullMesh failed with Connection closed by peer [127.0.0.1]:56485\n"
    assert failure(lost + TORCHRUN.format(code=-11) + report(3, -11)).kind is FailureKind.KILLED
    assert failure(lost + TORCHRUN.format(code=-6) + report(3, -6)).kind is FailureKind.COMMUNICATION


@ranked
def test_a_program_that_asks_for_input_is_named_with_its_question(mark: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 3, in main']
    found = failure(marked(mark, [*lines, '    name = input("name: ")', "EOFError: EOF when reading a line"], 3))
    assert found.kind is FailureKind.CONFIGURATION
    assert found.message.startswith('train.py asks for input (name = input("name: "))')


def test_what_is_shown_of_a_log_without_the_cause_is_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(marked("", traced(CAUSE)) + "slurmstepd: error: CANCELLED\n")
    for cause in (None, "killed by SIGTERM"):
        assert ending_lines(path, cause, 1) == ["slurmstepd: error: CANCELLED"]


def failure(log: str, exit_code: int | None = 1) -> Failure:
    found = classify(log, exit_code)
    assert found is not None
    return found


@ranked
def test_the_rank_of_an_exception_is_read(mark: str) -> None:
    log = marked(mark, [ITERATION.strip()], 0) + marked(mark, traced(CAUSE), 3)
    assert failure(log).message == f"rank 3: {CAUSE}"


@ranked
def test_aborts_of_others_are_not_the_cause(mark: str) -> None:
    aborts = "".join(marked(mark, traced(ABORT), rank) for rank in (0, 1))
    late = marked(mark, traced(ABORT), 2)
    assert failure(aborts + marked(mark, traced(CAUSE), 3) + late).message == f"rank 3: {CAUSE}"


@ranked
def test_tracebacks_that_mix_line_by_line_are_kept_apart(mark: str) -> None:
    first = marked(mark, traced("KeyError: 'odd'"), 7).splitlines()
    second = marked(mark, traced(CAUSE), 3).splitlines()
    log = "".join(f"{line}\n" for pair in zip(first, second, strict=True) for line in pair)
    assert failure(log).message == "rank 7: KeyError: 'odd'"
    assert failure(log + report(3, 1)).message == f"rank 3: {CAUSE}"


@ranked
def test_out_of_memory_wins_over_the_aborts_and_timeouts_that_it_causes(mark: str) -> None:
    log = marked(mark, [WATCHDOG, *traced(ABORT)], 0) + marked(mark, traced(OOM), 3) + marked(mark, traced(ABORT), 1)
    found = failure(log + report(0, -6))
    assert (found.outcome, found.message) == (Outcome.OOM, f"rank 3: {OOM}")


@ranked
def test_a_chain_of_exceptions_is_followed(mark: str) -> None:
    chain = [*traced("KeyError: 'x'"), "", "During handling of the above exception, another exception occurred:", ""]
    assert failure(marked(mark, [*chain, *traced(CAUSE)], 3)).message == f"rank 3: {CAUSE}"


@pytest.mark.parametrize(
    "line",
    [
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
@ranked
def test_memory_that_ran_out_in_another_dress_is_known(mark: str, line: str) -> None:
    found = failure(marked(mark, traced(ABORT), 0) + marked(mark, line.split("\n"), 3))
    assert found.outcome is Outcome.OOM
    assert found.message.startswith("rank 3: ")


@pytest.mark.parametrize("host", ["node0", "ip-10-0-0-1", "h100-07.dc2.example.org"])
def test_a_host_is_no_rank_but_keeps_processes_apart(host: str) -> None:
    other = marked("node9: ", traced(ABORT)).splitlines()
    mine = marked(f"{host}: ", traced(CAUSE)).splitlines()
    log = "".join(f"{line}\n" for pair in zip(other, mine, strict=True) for line in pair)
    assert failure(log).message == CAUSE
    assert split_prefix(f"{host}:   File") == (None, "  File")


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: 3 is odd",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "train2.py: error: unrecognized arguments: --x",
        "t5: error: argument --tp: expected one argument",
        "srun: error: node17: task 3: Killed",
        "    3: 'a source line, deep inside',"[4:].rjust(40),
        "usage: train.py [-h]",
    ],
)
def test_what_is_no_mark_stays_in_the_line(line: str) -> None:
    assert split_prefix(line) == (None, line)


def test_a_refused_option_of_a_program_with_a_digit_is_a_configuration_error() -> None:
    found = failure("usage: train2.py [-h]\ntrain2.py: error: unrecognized arguments: --tp 4\n", 2)
    assert (found.kind, found.message) == (
        FailureKind.CONFIGURATION,
        "train2.py: error: unrecognized arguments: --tp 4",
    )


@pytest.mark.parametrize("marks", [("", ""), ("node1: ", "node0: "), ("9: ", "0: "), ("[default9]:", "[default0]:")])
def test_of_several_nodes_reports_the_earliest_names_the_root_cause(marks: tuple[str, str]) -> None:
    errors = marked("[rank9]: ", traced("ValueError: late")) + marked("[rank3]: ", traced("ValueError: first"))
    late, early = report(9, 1, "01:11:45", marks[0]), report(3, 1, "01:11:41", marks[1])
    assert failure(errors + late + early).message == "rank 3: ValueError: first"
    assert failure(errors + early + late).message == "rank 3: ValueError: first"


def test_a_rank_that_was_killed_first_is_out_of_host_memory_whatever_the_other_nodes_saw() -> None:
    log = report(9, -15, "01:11:45", "1: ") + report(3, -9, "01:11:41", "0: ")
    found = failure(ITERATION + log)
    assert (found.outcome, found.kind) == (Outcome.OOM, FailureKind.HOST_OUT_OF_MEMORY)
    assert found.message.startswith("rank 3: ") and "SIGKILL" in found.message


def test_survivors_killed_after_the_root_cause_are_not_out_of_host_memory() -> None:
    others = "[1]:\n  time      : 2026-11-15_01:11:59\n  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 5)"
    found = failure(ITERATION + report(3, -6, others=others) + marked("[rank3]: ", [WATCHDOG]))
    assert (found.kind, found.message) == (FailureKind.COMMUNICATION, f"rank 3: {WATCHDOG}")


def test_a_host_that_is_out_of_memory_by_slurms_word_is_so() -> None:
    found = failure("srun: error: node17: task 3: Out Of Memory\nsrun: Terminating StepId=1.0\n")
    assert found.kind is FailureKind.HOST_OUT_OF_MEMORY


def test_the_first_watchdog_is_the_cause_where_nothing_else_failed() -> None:
    log = "".join(
        f"[rank{rank}]:[E1115 01:11:41 ProcessGroupNCCL.cpp:616] [Rank {rank}] {WATCHDOG}\n" for rank in (5, 2)
    )
    found = failure(ITERATION + log + report(5, -6))
    assert (found.kind, found.message) == (FailureKind.COMMUNICATION, f"rank 5: {WATCHDOG}")
    found = failure(ITERATION + log + marked("[rank2]: ", traced(CAUSE)) + report(5, -6))
    assert (found.kind, found.message) == (FailureKind.CRASH, f"rank 2: {CAUSE}")


def test_a_signal_that_torchrun_saw_has_its_rank_and_no_line_of_its_report() -> None:
    found = failure("loading weights\nlost device\n" + report(3, -11, mark="node0: ").replace("train.py FAILED", "---"))
    assert found.kind is FailureKind.KILLED
    assert re.fullmatch(r"rank 3: .*\b11 \(SIGSEGV\): lost device", found.message)


def test_ms_swifts_refusal_of_an_option_is_a_configuration_error() -> None:
    error = "ValueError: remaining_argv: ['--recompute_nothing', '1']"
    found = failure(marked("[rank{}]: ", traced(error), 0) + marked("[rank{}]: ", traced(error), 1) + report(0, 1))
    assert (found.kind, found.message) == (FailureKind.CONFIGURATION, f"rank 0: {error}")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("megatron_oom", FailureKind.OUT_OF_MEMORY, "torch.OutOfMemoryError: CUDA out of memory"),
        ("megatron_config_error", FailureKind.CONFIGURATION, "AssertionError"),
        ("megatron_batch_error", FailureKind.CONFIGURATION, "AssertionError"),
    ],
)
@pytest.mark.parametrize("mark", ["", "node0: ", "0: ", "[default0]:", "[1,0]<stderr>:"])
def test_real_logs_are_read_behind_any_launcher(name: str, kind: FailureKind, message: str, mark: str) -> None:
    log = TrialLog(measured_data() / "logs" / f"{name}.log").text()
    plain, behind = failure(log), failure(marked(mark, log.split("\n")))
    assert (behind.kind, plain.kind) == (kind, kind)
    assert message in behind.message
    assert behind.message == plain.message


@pytest.mark.parametrize(
    "piece", ["a1: ", "[3]:", "  3: ", "1-", "a" * 61 + "1: ", "Root Cause (first observed failure)\n"]
)
def test_marks_without_end_are_judged_in_a_moment(piece: str) -> None:
    log = ("Traceback (most recent call last):\n" + piece * 2_000 + "\n") * (2**22 // (2_000 * len(piece)) or 1)
    started = time.process_time()
    failure(log)
    assert time.process_time() - started < 30


def test_a_field_that_pydantic_refuses_is_named() -> None:
    log = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 3, in <module>\n'
        "[rank0]: something else\n"
        "[rank1]: pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\n"
        "[rank1]: no_such_key\n"
        "[rank0]: more of it\n"
        "[rank1]:   Extra inputs are not permitted [type=extra_forbidden, input_value=1, input_type=int]\n"
    )
    failure = classify(log, 1)
    assert failure is not None
    refused = "1 validation error for DeepSpeedZeroConfig: no_such_key: Extra inputs are not permitted"
    assert failure.message == f"rank 1: pydantic_core._pydantic_core.ValidationError: {refused}"

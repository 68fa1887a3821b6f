from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from tests.data_folder import measured_data
from tests.thoroughness import few_quick
from zenith_tune.errors import EveryRunFailsAlike, SystemFaultError
from zenith_tune.evaluators.failures.failures import (
    FailedAllocation,
    Failure,
    FailureKind,
    classify,
    hidden_failure,
    names_unknown_option,
    refuse_hopeless,
    shows_crash,
)
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.trial_log import TrialLog

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 3 has a total capacity of 79.1 GiB"
ITERATION = " iteration        1/     100 | elapsed time per iteration (ms): 500.0 | lm loss: 1.0E+00 |\n"


def traceback(error: str, prefix: str = "", source: str = "return f(x)") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in main',
        f"    {source}",
        "    ^^^^^^",
        error,
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


def nccl_abort(rank: int) -> str:
    where = "ProcessGroupNCCL.cpp:1182] [Rank {0}] NCCL watchdog thread terminated with exception: NCCL error"
    error = "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, remote process exited"
    return f"[rank{rank}]:[E1115 {where.format(rank)}\n" + traceback(error, f"[rank{rank}]: ")


def torchrun_report(rank: int, exit_code: int = 1, detail: str = "To enable traceback see: https://pytorch.org") -> str:
    return (
        f"E1115 01:11 api.py:986] failed (exitcode: {exit_code}) local_rank: {rank} (pid: 1041) of binary: python\n"
        + traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
        + "=" * 60
        + "\ntrain.py FAILED\n"
        + "-" * 60
        + "\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n"
        + f"  time      : 2026-11-15_01:11:41\n  host      : localhost\n  rank      : {rank} (local_rank: {rank})\n"
        + f"  exitcode  : {exit_code} (pid: 1041)\n  error_file: <N/A>\n  traceback : {detail}\n"
        + "=" * 60
        + "\n"
    )


def failure(log: str, exit_code: int | None = 1, timed_out: bool = False) -> Failure:
    found = classify(log, exit_code, timed_out=timed_out)
    assert found is not None
    return found


def test_an_exit_code_of_zero_is_no_failure_whatever_the_log_says() -> None:
    for line in ("no out of memory so far", "0 errors so far", "Error rate: 0.1", OOM, traceback("ValueError: caught")):
        assert classify(line, 0) is None


@pytest.mark.parametrize(
    "line",
    [
        OOM,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 31.74 GiB total capacity;",
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "RuntimeError: CUDA out of memory.",
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        "2026-11-15 01:11:41 [rank3]: torch.OutOfMemoryError: HIP out of memory.",
        "CUDA out of memory. (tp=8 ep=1 mbs=16 activation=full)",
        "CUDA out of memory",
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[default3]:", "3: "])
def test_every_form_of_running_out_of_memory_is_known(line: str, prefix: str) -> None:
    log = "".join(f"{prefix}{part}\n" for part in ["loading", *line.split("\n")])
    found = failure(log)
    assert (found.outcome, found.kind) == (Outcome.OOM, FailureKind.OUT_OF_MEMORY)
    assert found.message.startswith("rank 3: ") or not (prefix or "[rank3]" in line)


@pytest.mark.parametrize(
    "line",
    [
        "no out of memory so far",
        "Tip: lower mbs to avoid running out of memory",
        "OutOfMemory",
        "CUDA out of memory errors are avoided by a lower mbs",
        "0 times CUDA out of memory.",
    ],
)
def test_a_harmless_line_is_not_out_of_memory(line: str) -> None:
    assert failure(line + "\n").kind is FailureKind.CRASH


def test_out_of_memory_on_one_rank_wins_over_the_aborts_that_it_causes() -> None:
    log = nccl_abort(0) + nccl_abort(1) + traceback(OOM, "[rank3]: ") + nccl_abort(2) + torchrun_report(0, -6)
    found = failure(log)
    assert found.kind is FailureKind.OUT_OF_MEMORY
    assert found.message.startswith(f"rank 3: {OOM[:40]}")


def test_a_run_that_hung_after_out_of_memory_is_out_of_memory() -> None:
    assert failure(traceback(OOM, "[rank3]: "), None, timed_out=True).outcome is Outcome.OOM


def test_a_run_that_hung_without_is_timed_out_even_if_it_was_killed_or_ended_well() -> None:
    for exit_code in (None, -9, 137, 0):
        found = failure(ITERATION, exit_code, timed_out=True)
        assert (found.outcome, found.kind) == (Outcome.TIMEOUT, FailureKind.TIMEOUT)
        assert "iteration 1/ 100" in found.message
    empty = failure("", None, timed_out=True)
    assert empty.kind is FailureKind.TIMEOUT and "printed nothing" in empty.message


@pytest.mark.parametrize(
    ("log", "exit_code"),
    [
        ("training\n", 137),
        ("training\n", -9),
        (torchrun_report(3, -9, "Signal 9 (SIGKILL) received by PID 1041"), 1),
        ("W1115 worker 3: Signal 9 (SIGKILL) received by PID 1041\n", 1),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n", 1),
        ("srun: error: node17: task 3: Killed\n", 1),
        (traceback("MemoryError"), 1),
        (traceback("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.0 TiB"), 1),
        (traceback("RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. "), 1),
    ],
)
def test_a_process_killed_for_host_memory_is_out_of_memory(log: str, exit_code: int) -> None:
    found = failure(log, exit_code)
    assert (found.outcome, found.kind) == (Outcome.OOM, FailureKind.HOST_OUT_OF_MEMORY)


def test_survivors_that_torchrun_kills_are_not_out_of_host_memory() -> None:
    log = traceback("ValueError: broken sample", "[rank3]: ") + "  exitcode  : -9 (pid: 9)\n" + torchrun_report(3)
    assert failure(log).message == "rank 3: ValueError: broken sample"


def test_the_message_is_the_first_failing_ranks() -> None:
    log = nccl_abort(0) + traceback("ValueError: broken sample", "[rank3]: ") + nccl_abort(1) + torchrun_report(3)
    found = failure(ITERATION + log)
    assert (found.outcome, found.kind) == (Outcome.ERROR, FailureKind.CRASH)
    assert found.message == "rank 3: ValueError: broken sample"


def test_the_root_cause_of_torchrun_goes_before_the_order_of_lines() -> None:
    log = traceback("ValueError: second", "[rank1]: ") + traceback("ValueError: first", "[rank5]: ")
    assert failure(log).message == "rank 1: ValueError: second"
    assert failure(log + torchrun_report(5)).message == "rank 5: ValueError: first"


def test_the_root_cause_names_the_rank_of_an_unmarked_traceback() -> None:
    assert (
        failure(traceback("ZeroDivisionError: by zero") + torchrun_report(2)).message
        == "rank 2: ZeroDivisionError: by zero"
    )


def test_tracebacks_of_several_ranks_that_mix_line_by_line_are_kept_apart() -> None:
    first = traceback("ValueError: odd", "[rank0]: ").splitlines()
    second = traceback("KeyError: 'even'", "[rank1]: ").splitlines()
    log = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    assert failure(log).message == "rank 0: ValueError: odd"
    assert failure(log + "\n" + torchrun_report(1)).message == "rank 1: KeyError: 'even'"


def test_of_a_chain_of_exceptions_the_last_one_is_the_cause() -> None:
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    log = traceback("KeyError: 'optimizer'") + between + traceback("LookupError: no such checkpoint")
    assert failure(log).message == "LookupError: no such checkpoint"


def test_side_shows_are_not_the_cause() -> None:
    log = (
        traceback("ModuleNotFoundError: No module named 'apex'")
        + "Exception ignored in: <function Pool.__del__>\n"
        + traceback("AttributeError: 'NoneType'")
        + "Exception in thread Thread-7 (_pin_memory_loop):\n"
        + traceback("OSError: queue is gone")
        + traceback("ZeroDivisionError: by zero")
    )
    assert failure(log).message == "ZeroDivisionError: by zero"
    assert failure(traceback("ModuleNotFoundError: No module named 'apex'")).message.endswith("No module named 'apex'")


def test_a_coloured_traceback_is_read() -> None:
    log = traceback("\x1b[1;35mLookupError\x1b[0m: \x1b[35mlost\x1b[0m", "\x1b[32m[rank4]:\x1b[0m ")
    assert failure(log).message == "rank 4: LookupError: lost"


def test_a_traceback_behind_a_progress_bar_is_read() -> None:
    log = "10%|#   |\r20%|##  |\r" + traceback("AssertionError", "[rank2]: ", "assert x")
    assert failure(log).message == "rank 2: AssertionError: assert x"


def test_a_traceback_that_only_torchrun_shows_is_read() -> None:
    recorded = traceback("LookupError: lost").rstrip().replace("\n", "\n  ")
    assert failure(torchrun_report(6, 1, recorded)).message == "rank 6: LookupError: lost"


def test_an_exception_of_any_name_ends_a_traceback() -> None:
    error = "triton.runtime.errors.OutOfResources: out of resource: shared memory"
    assert failure(traceback(error, "[rank0]: ")).message == f"rank 0: {error}"


@pytest.mark.parametrize(
    "error",
    [
        "AssertionError: world size (8) is not divisible by total_model_size (total_model_size=3)",
        "RuntimeError: world_size (8) is not divisible by expert_tensor_model_pipeline_parallel size (16)",
        "ValueError: remaining_argv: ['--no-such-option']",
        "ValueError: Cannot use sequence parallelism without tensor parallelism",
        "ValueError: During training, performance may degrade if MoE and tensor parallelism are enabled without also",
        "TypeError: __init__() got an unexpected keyword argument 'tp'",
        "NotImplementedError: Context parallelism is only supported by TEDotProductAttention!",
        "AssertionError: anything at all",
    ],
)
def test_an_exception_about_options_before_training_is_a_configuration_error(error: str) -> None:
    found = failure(traceback(error) + torchrun_report(0))
    assert (found.outcome, found.kind) == (Outcome.ERROR, FailureKind.CONFIGURATION)
    assert found.message == f"rank 0: {error}"


@pytest.mark.parametrize(
    "error", ["RuntimeError: CUDA error: invalid argument", "ValueError: math domain error", "OSError: must be"]
)
def test_other_exceptions_before_training_are_crashes(error: str) -> None:
    assert failure(traceback(error)).kind is FailureKind.CRASH


def test_the_same_exception_in_training_is_a_crash_even_if_iterations_reach_the_log_late() -> None:
    error = traceback("AssertionError: batch must be divisible")
    assert failure(ITERATION + error).kind is FailureKind.CRASH
    assert failure(error + ITERATION).kind is FailureKind.CRASH


def test_an_assertion_without_words_is_quoted_from_its_source() -> None:
    log = traceback("AssertionError", "[rank1]: ", "assert args.num_layers % args.pp == 0")
    found = failure(log)
    assert found.kind is FailureKind.CONFIGURATION
    assert found.message == "rank 1: AssertionError: assert args.num_layers % args.pp == 0"


@pytest.mark.parametrize(
    "line",
    [
        "pretrain_gpt.py: error: unrecognized arguments: --tensor_model_parallel_size 2",
        "pretrain_gpt.py: error: argument --micro-batch-size: expected one argument",
        "train.py: error: the following arguments are required: --model",
        "Error: No such option: --tp",
    ],
)
def test_a_command_line_that_is_refused_is_a_configuration_error(line: str) -> None:
    found = failure(f"usage: pretrain_gpt.py [-h]\n{line}\n" + torchrun_report(0, 2), 1)
    assert (found.kind, found.message) == (FailureKind.CONFIGURATION, line)


def test_a_refused_command_line_in_the_midst_of_training_is_some_other_programs() -> None:
    assert failure(ITERATION + "plot.py: error: unrecognized arguments: --x\n").kind is FailureKind.CRASH


def test_a_compilers_error_is_not_about_the_command_line() -> None:
    assert failure("kernel.cu:12:3: error: argument").kind is FailureKind.CRASH


def test_a_collective_that_timed_out_is_a_communication_failure() -> None:
    watchdog = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST, Timeout(ms)=600000)"
    )
    log = (
        ITERATION
        + f"[rank1]:[E1115 ProcessGroupNCCL.cpp:537] [Rank 1] {watchdog}\n"
        + nccl_abort(1)
        + torchrun_report(1, -6)
    )
    found = failure(log)
    assert (found.outcome, found.kind) == (Outcome.ERROR, FailureKind.COMMUNICATION)
    assert found.message == f"rank 1: {watchdog}"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:5",
        "torch.distributed.DistNetworkError: The socket has failed to listen (errno: 98 - Address already in use).",
    ],
)
def test_a_lost_connection_is_a_communication_failure_if_there_is_nothing_else(error: str) -> None:
    assert failure(traceback(error, "[rank2]: ")).kind is FailureKind.COMMUNICATION
    assert (
        failure(traceback(error, "[rank2]: ") + traceback("OSError: lost", "[rank0]: ")).message
        == "rank 0: OSError: lost"
    )


def test_a_full_disk_is_recognised() -> None:
    full = "OSError: [Errno 28] No space left on device: '/checkpoints'"
    found = failure(traceback(full, "[rank0]: "))
    assert found.kind is FailureKind.DISK_FULL
    assert found.message == f"rank 0: {full}"


def test_a_command_that_is_not_there_is_recognised() -> None:
    missing = "bash: line 1: torchrn: command not found"
    found = failure(f"{missing}\n", 127)
    assert found.kind is FailureKind.NOT_FOUND
    assert found.message == f"exit code 127: {missing}"


@pytest.mark.parametrize(
    ("exit_code", "name"), [(-11, "signal 11 (SIGSEGV)"), (139, "signal 11 (SIGSEGV)"), (143, "signal 15 (SIGTERM)")]
)
def test_a_signal_is_named(exit_code: int, name: str) -> None:
    found = failure("step 1\n", exit_code)
    assert (found.kind, found.message) == (FailureKind.KILLED, f"killed by {name}: step 1")


def test_a_signal_that_only_torchrun_saw_is_named() -> None:
    assert failure("step 1\n" + torchrun_report(3, -11)).kind is FailureKind.KILLED


def test_an_exception_says_more_than_the_signal_after_it() -> None:
    assert failure(traceback("OSError: lost"), -6).message == "OSError: lost"


def test_what_nobody_recognises_is_quoted_by_its_last_informative_line() -> None:
    found = failure("ready\nfatal: no licence\nbye\n======\n\n", 3)
    assert found.kind is FailureKind.CRASH and found.message.endswith(" 3: fatal: no licence")
    assert failure("ready\nbye\n", 3).message == "exit code 3: bye"
    assert failure("", 3).message.endswith("empty")
    assert failure("bye", None).message.endswith(": bye")


def test_the_message_is_one_short_line_without_escapes() -> None:
    found = failure(traceback("ValueError: \x1b[31mred\x1b[0m\x07 " + "word " * 500))
    assert found.message.startswith("ValueError: red word word")
    assert len(found.message) <= 300
    assert found.message.isprintable()


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "oom",
            FailureKind.OUT_OF_MEMORY,
            "rank 0: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB",
        ),
        ("config_error", FailureKind.CONFIGURATION, "rank 0: AssertionError: recompute method is not yet supported"),
        (
            "batch_error",
            FailureKind.CONFIGURATION,
            "rank 0: AssertionError: eval_global_batch_size (8) must be divisible",
        ),
    ],
)
def test_real_logs_are_classified(name: str, kind: FailureKind, message: str) -> None:
    found = failure(TrialLog(measured_data() / "logs" / f"megatron_{name}.log").text())
    assert found.kind is kind
    assert found.message.startswith(message)


def test_the_log_of_a_run_that_went_well_is_no_failure() -> None:
    assert classify(TrialLog(measured_data() / "logs" / "megatron_steady60.log").text(), 0) is None


@pytest.mark.parametrize(
    "piece",
    few_quick(
        [
            "[[((]])) ",
            "Error: Exception: out of memory NCCL ",
            "Traceback (most recent call last):\n",
            "no out of memory so far: OutOfMemoryError\n",
            "\ufffd\x1b[31m\x00\x07 Error: Signal\r",
            "A.b.C",
        ],
        2,
    ),
)
def test_32_mib_of_hostile_text_are_judged_in_a_moment(piece: str) -> None:
    log = "Traceback (most recent call last):\n" + piece * (32 * 2**20 // len(piece))
    started = time.process_time()
    failure(log)
    # A second on an idle machine; the slack is for a busy one.
    assert time.process_time() - started < 20


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.mark.parametrize(
    ("log", "has_value", "outcome"),
    [
        (OUT_OF_MEMORY, False, Outcome.OOM),
        (ITERATION + OUT_OF_MEMORY, True, Outcome.OOM),
        (ITERATION + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", True, Outcome.ERROR),
        (OUT_OF_MEMORY + ITERATION, True, None),
        (ITERATION, True, None),
        ("all is well\n", False, None),
    ],
)
def test_a_failure_behind_an_exit_code_of_0_is_found(log: str, has_value: bool, outcome: Outcome | None) -> None:
    failure = hidden_failure(log, has_value=has_value)
    assert (failure.outcome if failure else None) == outcome


@pytest.mark.parametrize("printed", ["", "building the model\n"])
def test_runs_that_print_nothing_until_their_time_is_up_end_the_study(tmp_path: Path, printed: str) -> None:
    study = Study(Direction.MAXIMIZE)
    for number in range(4):
        files = TrialFolder(tmp_path / str(number))
        files.path.mkdir()
        files.log.write_text(printed)
        fields: dict[str, Any] = {"number": number, "folder": files.path, "identity": str(number)}
        study.add(Trial(params={"x": number}, outcome=Outcome.TIMEOUT, is_baseline=number == 0, **fields))
    with contextlib.nullcontext() if printed else pytest.raises(EveryRunFailsAlike):
        refuse_hopeless(study)


@pytest.mark.parametrize(("kinds", "stops"), [("OLLL", True), ("LLOL", False), ("LL", False)])
def test_machines_that_fail_one_after_the_other_stop_the_study(kinds: str, stops: bool) -> None:
    study = Study(Direction.MAXIMIZE)
    for number, kind in enumerate(kinds):
        lost: dict[str, Any] = {"outcome": Outcome.ERROR, "failure": str(FailureKind.LOST), "cause": "n1 is gone"}
        fields = lost if kind == "L" else {"outcome": Outcome.OK, "value": 1.0}
        study.add(Trial(params={"x": number}, number=number, identity=str(number), **fields))
    with pytest.raises(SystemFaultError, match="--retry-failed") if stops else contextlib.nullcontext():
        refuse_hopeless(study)


def test_a_full_gpu_is_classified() -> None:
    failure = classify("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 1)
    assert failure is not None
    assert failure.kind.name == "OUT_OF_MEMORY"


def test_an_unknown_option_is_recognised() -> None:
    assert names_unknown_option("train.py: error: unrecognized arguments: --tp 4")


def test_a_crash_of_a_device_is_recognised() -> None:
    assert shows_crash("[rank4]: RuntimeError: CUDA error: an illegal memory access was encountered")


def test_the_bytes_of_a_failed_allocation_are_read() -> None:
    assert (
        FailedAllocation.of("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB").tried_bytes
        == 2147483648.0
    )

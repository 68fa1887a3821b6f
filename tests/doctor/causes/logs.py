"""Logs of runs that died or waited, as the trainers and PyTorch print them."""

from __future__ import annotations

STEP = (
    " [2026-11-01 10:00:{0:02d}] iteration {0:8d}/     100 | elapsed time per iteration (ms): {1} |"
    " learning rate: 1.0E-4 | global batch size:    64 | lm loss: {2} | grad norm: 1.0 | number of skipped iterations:"
    "   0 | number of nan iterations:   0 |\n"
)


def steps(seconds: float = 6.5, *, first: int = 1, count: int = 8, loss: str = "2.0E+00") -> str:
    """Return iteration lines of equal length."""
    return "".join(STEP.format(number, f"{seconds * 1000:.1f}", loss) for number in range(first, first + count))


WATCHDOG = (
    "[rank{0}]:[E1101 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds "
    "before timing out.\n"
)
NAN_ASSERTION = """[rank5]: Traceback (most recent call last):
[rank5]:   File "/opt/megatron/training/training.py", line 1500, in train_step
[rank5]:     rerun_state_machine.validate_result(
[rank5]: RuntimeError: Rank 5, node n1, device 5, iteration #7: Unexpected result nan (message='found NaN in local \
forward loss calculation')
"""
STRAGGLER = (
    "INFO:megatron.core.utils:[2026-11-01 10:00:00] | MnRtt/Rnk: 100.00ms/{0} | MxRtt/Rnk: {1:.2f}ms/{2} | MnPwr/Rnk: "
    "400.00W/3 | MxPwr/Rnk: 650.00W/1 | MnTmp/Rnk: 40.00C/0 | MxTmp/Rnk: 84.00C/{2} | MnUtl/Rnk: 90.00%/3 | "
    "MxUtl/Rnk: 100.00%/1 | MnClk/Rnk: 1200.00MHz/{2} | MxClk/Rnk: 1980.00MHz/0 | MnDRtt/Rnk: 0.10ms/0 | "
    "MxDRtt/Rnk: {3:.2f}ms/6 | MnEtpt/Rnk: 300.00TF/{2} | MxEtpt/Rnk: 410.00TF/{0}\n"
)
OUT_OF_MEMORY = (
    "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of "
    "79.11 GiB of which 1.19 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of "
    "the allocated memory 66.00 GiB is allocated by PyTorch, and 9.50 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management\n"
)
CRASH = """Traceback (most recent call last):
  File "/home/me/train.py", line 42, in <module>
    main()
  File "/home/me/model.py", line 7, in forward
    return self.table[tokens]
IndexError: index out of range in self
"""
REFUSED = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/megatron/training/arguments.py", line 300, in validate_args
[rank0]:     assert args.num_layers % args.pipeline_model_parallel_size == 0
[rank0]: AssertionError: number of layers must be divisible by pipeline_model_parallel_size
"""
TIMERS = """(min, max) time across ranks (ms):
    forward-compute ................................: (2000.00, 2500.00)
    batch-generator ................................: (12.00, {0:.2f})
"""
TRAINER = "".join(
    f"\r {step:3d}%|###       | {step}/100 [00:{2 * step:02d}<02:30,  2.00s/it]"
    + (f"\n{{'loss': '{2.5 - step / 100:.4g}', 'grad_norm': '1.603', 'learning_rate': '8.3e-06', 'epoch': '0.01'}}\n")
    for step in range(1, 26)
)
TITAN = "".join(
    f"[titan] 2026-11-01 10:00:{3 * step // 2:02d},{500 * (step * 3 % 2):03d} - root - INFO - \x1b[31mstep: {step:2d}  "
    f"\x1b[32mloss:  8.12345  \x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[33mmemory: 12.34GiB(15.60%)  "
    f"\x1b[34mtps: 7,123  \x1b[36mtflops: 412.10  \x1b[35mmfu: 41.67%\x1b[39m\n"
    for step in range(1, 21)
)
BRIDGE = "Step Time : 9.00s GPU utilization: 99.7MODEL_TFLOP/s/GPU\n" + (
    "Step Time : 1.25s GPU utilization: 456.7MODEL_TFLOP/s/GPU\n" * 9
)

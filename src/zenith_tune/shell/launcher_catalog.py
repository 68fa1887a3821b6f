"""The launchers that training commands begin with: which of their own options take a value, and what they start.

Options are written without their dashes and with hyphens, because every launcher here takes both spellings or has one.
"""

from __future__ import annotations

from zenith_tune.shell.lexer import names


class Launcher:
    """A program that starts another one; its options are given as texts, with blanks between them."""

    def __init__(
        self,
        values: str = "",
        flags: str = "",
        *,
        pairs: str = "",
        subcommands: str = "",
        positionals: int = 0,
        starts_script: bool = False,
        shell_text: str = "",
    ) -> None:
        self.subcommands = subcommands.split()
        """The words that must follow its name, such as `launch`; with others it starts no training."""
        self.values = {**dict.fromkeys(values.split(), 1), **dict.fromkeys(pairs.split(), 2)}
        """Number of words that follow each option that takes any; `fp8-*` is each that begins so and is no flag."""
        self.flags = frozenset(flags.split())
        self.positionals = positionals
        """Number of words before the program, such as the duration of `timeout`."""
        self.starts_script = starts_script
        """Whether what follows is a script or module, rather than a whole command."""
        self.shell_text = shell_text
        """The option whose value is itself a shell text."""


_SLURM_VALUES = """
    A c C d D e G i J L m M n N o p q r S t T w x B a b
    account acctg-freq array bcast begin bell chdir cluster-constraint clusters comment constraint container
    container-env container-id container-image container-mounts container-name container-workdir core-spec
    cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution epilog
    error exclude export export-file extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint input job-name jobid licenses mail-type mail-user mem mem-bind mem-per-cpu
    mem-per-gpu mincpus mpi network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
    ntasks-per-socket open-mode output partition power priority profile prolog qos relative reservation resv-ports
    signal sockets-per-node switches task-epilog task-prolog thread-spec threads threads-per-core time time-min tmp
    tres-bind tres-per-task uid gid wckey
"""
_SLURM_FLAGS = """
    E H I K O Q X k l s u v Z contiguous container-mount-home container-remap-root container-writable
    no-container-mount-home no-container-remap-root exact exclusive external hold ignore-pbs immediate interactive
    kill-on-bad-exit label mcs-label multi-prog no-allocate no-bell no-kill no-requeue no-shell overcommit overlap
    oversubscribe parsable preserve-env pty quiet reboot requeue spread-job test-only unbuffered use-min-nodes
    verbose whole
"""
_TORCHRUN = Launcher(
    starts_script=True,
    values="""
        nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method
        event-log-handler role log-dir r redirects t tee local-ranks-filter node-rank master-addr master-port
        local-addr logs-specs numa-binding signals-to-handle duplicate-stdout-filters duplicate-stderr-filters
    """,
    flags="standalone m module no-python run-path use-env virtual-local-rank",
)
_ACCELERATE_VALUES = """
    config-file num-processes num-machines machine-rank num-cpu-threads-per-process mixed-precision gpu-ids
    dynamo-backend dynamo-mode main-process-ip main-process-port t tee log-dir role rdzv-backend rdzv-conf
    max-restarts monitor-interval vm env main-training-function zero-stage offload-optimizer-device
    offload-param-device offload-optimizer-nvme-path offload-param-nvme-path gradient-accumulation-steps
    gradient-clipping zero3-init-flag zero3-save-16bit-model aws-access-key-id aws-secret-access-key
    deepspeed-* fsdp-* megatron-lm-* parallelism-config-* fp8-* mpirun-*
"""
_ACCELERATE_FLAGS = """
    q quiet cpu multi-gpu tpu ipex enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic
    dynamo-use-regional-compilation use-deepspeed use-fsdp use-megatron-lm use-xpu use-parallelism-config same-network
    m module no-python tpu-cluster no-tpu-cluster tpu-use-sudo downcast-bf16 fp8-use-autocast-during-eval debug
"""
_DEEPSPEED = Launcher(
    starts_script=True,
    values="""
        H hostfile i include e exclude num-nodes min-elastic-nodes max-elastic-nodes num-gpus num-accelerators
        master-port master-addr node-rank launcher launcher-args enable-each-rank-log autotuning bind-core-list
        ssh-port venv-script
    """,
    flags="""
        module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank
    """,
)
_MPIRUN = Launcher(
    values="""
        n np c N npernode npersocket ppn H host hosts f hostfile machinefile rankfile rf x map-by bind-to rank-by wdir
        wd path prefix output-filename timeout tag-output-file envlist genvlist genv-list bootstrap iface launcher
        cpu-set cpus-per-proc cpus-per-rank report-uri stdin am tune
    """,
    pairs="mca gmca pmixmca prtemca genv env",
    flags="""
        allow-run-as-root oversubscribe nooversubscribe use-hwthread-cpus report-bindings display-map display-allocation
        tag-output timestamp-output bynode byslot bind-to-core bind-to-socket bind-to-none pernode v q quiet verbose l
        nolocal genvall merge-stderr-to-stdout
    """,
)
_UV_VALUES = """
    with with-editable with-requirements python p extra no-extra group no-group only-group env-file package directory
    project index default-index index-url i extra-index-url find-links f upgrade-package P reinstall-package
    index-strategy keyring-provider config-setting C link-mode exclude-newer cache-dir color config-file w resolution
"""
_UV_FLAGS = """
    all-extras all-groups no-dev only-dev dev no-editable inexact exact isolated active no-sync locked frozen no-project
    no-config offline quiet q verbose v no-cache n refresh reinstall upgrade U native-tls no-progress no-env-file
    managed-python no-managed-python m module s script gui-script
"""
_CONDA = Launcher(
    subcommands="run",
    values="n name p prefix cwd",
    flags="no-capture-output live-stream v vv dev debug-wrapper-scripts",
)

SHELLS = names("bash sh dash zsh ksh rbash")

TRAINERS = names("megatron swift llamafactory-cli axolotl xtuner")
"""Programs whose arguments may name scripts and other programs, and yet start nothing but themselves."""

OPAQUE = names("eval xargs parallel make gmake ninja ssh pdsh tmux screen su watch at batch torchx find script")
"""Programs that build command lines of their own, or run on without the tuner."""

STARTERS = names("torchrun deepspeed accelerate accelerate-launch srun") | SHELLS
"""Programs that are recognised behind an unknown launcher."""

LAUNCHERS: dict[str, Launcher] = {
    "torchrun": _TORCHRUN,
    "deepspeed": _DEEPSPEED,
    "accelerate": Launcher(_ACCELERATE_VALUES, _ACCELERATE_FLAGS, subcommands="launch", starts_script=True),
    "accelerate-launch": Launcher(_ACCELERATE_VALUES, _ACCELERATE_FLAGS, starts_script=True),
    "colossalai": Launcher(
        "nproc-per-node num-nodes node-rank master-addr master-port hostfile host include exclude",
        "m module",
        subcommands="run",
        starts_script=True,
    ),
    "srun": Launcher(_SLURM_VALUES + " W wait", _SLURM_FLAGS),
    "sbatch": Launcher(_SLURM_VALUES, _SLURM_FLAGS + " W wait", starts_script=True, shell_text="wrap"),
    "salloc": Launcher(_SLURM_VALUES + " W wait", _SLURM_FLAGS),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "mpiexec.hydra", "prterun"), _MPIRUN),
    "horovodrun": Launcher("np num-proc H hosts hostfile p ssh-port network-interface", "verbose gloo mpi"),
    "env": Launcher("u unset C chdir", "i ignore-environment 0 null v debug"),
    "nohup": Launcher(),
    "exec": Launcher("a", "c l"),
    "command": Launcher(flags="p"),
    "time": Launcher("f format o output", "p portability a append v verbose q quiet"),
    "nice": Launcher("n adjustment"),
    "ionice": Launcher("c class n classdata p pid", "t ignore"),
    "chrt": Launcher("T P D", "a b d f i m o r v R", positionals=1),
    "setsid": Launcher(flags="c f w ctty fork wait"),
    "stdbuf": Launcher("i input o output e error"),
    "unbuffer": Launcher(flags="p"),
    "sudo": Launcher("u user g group h host p prompt C D chdir", "E preserve-env H set-home n S b i"),
    "numactl": Launcher(
        "i interleave w weighted-interleave m membind N cpunodebind C physcpubind p preferred P preferred-many "
        "o offset L length S shm f file shmid",
        "l localalloc a all b balancing strict touch dump",
    ),
    "taskset": Launcher(flags="c cpu-list a all-tasks", positionals=1),
    "timeout": Launcher("k kill-after s signal", "foreground preserve-status v verbose f p", positionals=1),
    "flock": Launcher(
        "w wait timeout E conflict-exit-code",
        "s shared x e exclusive n nb nonblock o close F no-fork u unlock verbose",
        positionals=1,
    ),
    "uv": Launcher(_UV_VALUES, _UV_FLAGS, subcommands="run"),
    "poetry": Launcher("C directory P project", "q quiet v vv vvv n no-interaction", subcommands="run"),
    "pipenv": Launcher(subcommands="run"),
    "pdm": Launcher("p project env-file", "s site-packages", subcommands="run"),
    "pixi": Launcher("e environment manifest-path", "frozen locked q v", subcommands="run"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _CONDA),
    "nsys": Launcher(
        "o output t trace w show-output c capture-range capture-range-end e env-var d duration y delay s sample b "
        "backtrace cpuctxsw cuda-graph-trace cuda-memory-usage gpu-metrics-device gpu-metrics-devices export kill "
        "p nvtx-capture python-sampling python-backtrace pytorch samples-per-backtrace session-new stats stop-on-exit "
        "x trace-fork-before-exec wait f force-overwrite gpuctxsw n inherit-environment",
        subcommands="profile",
    ),
    "ray": Launcher(
        "address runtime-env runtime-env-json working-dir submission-id entrypoint-num-cpus entrypoint-num-gpus "
        "entrypoint-memory entrypoint-resources entrypoint-label-selector metadata-json job-id headers verify "
        "log-style log-color",
        "no-wait v verbose",
        subcommands="job submit",
    ),
}
"""By program name."""

MODULES: dict[str, Launcher] = {
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "torch.distributed.launcher": _TORCHRUN,
    "accelerate.commands.launch": LAUNCHERS["accelerate-launch"],
    "accelerate.commands.accelerate_cli": LAUNCHERS["accelerate"],
    "deepspeed.launcher.runner": _DEEPSPEED,
    "cProfile": Launcher("o s", "m", starts_script=True),
    "pdb": Launcher("c", "m", starts_script=True),
    "debugpy": Launcher("listen connect log-to", "wait-for-client m", pairs="configure", starts_script=True),
    "coverage": Launcher(
        "rcfile source omit include data-file", "a append p branch m", subcommands="run", starts_script=True
    ),
}
"""By module name, for `python -m`."""

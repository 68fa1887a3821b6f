"""What is asked of Slurm: its options, and how the command gets onto its nodes."""

from __future__ import annotations

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.runners.slurm.client import fields
from zenith_tune.runners.slurm.request import NodeRoom, SlurmRequest, check_request, gives_whole_nodes, num_slots
from zenith_tune.runners.slurm.script import Launch, launched_command
from zenith_tune.runners.slurm.submission import job_environment
from zenith_tune.runners.slurm.verdict import never_starts
from zenith_tune.study.resources import Resources

# As printed by Slurm 22.05.
NODE = (
    "NodeName=gpu01 Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=62 CPUTot=64 CPULoad=4.34 "
    "AvailableFeatures=a100,ib ActiveFeatures=a100,ib Gres=gpu:a100:8(S:0-1),shard:16 NodeAddr=gpu01 "
    "Version=22.05.8 OS=Linux 6.1.0-18-amd64 #1 SMP PREEMPT_DYNAMIC Debian  RealMemory=512000 AllocMem=0 Sockets=2 "
    "State=IDLE+DRAIN ThreadsPerCore=1 Partitions=train,short  Reason=bad fan [root@2026-11-15T14:21:15]"
)
PARTITIONS = [
    {"PartitionName": "train", "Default": "YES", "MaxNodes": "UNLIMITED", "MaxTime": "1-00:00:00"},
    {"PartitionName": "short", "Default": "NO", "MaxNodes": "1", "MaxTime": "01:00:00"},
]


def room(name: str, **changes: object) -> NodeRoom:
    values: dict[str, object] = {"num_cpus": 64, "num_gpus": 8, "memory_mb": 512_000, "partitions": ("train", "short")}
    return NodeRoom(name=name, **{**values, **changes})  # type: ignore[arg-type]


def test_a_node_is_read_as_slurm_prints_it() -> None:
    node = NodeRoom.read(fields(NODE))
    assert (node.name, node.num_cpus, node.num_gpus, node.memory_mb) == ("gpu01", 62, 8, 512_000)
    assert node.features == ("a100", "ib") and node.partitions == ("train", "short") and not node.is_in


def test_every_word_of_the_request_becomes_an_option() -> None:
    request = SlurmRequest(
        partition="train",
        account="me",
        qos="high",
        constraint="a100",
        exclude="gpu[03-04]",
        cpus_per_task=8,
        mem="64G",
        time="00:20:00",
        extra="--mail-type=NONE --comment 'two words'",
    )
    options = request.options(Resources(nodes=2, gpus_per_node=4, avoid=("gpu07",)))
    assert options == [
        "--partition=train",
        "--account=me",
        "--qos=high",
        "--constraint=a100",
        "--exclude=gpu03,gpu04,gpu07",
        "--nodes=2",
        "--gpus-per-node=4",
        "--cpus-per-task=8",
        "--mem=64G",
        "--time=00:20:00",
        "--ntasks-per-node=1",
        "--no-requeue",
        "--export=ALL",
        "--mail-type=NONE",
        "--comment",
        "two words",
    ]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"nodes": 0}, ["nodes", "got 0"]),
        ({"time": "soon"}, ["time", "'soon'"]),
        ({"extra": "--array=1-4"}, ["extra", "'--array'"]),
        ({"extra": "-o/x"}, ["extra", "'-o/x'"]),
        ({"extra": "--output=x"}, ["extra", "'--output'"]),
        ({"extra": "--nice --hold"}, ["extra", "'--hold'"]),
        ({"extra": "-H"}, ["extra", "'-H'"]),
        ({"extra": "'open"}, ["extra", "'open"]),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(asked: dict[str, object], named: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        SlurmRequest(**asked)  # type: ignore[arg-type]
    assert [part for part in named if part not in refused.value.problem] == []


def test_of_several_partitions_one_that_takes_the_job_is_enough() -> None:
    nodes = [room("a"), room("b")]
    request = SlurmRequest(partition="train,short", time="02:00:00")
    assert len(check_request(request, Resources(nodes=2), PARTITIONS, nodes)) == 2
    with pytest.raises(UsageError, match=r"2 nodes.*short.*at most 1"):
        check_request(SlurmRequest(partition="short"), Resources(nodes=2), PARTITIONS, nodes)


def test_a_node_that_is_drained_may_come_back_but_holds_no_trial_now() -> None:
    nodes = [room("a"), room("b", is_in=False)]
    needs = Resources(gpus_per_node=2)
    assert len(check_request(SlurmRequest(), Resources(nodes=2), PARTITIONS, nodes)) == 2
    assert num_slots(SlurmRequest(), needs, nodes) == 4
    assert num_slots(SlurmRequest(mem="256000"), needs, nodes) == 2
    assert num_slots(SlurmRequest(), needs, nodes, is_exclusive=True) == 1


def test_a_partition_that_shares_no_node_is_recognised() -> None:
    alone = [{**PARTITIONS[0], "OverSubscribe": "EXCLUSIVE"}, {**PARTITIONS[1], "OverSubscribe": "NO"}]
    assert gives_whole_nodes(SlurmRequest(), alone)
    assert not gives_whole_nodes(SlurmRequest(partition="short"), alone)
    assert gives_whole_nodes(SlurmRequest(partition="short", extra="--exclusive"), alone)


@pytest.mark.parametrize(
    "reason",
    ["QOSMaxGRESPerJob", "AssocMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "BadConstraints", "QOSMinGRES"],
)
def test_a_limit_on_a_single_job_is_never_met_later(reason: str) -> None:
    assert never_starts(reason)


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"])
def test_a_job_that_is_held_would_wait_for_a_person(reason: str) -> None:
    assert never_starts(reason)


@pytest.mark.parametrize(
    "reason", ["Priority", "AssocGrpGRES", "QOSMaxGRESPerUser", "ReqNodeNotAvail, May be reserved", "BeginTime"]
)
def test_a_limit_on_all_jobs_together_is_waited_for(reason: str) -> None:
    assert not never_starts(reason)


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("torchrun --nproc-per-node 8 t.py", Launch.EACH_NODE),
        ("bash train.sh", Launch.EACH_NODE),
        ("A=1 srun --label python t.py", Launch.ONCE),
        ("bash -c 'cd x && mpirun -np 8 python t.py'", Launch.ONCE),
        ("deepspeed --hostfile mine t.py", Launch.EACH_NODE),
        ("deepspeed --launcher slurm t.py", Launch.HOSTFILE),
    ],
)
def test_who_starts_the_ranks_is_seen_in_the_command(command: str, launch: Launch) -> None:
    assert Launch.of(command, 2) is launch
    assert Launch.of(command, 1) is Launch.ONCE


GIVEN = '"$(echo "$CUDA_VISIBLE_DEVICES" | cut -d , -f -4)"'
MEETING = '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'


@pytest.mark.parametrize(
    ("command", "nodes", "expected"),
    [
        ("torchrun --master-port 29611 t.py", 1, 'torchrun --master-port "$MASTER_PORT" t.py'),
        (
            "bash -c 'deepspeed --num_gpus 4 --master_port 5 t.py > log'",
            1,
            f"bash -c 'deepspeed --master_port \"$MASTER_PORT\" --include localhost:{GIVEN} t.py > log'",
        ),
        ("CUDA_VISIBLE_DEVICES=0,1 python t.py", 1, f"CUDA_VISIBLE_DEVICES={GIVEN} python t.py"),
        ("torchrun --node-rank 0 t.py", 2, f'torchrun --nnodes 2 --node-rank "$NODE_RANK" {MEETING} t.py'),
        (
            "accelerate launch --gpu_ids 0 t.py",
            2,
            'accelerate launch --num_machines 2 --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" '
            '--main_process_port "$MASTER_PORT" --gpu_ids all t.py',
        ),
        ("srun torchrun --master_port 5 t.py", 2, 'srun torchrun --master-port "$MASTER_PORT" t.py'),
        ("srun torchrun --rdzv-endpoint=$H:5 t.py", 2, 'srun torchrun --rdzv-endpoint "$H:$MASTER_PORT" t.py'),
        (
            "deepspeed --launcher slurm -H mine t.py",
            2,
            'deepspeed --master_port "$MASTER_PORT" --hostfile "$ZENITHTUNE_TRIAL_FOLDER/hostfile" '
            "--launcher slurm t.py",
        ),
        ("python t.py", 2, "python t.py"),
    ],
)
def test_a_launcher_keeps_to_the_nodes_gpus_and_port_of_its_job(command: str, nodes: int, expected: str) -> None:
    needs = Resources(nodes=nodes, gpus_per_node=4)
    assert launched_command(command, Launch.of(command, nodes), needs) == expected


@pytest.mark.parametrize(
    ("command", "problem"),
    [("torchrun --standalone t.py", "--standalone"), ("deepspeed -i n1:0 t.py", "-i n1:0")],
)
def test_a_launcher_that_cannot_be_on_several_nodes_is_refused(command: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        launched_command(command, Launch.EACH_NODE, Resources(nodes=2))


def test_a_job_does_not_inherit_the_allocation_that_the_tuner_runs_in() -> None:
    own = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SBATCH_ACCOUNT": "me", "A": "1"}
    assert job_environment(own) == {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "me", "A": "1"}

"""One study on a real cluster while all sorts of things go wrong: a node is killed, the controller restarted, a job
cancelled by somebody else, another runs out of its time, and there is more to run than room. Each test looks at one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engines.slurm_cluster import SlurmCluster
from tests.mentions import mentions
from tests.study_tools import Witness
from tests.toy_preset import ToyPreset
from zenith_tune import Outcome, PresetTuner, Trial
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.runners.slurm.runner import SlurmRunner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRAINER = """
case $1 in
  node-dies) mkdir "$2/first-run" 2> /dev/null && sleep 600; value=1 ;;
  cancelled) sleep 600 ;;
  over-time) sleep 600 ;;
  outlives-controller) sleep 20; value=4 ;;
  waits) value=5 ;;
  last) value=6 ;;
esac
echo "value: $value"
"""
TROUBLED = ["node-dies", "cancelled", "over-time", "outlives-controller"]
RUNS = [*TROUBLED, "waits", "last"]


class StormWitness(Witness):
    """Remember also which trial has which number, and what each waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, int] = {}
        self.states: dict[int, list[str]] = {}

    def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None, why: str = "") -> None:
        self.numbers[label.removeprefix("x=")] = number

    def is_running(self, name: str) -> bool:
        """Tell whether a trial runs, as far as was reported."""
        return self.states.get(self.numbers.get(name, -1), [""])[-1].startswith("running")

    def trial_state(self, number: int, state: str) -> None:
        self.states.setdefault(number, []).append(state)


@dataclass
class Storm:
    """The outcome of the study."""

    trials: dict[str, Trial]
    states: dict[str, list[str]]
    best: dict[str, object] = field(default_factory=dict)
    killed_node: str = ""


@pytest.fixture(scope="module")
def storm(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Storm:
    return weather(cluster, tmp_path_factory.mktemp("storm"))


def weather(cluster: SlurmCluster, folder: Path) -> Storm:
    """Run the study, with trials of a whole node each and two more at once than there are nodes."""
    trainer = folder / "trainer.sh"
    trainer.write_text(TRAINER)
    witness = StormWitness()
    runner = SlurmRunner(gpus_per_node=8, time="2", call_timeout_s=3, grace_s=1, max_pause_s=1)
    tuner = PresetTuner(
        f"bash {trainer} {{x}} {folder}",
        ToyPreset(RUNS),
        output_dir=folder / "out",
        study_name="s",
        listener=witness,
        runner=runner,
        parallel=6,
    )
    with ThreadPoolExecutor(1) as pool:
        trouble = pool.submit(make_trouble, cluster, witness)
        # A study without its trouble would wait for ever.
        trouble.add_done_callback(lambda done: runner.interrupt() if done.exception() else None)
        _, best = tuner.optimize()
        killed_node = trouble.result()
    names = {trial.number or 0: str(trial.params["x"]) for trial in witness.trials}
    states = {names[number]: said for number, said in witness.states.items()}
    trials = {str(trial.params["x"]): trial for trial in witness.trials}
    return Storm(trials=trials, states=states, best=dict(best or {}), killed_node=killed_node)


def make_trouble(cluster: SlurmCluster, witness: StormWitness) -> str:
    """Wait until the trials that it happens to run, then let it all happen; returns the node that was killed."""
    deadline = time.monotonic() + 500
    while not all(map(witness.is_running, TROUBLED)):
        assert time.monotonic() < deadline, witness.states
        time.sleep(0.1)
    # A job's name holds its trial's folder, which is its number: trials that start together have them in any order.
    jobs = {int(name.split("-")[1]): job_id for job_id, _, name in cluster.jobs()}
    node_dies, cancelled, over_time = (jobs[witness.numbers[name]] for name in TROUBLED[:3])
    cluster.run("scontrol", "update", f"JobId={over_time}", "EndTime=now+1")
    node = cluster.run("squeue", "--noheader", f"--jobs={node_dies}", "--format=%N").strip()
    cluster.kill_node(node)
    cluster.stop_controller()
    time.sleep(4)
    cluster.start_controller()
    cluster.wait_for_controller()
    cluster.run("scancel", cancelled)
    if over_time in {job_id for job_id, state, _ in cluster.jobs() if state == "RUNNING"}:
        # The controller that was stopped may not have written down what it heard last.
        cluster.run("scontrol", "update", f"JobId={over_time}", "EndTime=now+1")
    return node


def test_the_trial_of_a_killed_node_ran_once_more_elsewhere_and_the_node_is_named(storm: Storm) -> None:
    trial = storm.trials["node-dies"]
    assert (trial.outcome, trial.value) == (Outcome.OK, 1.0)
    assert "NODE_FAIL" in str(trial.extra["lost"]) and storm.killed_node in str(trial.extra["lost"])
    assert trial.extra["place"] != storm.killed_node


def test_a_job_that_somebody_else_cancelled_says_so_and_is_run_again_on_resume(storm: Storm) -> None:
    trial = storm.trials["cancelled"]
    assert (trial.outcome, trial.failure) == (Outcome.CANCELLED, FailureKind.REVOKED)
    assert mentions(trial.cause, "cancelled")


def test_a_job_that_reached_slurms_limit_timed_out(storm: Storm) -> None:
    trial = storm.trials["over-time"]
    assert trial.outcome is Outcome.TIMEOUT
    assert "TIME LIMIT" in (trial.cause or "")


def test_a_restart_of_the_controller_is_survived_and_reported_once(storm: Storm) -> None:
    trial = storm.trials["outlives-controller"]
    assert (trial.outcome, trial.value) == (Outcome.OK, 4.0)
    assert sum("does not answer" in state for state in storm.states["outlives-controller"]) == 1


def test_what_finds_no_room_shows_why_it_waits_and_runs_later(storm: Storm) -> None:
    assert any(state.startswith("pending (") for said in storm.states.values() for state in said)
    assert storm.trials["waits"].ok and storm.trials["last"].ok


def test_the_study_goes_on_to_its_end_and_finds_its_best(storm: Storm) -> None:
    assert sorted(storm.trials) == sorted(RUNS)
    assert storm.best == {"x": "last"}

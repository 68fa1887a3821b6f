"""Attacks the tuner with random input: edited command lines against bash, damaged logs, secrets, kills, and a soak.

    python benchmarks/fuzz.py --lines 100000 --logs 20000 --secrets 20000 --kills 200 --soak 10000

Each part draws from `--seed`, prints what it found, and adds to the JSON of `--output`; the exit code is 1 if a part
found anything. `tests/benchmarks/test_fuzz.py` runs a short part of each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import resource
import shlex
import signal
import string
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from zenith_tune.errors import ZenithTuneError
from zenith_tune.evaluators.base import EvaluatorRegistry, TuningEvaluator
from zenith_tune.evaluators.failures.failures import classify, hidden_failure
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.storage import database_url
from zenith_tune.registry import construct
from zenith_tune.shell import ParsedCommand, plain_value
from zenith_tune.shell.secrets import find_secrets, mask
from zenith_tune.study.trial_log import TrialLog

Findings = list[str]
_SHOWN = 5
_BATCH = 500

# A line runs in a subshell whose programs only note what they are given, on a descriptor that no line redirects.
_BASH = r"""
note() { printf '%s\0' "$@" END >&9; }
python() { note "$@"; }
torchrun() { note "$@"; }
accelerate() { note "$@"; }
srun() { "$@"; }
while IFS= read -r -d '' line; do (eval "$line") < /dev/null > /dev/null 2>&1; printf 'NEXT\0' >&9; done
"""
_OPTIONS = ("--tensor-model-parallel-size", "--micro-batch-size", "--recompute-method", "--min-lr")
_VALUES = (
    "4",
    "-1",
    "-.5",
    "1e-5",
    "uniform",
    '"4"',
    "'a b'",
    '"it\'s"',
    "a\\ b",
    "$'a\\tb'",
    "$SET",
    '"$TWO"',
    "٣",
    "²",
)
_OTHERS = (
    *(
        "--bf16",
        "-v",
        "data",
        "'two words'",
        "a=b",
        "''",
        "--note '--micro-batch-size 4'",
        "2>/dev/null",
        "> /dev/null",
    ),
    *("٣>/dev/null", "²", "--lr 3", "--lr=3", "--seed $SET", "--tail \\\n1", "&>/dev/null", "< /dev/null", "#x", "a#b"),
)
_LAUNCHERS = ("python train.py", "python -u train.py", "torchrun --nproc_per_node 8 train.py", "srun torchrun train.py")
_AROUND = (
    *(
        "{}",
        "{}",
        "{}",
        "true && {}",
        "set -e\n{}",
        "[ -d . ] && {} || exit 1",
        "({})",
        "{{ {}\n}}",
        "{} | cat",
        "! {}",
    ),
    *("yes | {}", "seq 3 | {}", "zcat -f /dev/null | {}", 'A="${{TWO:-5}}" {}', "A=$'x\\ty' {}"),
    *("true; {}; echo done", "{} # --micro-batch-size 4", "A=1 {}", "A='x y' B=\"$SET z\" {}", "cat <<E\nno\nE\n{}"),
)


def fuzz_lines(rng: random.Random, count: int) -> Findings:
    """Compare what a program is given after an edit with what it was given before, as bash sees both."""
    found: Findings = []
    num_compared = 0
    for first in range(0, count, _BATCH):
        cases = [(_line(rng), _edit(rng)) for _ in range(min(_BATCH, count - first))]
        edited = []
        for line, options in cases:
            try:
                edited.append(ParsedCommand.of(line).set(options).text)
            except ZenithTuneError:
                edited.append("")
            except Exception as error:
                edited.append("")
                found.append(f"{type(error).__name__} for {line!r}")
        given = _given([text for (line, _), after in zip(cases, edited, strict=True) for text in (line, after)])
        for (line, options), text, before, after in zip(cases, edited, given[::2], given[1::2], strict=True):
            if not text or len(before) != 1:  # it was refused, or nothing or another program runs
                continue
            num_compared += 1
            if len(after) != 1 or not _is_kept(before[0], after[0], options):
                found.append(f"{line!r} with {options}: {before} became {after}")
    print(f"  {num_compared:,} lines compared, the others were refused or start nothing")
    return found


def _line(rng: random.Random) -> str:
    words = [rng.choice(_LAUNCHERS)]
    for _ in range(rng.randrange(7)):
        name = rng.choice(_OPTIONS)
        name = rng.choice([name, name.replace("-", "_").replace("__", "--", 1), f'"{name}"', f"--'{name[2:]}'"])
        option = name + rng.choice((" ", "=", "  ", " \\\n  ")) + rng.choice(_VALUES)
        words.append(rng.choice([option, rng.choice(_OTHERS)]))
    text = rng.choice(_AROUND).format(" ".join(words))
    return f"bash -c {shlex.quote(text)}".replace("bash -c", "eval", 1) if rng.random() < 0.02 else text


def _edit(rng: random.Random) -> dict[str, Any]:
    values = [rng.randint(-9, 64), rng.uniform(-1, 1), "full", "a b", "it's", "-x", "$SET", "\\", "*"]
    return {name: rng.choice(values) for name in rng.sample(_OPTIONS, rng.randint(1, 3))}


def _given(lines: list[str]) -> list[list[list[str]]]:
    """Return, for each line, what each program that it started was given."""
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder, "dump")
        command = ["bash", "-c", f"exec 9> {shlex.quote(str(dump))}\n{_BASH}"]
        text = "".join(f"{line}\0" for line in lines).encode()
        environment = {"PATH": "/usr/bin:/bin", "SET": "5", "TWO": "x 'y"}
        subprocess.run(command, input=text, cwd=folder, env=environment, check=True)
        words = dump.read_bytes().decode().split("\0")[:-1]
    lines_seen: list[list[list[str]]] = [[]]
    program: list[str] = []
    for word in words:
        if word == "NEXT":
            lines_seen.append([])
        elif word == "END":
            lines_seen[-1].append(program)
            program = []
        else:
            program.append(word)
    return lines_seen[:-1]


def _is_kept(before: list[str], after: list[str], options: dict[str, Any]) -> bool:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in options:
        parser.add_argument(name, "--" + name[2:].replace("-", "_"), dest=name)
    wanted = {name: plain_value(value) for name, value in options.items()}
    script = before.index("train.py") + 1
    own, new = before[script:], after[script:]
    is_same = after[:script] == before[:script] and _others(own, options) == _others(new, options)
    return is_same and vars(parser.parse_known_args(new)[0]) == wanted


def _others(own: list[str], names: dict[str, Any]) -> list[str]:
    """Return a program's arguments without these options and their values."""
    left, skip = [], False
    for word, following in itertools.zip_longest(own, own[1:], fillvalue="--"):
        name = "--" + word.partition("=")[0][2:].replace("_", "-") if word.startswith("--") else ""
        if skip:
            skip = False
        elif name in names:
            skip = "=" not in word and re.match(r"-[^.0-9]", following) is None
        else:
            left.append(word)
    return left


_LOG = (
    " [2026-11-15 10:00:00] iteration        {n}/      50 | consumed samples:          {n} | elapsed time per iteration"
    " (ms): 6500.0 | throughput per GPU (TFLOP/s/GPU): 410.2 | global batch size:    64 | lm loss: 1.0E+00 |\n",
    "[Rank 0] (after {n} iterations) memory (MB) | max allocated: 1024.5 | max reserved: 2048.0\n",
    "[2026-11-15 10:00:00,000] [INFO] [timer.py:1:stop] epoch=0/micro_step={n}/global_step={n}, "
    "RunningAvgSamplesPerSec=12.3, CurrSamplesPerSec=12.4, MemAllocated=1.0GB, MaxMemAllocated=2.0GB\n",
    " 10%|#         | {n}/100 [00:12<01:48,  1.20s/it]\n",
    "[rank0]:step:  {n}  loss:  8.1  grad_norm: 1.2  memory: 10.1GiB(12.8%)  tps: 7,000  tflops: 300.1  mfu: 30.1%\n",
    "Step Time : 1.23s GPU utilization: 400.0MODEL_TFLOP/s/GPU\n",
    '{{"train_runtime": 12.3, "train_samples_per_second": {n}.5, "loss": 1.0}}\n',
    "value: {n}.5\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n",
    'Traceback (most recent call last):\n  File "train.py", line {n}, in <module>\nValueError: bad\n',
    "train.sh: line {n}: 123 Killed python train.py\n",
    "slurmstepd: error: Detected 1 oom_kill event in StepId={n}.0\n",
)
_INSERTS = (
    "\0",
    "\xff",
    "nan",
    "inf",
    "-1",
    "1e308",
    "9" * 400,
    "\r",
    "\n",
    "\x1b[31m",
    "٣",
    "²",
    "|",
    "{",
    "}",
    "'",
    '"',
    "/",
)
_HANG_S = 20


def fuzz_logs(rng: random.Random, count: int) -> Findings:
    """Read damaged logs by every evaluator and by the search for causes: none raises or hangs."""
    found: Findings = []
    evaluators, metadata = list(_evaluators()), {"duration": 3.0}
    with tempfile.TemporaryDirectory() as folder, _alarm():
        path = Path(folder, "log.txt")
        for _ in range(count):
            path.write_bytes(_damaged(rng))
            text = TrialLog(path).text()
            readers: list[tuple[str, Callable[[], object]]] = [
                ("classify", partial(classify, text, 1)),
                ("classify", partial(classify, text, 0)),
                ("hidden failure", partial(hidden_failure, text, has_value=True)),
                ("tail", partial(TrialLog(path).tail_lines, 20)),
            ]
            for name, evaluator in evaluators:
                readers += [(name, partial(read, text, metadata)) for read in (evaluator.measure, evaluator.progress)]
            for name, read in readers:
                signal.alarm(_HANG_S)
                try:
                    read()
                except ZenithTuneError:
                    pass
                except Exception as error:
                    last = traceback.extract_tb(error.__traceback__)[-1]
                    if isinstance(error, ValueError) and (last.line or "").startswith("raise "):
                        continue  # an evaluator's own word for a log without a value
                    found.append(f"{name}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")
                finally:
                    signal.alarm(0)
    return found


_ARGUMENTS: dict[str, dict[str, Any]] = {
    "accelerate": {"check": False},
    "trainer": {"check": False},
    "json": {"key": "loss"},
    "regex": {"pattern": r"value: (\S+)"},
}


def _evaluators() -> Iterator[tuple[str, TuningEvaluator]]:
    for name, cls in EvaluatorRegistry.each_loadable():
        yield name, construct(cls, _ARGUMENTS.get(name, {}), name)


class _alarm:  # noqa: N801 - used as a function
    """Turn an alarm into an exception."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, _hung)

    def __exit__(self, *unused: object) -> None:
        signal.signal(signal.SIGALRM, self._before)


def _hung(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"it took longer than {_HANG_S} s")


def _damaged(rng: random.Random) -> bytes:
    lines = [rng.choice(_LOG).format(n=rng.randint(0, 10 ** rng.randint(1, 12))) for _ in range(rng.randint(1, 12))]
    text = "".join(lines)
    for _ in range(rng.randint(0, 8)):
        at, length = rng.randrange(len(text) + 1), rng.choice([0, 0, 1, 5, 40])
        text = text[:at] + rng.choice(_INSERTS) * rng.choice([1, 1, 1, 50]) + text[at + length :]
    data = text.encode("utf-8", errors="surrogateescape") if rng.random() < 0.9 else text.encode("latin-1", "replace")
    return data * rng.choice([1, 1, 1, 3])


_SECRET_NAMES = ("HF_TOKEN", "WANDB_API_KEY", "MYSQL_PWD", "db_password", "aws_secret_access_key", "hub-token", "jwt")
_SECRET_FORMS = (
    *(
        "python t.py --# %",
        "python t.py --#=%",
        'python t.py --# "%"',
        "python t.py --# $(echo %)",
        "python t.py +x.#=%",
    ),
    *(
        "#=% python t.py",
        "#+=% python t.py",
        "env #=% python t.py",
        "export #='%' && python t.py",
        "#=$(echo %) python t.py",
    ),
    *("#=${X:=%} python t.py", "srun --export=ALL,#=% python t.py", "docker run -e #=% i python t.py"),
    *("mpirun -genv HF_TOKEN % python t.py", 'ssh h "#=% python t.py"', "aws configure set x.# % && python t.py"),
    *("python t.py --logger-args a=1,#=%", "python t.py --db 'Server=x;#=%;'", "python t.py --s3 s3://AK:%@bucket"),
    *("curl -H 'authorization: ApiKey %' x && python t.py", "gh auth login --with-token <<< % && python t.py"),
    *("A=%; B=$A; python t.py --# $B", "python t.py --# <(echo %)", "conda config --set # % && python t.py"),
)
_NOISE = ("--lr 3", "--name 'a b'", "--seed=5", "-v", "data", "> log", "2>&1", "--tokenizer llama", "--keep 3")


def fuzz_secrets(rng: random.Random, count: int) -> Findings:
    """Mask random secrets in random places of a command, and of what a program prints of it: none is left."""
    found: Findings = []
    letters = string.ascii_letters + string.digits
    for _ in range(count):
        secret = "".join(rng.choice(letters) for _ in range(rng.randint(10, 40)))
        command = rng.choice(_SECRET_FORMS).replace("#", rng.choice(_SECRET_NAMES)).replace("%", secret)
        for _ in range(rng.randrange(4)):
            command += f" {rng.choice(_NOISE)}"
        command = rng.choice(
            ("{}", "cd /x && {}", "bash -c '{}'" if "'" not in command else "{}", "{} | tee log")
        ).format(command)
        secrets = find_secrets(command)
        number = str(rng.randint(100, 999))
        if (line := f"tokens/s: 7{number}5.{number}") != mask(line, find_secrets(f"API_KEY={number} {command}")):
            found.append(f"a value was changed: {line} by the secret {number}")
        printed = f"Namespace(lr=3, x='{secret}') {rng.choice((secret, json.dumps(secret), f'Bearer {secret}'))}"
        if secret in mask(command, secrets) or secret in mask(printed, secrets):
            found.append(f"shown: {command}")
    return found


def fuzz_kills(rng: random.Random, count: int) -> Findings:
    """Kill a tuner again and again: no finished trial is lost or runs twice."""
    found: Findings = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        points = list(range(3 * count + 10))
        trial = f"sh -c 'echo {{x}} >> {runs}; sleep 0.02; echo value: 1'"
        command = [
            sys.executable,
            "-m",
            "zenith_tune.cli.main",
            "optimize",
            "--space",
            f"x={','.join(map(str, points))}",
        ]
        command += ["--objective", r"value: (\S+)", "--study-name", "s", "--output-dir", folder, "--no-baseline"]
        command += ["--strategy", "grid", "--resume", "--", *shlex.split(trial)]
        seen: dict[str, int] = {}
        for _ in range(count):
            until = len(_ran(runs)) + rng.randint(0, 3)
            tuner = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
            while len(_ran(runs)) < until and tuner.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.2))
            if tuner.poll() not in (None, 0):
                found.append(f"it ended by itself: {tuner.communicate()[1].decode()[-300:]}")
                break
            tuner.kill()
            tuner.communicate()
            finished, counts = _finished(folder), Counter(_ran(runs))
            found += [f"{x} was lost" for x in seen.keys() - finished]
            found += [f"{x} ran again" for x, num in seen.items() if counts[x] != num]
            seen = {x: counts[x] for x in finished}
        print(f"  {len(seen)} finished trials")
    return found


def _ran(runs: Path) -> list[str]:
    return runs.read_text().split() if runs.exists() else []


def _finished(folder: str) -> set[str]:
    try:
        view = StudyReader(database_url(Path(folder, "studies.db")), "s").view()
    except ZenithTuneError:
        return set()
    return {" ".join(map(str, each.trial.params.values())) for each in view.trials if each.trial.value is not None}


def fuzz_soak(rng: random.Random, count: int) -> Findings:
    """Run many trials in one study: each is recorded, and memory does not grow with them."""
    with tempfile.TemporaryDirectory() as folder:
        width = math.ceil(math.sqrt(count))
        values = ",".join(map(str, range(width)))
        command = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", "--space", f"x={values}"]
        command += ["--space", f"y={values}"]
        command += ["--objective", r"value: (\S+)", "--study-name", "s", "--output-dir", folder, "--no-baseline"]
        command += ["--strategy", "grid", "--n-trials", str(count), "--", "echo", "value: 1", "{x} {y}"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            return [f"exit code {done.returncode}: {done.stderr.decode()[-300:]}"]
        num = len(_finished(folder))
        print(f"  {num} trials, {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB at most")
    return [] if num == count else [f"{num} of {count} trials are recorded"]


PARTS: dict[str, Callable[[random.Random, int], Findings]] = {
    "lines": fuzz_lines,
    "logs": fuzz_logs,
    "secrets": fuzz_secrets,
    "kills": fuzz_kills,
    "soak": fuzz_soak,
}


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, part in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=part.__doc__)
    parser.add_argument("--seed", type=int, default=20261117)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    results: dict[str, Any] = {"seed": given.seed}
    for name, part in PARTS.items():
        if count := getattr(given, name):
            began = time.monotonic()
            found = part(random.Random(f"{given.seed} {name}"), count)
            results[name] = {"count": count, "found": len(found), "seconds": round(time.monotonic() - began, 1)}
            print(f"{name}: {count:,} with seed {given.seed}, {len(found)} found", flush=True)
            for line, times in Counter(found).most_common(_SHOWN):
                print(f"  {times} times: {line[:600]}")
            results[name]["examples"] = sorted(set(found))[:_SHOWN]
            if given.output:
                given.output.write_text(json.dumps(results, indent=2) + "\n")
    return int(any(results[name]["found"] for name in PARTS if name in results))


if __name__ == "__main__":
    sys.exit(main())

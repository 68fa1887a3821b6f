"""Train layouts one after another, and print the losses of each as JSON.

The ranks are forked from this process: Megatron takes seconds to import, and a launcher would do it in every rank.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from pathlib import Path

from tests.engines.megatron_core.pretrain_gpt import read_options, train
from zenith_mimo.local_ranks import run_ranks


def losses_of(num_processes: int, options: list[str]) -> list[float]:
    """Train one layout, and return its losses."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"

        def work() -> None:
            with log.open("a") as file, contextlib.redirect_stdout(file):
                train(read_options(options))

        codes = run_ranks(num_processes, work, grace_s=10)
        if any(codes):
            raise SystemExit(f"error: {' '.join(options)} ended with {codes}")
        return [float(loss) for loss in re.findall(r"lm loss: (\S+) \|", log.read_text())]


def main() -> None:
    """Train what the arguments say: for each layout a number of processes and its options, as one word."""
    for text in sys.argv[1:]:
        num_processes, *options = text.split()
        print(json.dumps(losses_of(int(num_processes), options)), flush=True)


if __name__ == "__main__":
    main()

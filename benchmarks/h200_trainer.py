"""Studies of an ordinary script of Hugging Face's Trainer on one GPU: every weight trained, and a LoRA adapter.

    python benchmarks/h200_trainer.py --output trainer.json
    python benchmarks/h200_trainer.py --lora 16 --output lora.json
    python benchmarks/h200_trainer.py --ranks 2 --output ranks.json --strategy grid --args search=sharding,levers=none

The script is examples/trainer_train.py. Nothing is given to `zenithtune optimize` but the command, unless further
options stand here: they go to it as they are. With `--ranks` the ranks share the one GPU, and send by gloo: that says
whether they train, not how fast they would on a GPU each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from h200_study import study

SCRIPT = Path(__file__).parent.parent / "examples" / "trainer_train.py"
OPTIONS = (
    "--output_dir out --hidden 2048 --layers 8 --vocab 32000 --length 2048 --samples 4000 "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 8 --gradient_checkpointing true --bf16 "
    "--max_steps 200 --report_to none --learning_rate 1e-4"
)
"""What the user trains: a Llama of 0.6B parameters, 8 samples in an update of one rank."""
ON_ONE_GPU = f"""import os, runpy
os.environ["LOCAL_RANK"] = "0"
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def main() -> None:
    """Run the study and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    options, more = parser.parse_known_args()
    command = f"{sys.executable} {SCRIPT} {OPTIONS}"
    if options.lora:
        command += f" --lora {options.lora}"
    if options.ranks > 1:
        script = Path(tempfile.mkdtemp()) / "train.py"
        script.write_text(ON_ONE_GPU)
        launcher = f"{sys.executable} -m torch.distributed.run --nproc-per-node {options.ranks}"
        smaller = OPTIONS.replace("--hidden 2048 --layers 8", "--hidden 512 --layers 4")  # gloo sends by the host
        command = f"{launcher} {script} {smaller} --ddp_backend gloo"
    rows = study(command, more)
    packages = {name: version(name) for name in ("transformers", "accelerate")}
    rows["machine"] = {**rows["machine"], **packages}
    options.output.write_text(json.dumps({**rows, "command": command, "argv": sys.argv[1:]}, indent=1) + "\n")
    print(json.dumps(rows["summary"], indent=1))


if __name__ == "__main__":
    main()

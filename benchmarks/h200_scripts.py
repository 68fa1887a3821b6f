"""Whole studies of ordinary scripts on one GPU, from the user's own command to a confirmed faster one.

    python benchmarks/h200_scripts.py --output scripts.json --seconds 240
    python benchmarks/h200_scripts.py --output scripts.json --only grpo --keep scripts
    python benchmarks/h200_scripts.py --tiny --output scripts.json --seconds 120

The scripts: Hugging Face's Trainer with its arguments in Python, TRL's SFT with packing and GRPO (trl and datasets on
PYTHONPATH), and a plain DDP loop whose axes are named by `--space`. Each is written into a folder of its own, and
`zenithtune optimize` starts there with nothing but the command and a limit of --seconds. Whatever is given after `--`
goes to it too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h200_study import study

MODEL = """
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, num_hidden_layers=LAYERS,
                     num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=LENGTH,
                     bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD)
model = LlamaForCausalLM(config)
"""
WORDS = """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

words = {f"w{at}": at for at in range(VOCAB - 3)} | {"<pad>": PAD, "<eos>": EOS, "<unk>": VOCAB - 1}
words = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
"""
TRAINER = f"""
import torch
from transformers import Trainer, TrainingArguments
{MODEL}
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(index)
        length = int(torch.randint(LENGTH // 8, LENGTH, (1,), generator=random))
        length -= length % (LENGTH // 32)  # the first batch of each length is slow
        return {{"input_ids": torch.randint(0, VOCAB - 3, (length,), generator=random)}}


def collate(batch):
    rows = [each["input_ids"] for each in batch]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    labels = pad(rows, batch_first=True, padding_value=-100)
    return {{"input_ids": pad(rows, batch_first=True), "attention_mask": mask, "labels": labels}}


args = TrainingArguments("out", bf16=True, per_device_train_batch_size=2, gradient_accumulation_steps=8,
                         gradient_checkpointing=True, learning_rate=1e-4, num_train_epochs=1, report_to="none")
Trainer(model, args, train_dataset=Texts(), data_collator=collate).train()
model.save_pretrained("trained")
"""
SFT = f"""
import random
from trl import SFTConfig, SFTTrainer
{MODEL}{WORDS}
random.seed(0)
text = lambda: " ".join(f"w{{random.randrange(VOCAB - 3)}}" for _ in range(random.randrange(LENGTH // 16, LENGTH)))
data = Dataset.from_list([{{"text": text()}} for _ in range(SAMPLES)])
args = SFTConfig("out", bf16=True, per_device_train_batch_size=1, gradient_accumulation_steps=16, packing=True,
                 packing_strategy="wrapped", max_length=LENGTH, num_train_epochs=50, report_to="none")
SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer).train()
"""
GRPO = f"""
from trl import GRPOConfig, GRPOTrainer
{MODEL}{WORDS}
data = Dataset.from_list([{{"prompt": f"w{{at % 60}} w{{at * 7 % 60}}"}} for at in range(4096)])


def reward(completions, **more):
    return [float(len(set(each.split()))) for each in completions]


args = GRPOConfig("out", bf16=True, per_device_train_batch_size=2, gradient_accumulation_steps=16, num_generations=8,
                  max_completion_length=COMPLETION, max_steps=2000, report_to="none")
GRPOTrainer(model, reward, args, train_dataset=data, processing_class=tokenizer).train()
"""
DDP = f"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
{MODEL}
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
options = parser.parse_args()
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
device = f"cuda:{{os.environ['LOCAL_RANK']}}" if cuda else "cpu"


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(0.002)  # reading and tokenizing
        return torch.randint(0, VOCAB - 3, (LENGTH,), generator=torch.Generator().manual_seed(index))


sampler = torch.utils.data.distributed.DistributedSampler(Texts())
loader = torch.utils.data.DataLoader(Texts(), options.batch_size, sampler=sampler, num_workers=options.workers)
model = DistributedDataParallel(model.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step, tokens in enumerate(loader):
    tokens = tokens.to(device)
    with torch.autocast(device.partition(":")[0], torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(f"step {{step}} loss {{loss.item():.4f}}", flush=True)
torch.save(model.module.state_dict(), "model.pt")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script, and how its user tunes it."""

    text: str
    command: str = "PYTHON train.py"
    options: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes where they differ from those of the others."""


SPACE = ["--space", "batch-size=2,8,32", "--space", "workers=0,4"]
TORCHRUN = "PYTHON -m torch.distributed.run --nproc-per-node 1 train.py --batch-size 2 --workers 0"
SCRIPTS = {
    "trainer": Script(text=TRAINER),
    "sft": Script(text=SFT),
    "grpo": Script(text=GRPO, sizes={"LAYERS": 6}),
    "ddp": Script(text=DDP, command=TORCHRUN, options=SPACE),
}
SIZES = {"VOCAB": 32000, "HIDDEN": 2048, "LAYERS": 8, "HEADS": 16, "LENGTH": 2048, "SAMPLES": 2000, "COMPLETION": 64}
TINY = {"VOCAB": 64, "HIDDEN": 32, "LAYERS": 1, "HEADS": 4, "LENGTH": 32, "SAMPLES": 400, "COMPLETION": 4}


def main() -> None:
    """Run the studies, and write the file after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240.0, help="the limit of each study")
    parser.add_argument("--only", choices=SCRIPTS, nargs="*", default=list(SCRIPTS))
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script on a CPU")
    parser.add_argument("--keep", type=Path, help="where to keep each study's own study.json")
    options, more = parser.parse_known_args()
    found: dict[str, Any] = {"argv": sys.argv[1:], "studies": {}}
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            found["studies"][name] = tuned(name, Path(folder), options, [each for each in more if each != "--"])
        print(name, json.dumps(found["studies"][name]["summary"], indent=1), flush=True)
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def tuned(name: str, folder: Path, options: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """Return the rows of the study of a script."""
    script = SCRIPTS[name]
    text, sizes = script.text, TINY if options.tiny else SIZES | script.sizes
    for size, value in {**sizes, "PAD": sizes["VOCAB"] - 3, "EOS": sizes["VOCAB"] - 2}.items():
        text = text.replace(size, str(value))
    if options.tiny:
        text = text.replace("bf16=True", "bf16=False, use_cpu=True")
    (folder / "train.py").write_text(text.lstrip(), encoding="utf-8")
    kept = None
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        kept = options.keep / f"{name}.json"
    command = script.command.replace("PYTHON", sys.executable)
    limit = ["--max-hours", f"{options.seconds / 3600:.4f}"]
    start = time.monotonic()
    rows = study(command, [*limit, *script.options, *more], kept, cwd=folder, limit_s=options.seconds + 60)
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    left = sorted(str(path.relative_to(folder)) for path in folder.iterdir())
    return {**rows, "command": command, "options": script.options, "folder_after": left}


if __name__ == "__main__":
    main()

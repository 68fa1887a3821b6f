"""Train a Llama that is made from a configuration with Hugging Face's Trainer, on random samples of many lengths.

    python examples/trainer_train.py --output_dir out --max_steps 20 --per_device_train_batch_size 1 --use_cpu
    python examples/trainer_train.py --output_dir out --hidden 2048 --layers 16 --length 2048 --bf16 --lora 16

An ordinary script: its options are those of TrainingArguments and a few of its own. `--lora RANK` trains an adapter (by
peft) in place of the whole model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


@dataclass
class ModelOptions:
    """The model and its samples."""

    hidden: int = field(default=64, metadata={"help": "width of the model"})
    layers: int = field(default=2, metadata={"help": "number of layers"})
    vocab: int = field(default=256, metadata={"help": "size of the vocabulary"})
    length: int = field(default=64, metadata={"help": "tokens of the longest sample"})
    samples: int = field(default=1000, metadata={"help": "samples in the dataset"})
    lora: int = field(default=0, metadata={"help": "rank of a LoRA adapter; 0 trains every weight"})


class RandomSamples(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; most samples are a quarter to three quarters as long as the longest."""

    def __init__(self, options: ModelOptions) -> None:
        self.vocab = options.vocab
        draw = torch.randn(options.samples, generator=torch.Generator().manual_seed(0))
        self.lengths = ((0.5 + 0.25 * draw) * options.length).clamp(8, options.length).int().tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(1, self.vocab, (self.lengths[index],), generator=random)}


def padded(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return a batch as long as its longest sample."""
    tokens = [sample["input_ids"] for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(tokens, batch_first=True),
        "attention_mask": pad([torch.ones_like(each) for each in tokens], batch_first=True),
        "labels": pad(tokens, batch_first=True, padding_value=-100),
    }


def main() -> None:
    """Train."""
    options, arguments = HfArgumentParser((ModelOptions, TrainingArguments)).parse_args_into_dataclasses()
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=max(options.hidden // 128, 2),
        num_key_value_heads=max(options.hidden // 512, 1),
        vocab_size=options.vocab,
        max_position_embeddings=options.length,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = LlamaForCausalLM(config)
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=options.lora, target_modules="all-linear", task_type="CAUSAL_LM"))
        model.enable_input_require_grads()
    Trainer(model=model, args=arguments, train_dataset=RandomSamples(options), data_collator=padded).train()


if __name__ == "__main__":
    main()

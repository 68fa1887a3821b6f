"""The configuration of a recipe of Megatron-Bridge, as options of Megatron-LM, and options as overrides of it.

A recipe is Python: what it sets is known by the YAML that `run_recipe.py` prints before it trains, or saves at
`logger.save_config_filepath`. Its fields are Megatron's arguments by the same names, in sections; what differs is in
the tables here (Megatron-Bridge 0.7, main of 2026-08-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from zenith_tune.describe.megatron.pipeline import LAYOUT
from zenith_tune.presets.megatron.options import SHARDING, VIRTUAL, Wanted
from zenith_tune.presets.megatron.overlap import OPTION as MODULES
from zenith_tune.presets.shared.training_files import read_yaml
from zenith_tune.study.parameters import Value

SECTIONS = ("model", "model.transformer", "train", "ddp", "optimizer")
"""Where its arguments stand; some models keep those of Megatron's core one level deeper."""
OPTIMIZER_SHARDING = "optimizer.use_distributed_optimizer"
"""Either of both sections turns the distributed optimizer on."""
SCHEDULED = "comm_overlap"
"""A section that decides about messages where it is given, whatever the others say."""
FIELDS = {
    VIRTUAL: "virtual_pipeline_model_parallel_size",
    "--decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--num-experts": "num_moe_experts",
    "--swiglu": "gated_linear_unit",
    "--ddp-bucket-size": "bucket_size",
}
"""Fields that have another name than their option."""
INVERSE = {
    "--untie-embeddings-and-output-weights": "share_embeddings_and_output_weights",
    "--disable-bias-linear": "add_bias_linear",
    "--no-rope-fusion": "apply_rope_fusion",
    "--no-masked-softmax-fusion": "masked_softmax_fusion",
    "--no-bias-dropout-fusion": "bias_dropout_fusion",
    "--no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
    "--grad-reduce-in-bf16": "grad_reduce_in_fp32",
}
"""Fields that their option turns off."""
OPTION_OF = {field: option for option, field in FIELDS.items()}
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
NULL = "null"
_DUMP = re.compile(r"^(_target_: \S*ConfigContainer\n(?:.+\n)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RecipeConfig:
    """The values of a configuration by their paths, such as model.num_layers."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Read a YAML; None of what is no configuration of Megatron-Bridge."""
        try:
            found = read_yaml(text)
        except ValueError:
            return None
        is_config = isinstance(found, dict) and isinstance(found.get("model"), dict)
        return cls(dict(_paths(found))) if is_config and isinstance(found.get("train"), dict) else None

    @classmethod
    def in_log(cls, log: str) -> Self | None:
        """Read what a log prints between its own lines; None where there is none."""
        found = _DUMP.search(log)
        return cls.of(found[1]) if found else None

    def key(self, option: str) -> str | None:
        """Return by which override an option is set; None where the configuration has no place for it."""
        name = FIELDS.get(option) or INVERSE.get(option) or option[2:].replace("-", "_")
        if f"{SCHEDULED}.{name}" in self.values:
            return None
        found = next((path for section in SECTIONS if (path := f"{section}.{name}") in self.values), None)
        # What is no plain value, such as a type of torch, has no override.
        return None if found is None or isinstance(self.values[found], dict) else found

    def get(self, name: str) -> Any:
        """Return the value of a field, whichever section it is in."""
        return next((self.values[path] for section in SECTIONS if (path := f"{section}.{name}") in self.values), None)

    def flags(self) -> list[str]:
        """Return it as the options of a command that runs Megatron-LM."""
        words = [word for path, value in self.values.items() if self._counts(path) for word in _flag(path, value)]
        words += [option for option, field in INVERSE.items() if self.get(field) is False]
        groups, heads = self.get("num_query_groups"), self.get("num_attention_heads")
        words += ["--group-query-attention"] if groups and groups != heads else []
        if self.get("vocab_size") is None and (vocab := self.values.get("tokenizer.vocab_size")):
            words += ["--vocab-size", str(vocab)]
        return [*words, *self._precision()]

    def _counts(self, path: str) -> bool:
        """Return whether a field stands for an option: defaults of what a job does not use do not."""
        section, _, name = path.rpartition(".")
        if name.startswith(("expert_", "moe_")) and not self.get("num_moe_experts"):
            return False
        is_used = name != "recompute_modules" or self.get("recompute_granularity") == "selective"
        return is_used and section in SECTIONS and name not in INVERSE.values() and not name.startswith("_")

    def _precision(self) -> list[str]:
        mixed = str(self.values.get("mixed_precision") or "")  # the name of a recipe of its own, or a section
        is_bf16 = "bf16" in mixed or self.values.get("mixed_precision.bf16") is True
        fp8 = self.values.get("mixed_precision.fp8") or ("hybrid" if "fp8" in mixed else None)
        recipe = "mxfp8" if "mxfp8" in mixed else self.values.get("mixed_precision.fp8_recipe")
        words = ["--bf16"] if is_bf16 and not self.get("bf16") else []
        words += ["--fp8-format", str(fp8)] if fp8 else []
        return [*words, "--fp8-recipe", str(recipe)] if fp8 and recipe else words

    def overrides(self, wanted: Wanted) -> dict[str, Value]:
        """Return options as overrides; those that must not be there are off, or nothing."""
        found: dict[str, Value] = {}
        for option, value in wanted.items():
            key = self.key(option)
            if key is not None:
                found[key] = (value is None) if option in INVERSE else _written(option, value, self.values[key])
            if option == SHARDING and OPTIMIZER_SHARDING in self.values:
                found[OPTIMIZER_SHARDING] = bool(value)
        return found

    def fault(self, asked: Mapping[str, Value]) -> str | None:
        """Return in one line which override did not arrive."""
        for key, wanted in asked.items():
            held = self.values.get(key)
            if _text(held) != _text(wanted):
                return f"the run was configured with {key}={_text(held)}, where {_text(wanted)} was asked for"
        return None


def _paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and "_call_" not in value:
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _flag(path: str, value: Any) -> list[str]:
    name = path.rpartition(".")[2]
    option = OPTION_OF.get(name, f"--{name.replace('_', '-')}")
    if not value or value == "none":  # Megatron has no option for what is off
        return []
    if value is True:
        return [option]
    if isinstance(value, list):
        return _listed(option, value)
    return [option, str(value)] if isinstance(value, (int, float, str)) else []


def _listed(option: str, value: list[Any]) -> list[str]:
    """Return a list as Megatron's command line has it: stages as letters, names one by one, numbers in brackets."""
    if option == LAYOUT:
        stages = [stage if isinstance(stage, list) else [stage] for stage in value]
        return [option, "|".join("".join(LETTERS.get(str(each), "") for each in stage) for stage in stages)]
    return [option, *value] if all(isinstance(each, str) for each in value) else [option, str(value)]


def _written(option: str, value: Value | None, held: Any) -> Value:
    if value is None:
        return False if isinstance(held, bool) else NULL
    if option == LAYOUT:
        return f'"{value}"'  # its letters are part of the grammar of overrides
    return f"[{value}]" if option == MODULES else value


def _text(value: Any) -> str:
    """Return a value in one spelling, as a YAML or an override has it."""
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return NULL if value is None else str(value).lower() if isinstance(value, bool) else str(value).strip('"')

"""Measures a merge of a large checkpoint: random weights in TP 2 x PP 2 shards, joined by the command under a limit.

`zenithtune checkpoint merge` may use a small part of the checkpoint as memory of its own: resident pages that are of no
file (RssAnon), looked at every few milliseconds; mapped files do not count, as the kernel takes their pages back.
Weights of every kind are then compared with what was generated for each rank, joined here by hand. The data lies in a
folder that is removed at the end; it needs twice the size of the checkpoint.

    python benchmarks/checkpoint_merge.py --gib 20 --output benchmarks/results/checkpoint_merge-2026-11-15.json
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TP, PP, QUERIES_PER_GROUP = 2, 2, 4
MIB, GIB = 2**20, 2**30
POLL_S = 0.05
Weights = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model shaped like Llama: grouped queries, a gated MLP, an output layer of its own."""

    hidden: int
    num_layers: int

    @property
    def vocab(self) -> int:
        """Entries, a multiple of 128 x TP so that nothing is padded."""
        return 8 * self.hidden

    def layer(self) -> dict[str, tuple[int, ...]]:
        """Return what one tensor rank holds of a layer."""
        h, ffn = self.hidden, 7 * self.hidden // 2
        qkv = h + 2 * h // QUERIES_PER_GROUP
        return {
            "self_attention.linear_qkv.layer_norm_weight": (h,),
            "self_attention.linear_qkv.weight": (qkv // TP, h),
            "self_attention.linear_proj.weight": (h, h // TP),
            "mlp.linear_fc1.weight": (2 * ffn // TP, h),
            "mlp.linear_fc2.weight": (h, ffn // TP),
        }

    def stage(self, stage: int) -> dict[str, tuple[int, ...]]:
        """Return what one tensor rank of a stage holds, its layers numbered from 0."""
        per_stage = self.num_layers // PP
        held = {f"decoder.layers.{i}.{name}": dims for i in range(per_stage) for name, dims in self.layer().items()}
        if stage == 0:
            return {"embedding.word_embeddings.weight": (self.vocab // TP, self.hidden), **held}
        ends = {
            "decoder.final_layernorm.weight": (self.hidden,),
            "output_layer.weight": (self.vocab // TP, self.hidden),
        }
        return {**held, **ends}


def sized(gib: float, hidden: int) -> Shape:
    """Return the smallest model of at least so many GiB in bf16."""
    one = Shape(hidden=hidden, num_layers=PP)
    ends = 2 * 2 * one.vocab * hidden
    layer = 2 * TP * sum(math.prod(dims) for dims in one.layer().values())
    wanted = math.ceil(max(gib * GIB - ends, 0) / layer)
    return Shape(hidden=hidden, num_layers=max(PP, -(-wanted // PP) * PP))


def weights(stage: int, rank: int, name: str, dims: tuple[int, ...]) -> Weights:
    """Return random bits, the same for every rank where a weight is whole on all of them."""
    seed = [zlib.crc32(name.encode()), stage, rank if len(dims) > 1 else 0]
    bits = np.random.SFC64(seed).random_raw(-(-math.prod(dims) // 4))
    return np.asarray(bits).view(np.uint16)[: math.prod(dims)].reshape(dims)


def write_shards(folder: Path, shape: Shape) -> None:
    """Write the shards of all ranks."""
    folder.mkdir()
    for stage in range(PP):
        held, header, end = shape.stage(stage), {}, 0
        for name, dims in held.items():
            start, end = end, end + 2 * math.prod(dims)
            header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        for rank in range(TP):
            with (folder / f"pytorch_model_tp_{rank}_pp_{stage}.safetensors").open("wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for name, dims in held.items():
                    file.write(weights(stage, rank, name, dims).data)


def joined(stage: int, name: str, dims: tuple[int, ...]) -> Weights:
    """Return a weight of the whole model, as Megatron-LM's parallel layers define it."""
    parts = [weights(stage, rank, name, dims) for rank in range(TP)]
    if len(dims) == 1:
        return parts[0]
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return np.concatenate(parts, axis=1)
    if name.endswith("linear_fc1.weight"):
        gates, ups = zip(*(np.split(part, 2) for part in parts), strict=True)
        return np.concatenate([*gates, *ups])
    return np.concatenate(parts)


def checked(path: Path, shape: Shape) -> Iterator[tuple[str, bool]]:
    """Yield the names of sampled weights, and whether each is bit for bit what it should be."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    per_stage = shape.num_layers // PP
    for stage in range(PP):
        sampled = {0, per_stage // 2, per_stage - 1}
        for name, dims in shape.stage(stage).items():
            words = name.split(".")
            if words[1] == "layers":
                if int(words[2]) not in sampled:
                    continue
                words[2] = str(stage * per_stage + int(words[2]))
            entry = header[".".join(words)]
            start, _ = entry["data_offsets"]
            expected = joined(stage, name, dims)
            found = np.memmap(path, np.uint16, "r", 8 + length + start, tuple(entry["shape"]))
            yield ".".join(words), bool(np.array_equal(found, expected))


def merge(command: list[str], limit_bytes: int) -> dict[str, Any]:
    """Run the command, end it where it uses more memory of its own than the limit, and return its figures."""
    begin, peak_bytes = time.perf_counter(), 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        peak_bytes = max(peak_bytes, own_bytes(process.pid))
        if peak_bytes > limit_bytes:
            process.kill()
            process.wait()
            raise SystemExit(f"the merge used more than {limit_bytes // MIB} MiB")
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"the merge failed with status {process.returncode}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": time.perf_counter() - begin,
        "user_s": used.ru_utime,
        "system_s": used.ru_stime,
        "peak_rss_mib": peak_bytes / MIB,
    }


def own_bytes(pid: int) -> int:
    """Return the memory of a process without pages of files, which the kernel takes back when it needs them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Generate, merge and compare in a folder; return all figures."""
    shape, source, output = sized(options.gib, options.hidden), folder / "shards", folder / "model.safetensors"
    begin = time.perf_counter()
    write_shards(source, shape)
    generate_s = time.perf_counter() - begin
    arguments = ["checkpoint", "merge", str(source), "--output", str(output)]
    figures = merge([sys.executable, "-m", "zenith_tune.cli.main", *arguments], options.limit_mib * MIB)
    compared = dict(checked(output, shape))
    size = output.stat().st_size
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "zenith_tune": version("zenith-tune"),
        "numpy": version("numpy"),
        "command": f"zenithtune checkpoint merge {source.name} --output {output.name}",
        "layout": f"TP {TP} PP {PP}",
        "hidden": shape.hidden,
        "num_layers": shape.num_layers,
        "merged_gib": size / GIB,
        "limit_mib": options.limit_mib,
        "generate_s": generate_s,
        **figures,
        "mib_per_s": size / MIB / figures["wall_s"],
        "compared": len(compared),
        "different": [name for name, is_equal in compared.items() if not is_equal],
    }


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the checkpoint, at least (default: 1)")
    parser.add_argument("--hidden", type=int, default=4096, help="hidden size, a multiple of 1024 (default: 4096)")
    parser.add_argument("--limit-mib", type=int, default=512, help="own memory of the merge (default: 512)")
    parser.add_argument("--folder", type=Path, help="where the data lies meanwhile (default: the temporary folder)")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measured(Path(folder), options)
    for name, value in figures.items():
        print(f"{name:14} {value}")
    if options.output:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    if figures["different"]:
        raise SystemExit("weights differ")


if __name__ == "__main__":
    main()

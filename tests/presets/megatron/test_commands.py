"""Commands as people run them, and what is read from each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_folder import measured_data
from tests.mentions import mentions
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.job import MegatronJob, MegatronLmOverrides, read_job

LLAMA3_8B = """CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 1000000 --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu
    --normalization RMSNorm --attention-backend fused --untie-embeddings-and-output-weights --disable-bias-linear
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000 --lr 0.00015 --bf16
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tensor-model-parallel-size 2
    --sequence-parallel --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 --log-interval 1""".replace(
    "\n", " "
)
MIXTRAL = """torchrun --nproc-per-node=8 --nnodes=8 --node-rank=$RANK /opt/Megatron-LM/pretrain_gpt.py
    --disable-bias-linear --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 --hidden-size 4096
    --ffn-hidden-size 14336 --num-attention-heads 32 --normalization RMSNorm --position-embedding-type rope --swiglu
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 --no-position-embedding
    --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER} --data-path x --split 99990,8,2
    --micro-batch-size 1 --global-batch-size 256 --train-iters 500000 --bf16 --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --expert-model-parallel-size 8
    --use-distributed-optimizer --sequence-parallel --recompute-activations""".replace("\n", " ")
DEEPSEEK_V3 = """torchrun --nproc-per-node 8 --nnodes 32 pretrain_gpt.py --transformer-impl transformer_engine
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 8 --expert-model-parallel-size 32
    --expert-tensor-parallel-size 1 --context-parallel-size 1 --use-distributed-optimizer --sequence-parallel
    --pipeline-model-parallel-layout 'Et*3|(tt|)*29m|L' --disable-bias-linear --micro-batch-size 1
    --global-batch-size 2048 --recompute-granularity selective --recompute-modules mla_up_proj layernorm
    --seq-length 4096 --tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
    --max-position-embeddings 4096 --position-embedding-type rope --make-vocab-size-divisible-by 3232
    --normalization RMSNorm --swiglu --untie-embeddings-and-output-weights --multi-latent-attention --qk-layernorm
    --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8 --moe-token-dispatcher-type flex
    --moe-grouped-gemm --moe-router-score-function sigmoid --moe-router-enable-expert-bias --q-lora-rank 1536
    --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --mtp-num-layers 1 --bf16
    --fp8-format e4m3 --fp8-recipe mxfp8""".replace("\n", " ")
ONE_H200 = """torchrun --nproc-per-node 1 pretrain_gpt.py --transformer-impl local --no-persist-layer-norm
    --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-rope-fusion --mock-data
    --tokenizer-type NullTokenizer --vocab-size 128256 --bf16 --log-throughput --log-interval 1 --eval-iters 0
    --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention
    --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --position-embedding-type rope --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1
    --global-batch-size 16 --train-iters 7""".replace("\n", " ")


def read(command: str, **given: int | str) -> MegatronJob:
    return read_job(command, MegatronLmOverrides(**given))  # type: ignore[arg-type]


def test_a_llama_3_command_is_read_as_that_model() -> None:
    job = read(LLAMA3_8B)
    assert job.model == load_model("llama3-8b")
    assert (job.job.seq_len, job.job.precision, job.job.framework.name) == (8192, "bf16", "megatron")
    assert job.start == Layout(num_gpus=8, tp=2, etp=1, micro_batch=1, global_batch=128, zero=1, sequence_parallel=True)


def test_a_mixtral_command_is_read_with_its_experts_and_chunks() -> None:
    job = read(MIXTRAL)
    assert job.model == load_model("mixtral-8x7b")
    assert job.start == Layout(
        num_gpus=64, pp=4, ep=8, etp=1, vp=2, micro_batch=1, global_batch=256, zero=1, recompute="selective"
    )


def test_a_deepseek_command_is_read_but_for_the_vocabulary_that_its_tokenizer_has() -> None:
    job = read(DEEPSEEK_V3)
    known = load_model("deepseek-v3")
    assert job.model is not None and job.model.vocab == 0
    tables = 2 * known.vocab * known.hidden
    assert job.model.num_params == known.num_params - tables
    assert read(DEEPSEEK_V3, vocab=known.vocab).model == known
    assert (job.job.precision, job.job.dispatcher) == ("mxfp8", "flex")
    assert job.start == Layout(
        num_gpus=256,
        tp=2,
        pp=8,
        ep=32,
        vp=4,
        micro_batch=1,
        global_batch=2048,
        zero=1,
        recompute="selective",
        sequence_parallel=True,
    )


def test_the_command_of_one_h200_is_read_as_megatron_without_transformer_engine() -> None:
    job = read(ONE_H200)
    assert job.model is not None
    assert (job.model.name, job.model.num_params) == ("llama-like 1.5B", 1_498_482_688)
    assert (job.job.framework.name, job.job.seq_len) == ("megatron-local", 4096)
    assert job.start == Layout(num_gpus=1, global_batch=16, flash_attention=False)


def test_the_model_of_that_command_is_the_one_that_was_measured() -> None:
    text = (measured_data() / "h200" / "hf_accelerate.csv").read_text()
    model = read(ONE_H200).model
    assert model is not None and f",{model.num_params}," in text.splitlines()[1]


def test_what_the_user_says_stands_in_for_what_the_command_does_not() -> None:
    bare = "torchrun pretrain_gpt.py --use-checkpoint-args --load x --seq-length 4096 --micro-batch-size 2 --bf16"
    job = read(bare, n_gpus=16, model="llama3-8b")
    assert job.model == load_model("llama3-8b")
    assert (job.start.num_gpus, job.start.global_batch, job.start.micro_batch) == (16, 32, 2)
    assert read(bare, n_gpus=16, gbs=64, model="llama3-8b").start.global_batch == 64


def test_experts_are_cut_as_the_dense_layers_are_where_nothing_is_said() -> None:
    command = MIXTRAL.replace("--tensor-model-parallel-size 1", "--tensor-model-parallel-size 4")
    assert read(command).start.etp == 4
    assert read(f"{command} --expert-tensor-parallel-size 2").start.etp == 2
    assert read(LLAMA3_8B).start.etp == 1


@pytest.mark.parametrize(
    ("options", "recompute", "layers"),
    [
        ("", "none", 0),
        ("--recompute-activations", "selective", 0),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 4", "full/block", 4),
        ("--recompute-granularity full --recompute-method uniform", "full/uniform", 1),
        # Megatron lets the short form win.
        ("--recompute-granularity full --recompute-activations", "selective", 0),
    ],
)
def test_recomputation_is_read_in_all_its_forms(options: str, recompute: str, layers: int) -> None:
    start = read(f"{LLAMA3_8B} {options}").start
    assert (start.recompute, start.recompute_layers) == (recompute, layers)


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        ("--num-virtual-stages-per-pipeline-rank 4", 4),
        ("--num-layers-per-virtual-pipeline-stage 2", 4),
        ("--pipeline-model-parallel-layout 'Et*2|(t*3|)*10L'", 3),
        ("--pipeline-model-parallel-layout 'Et|(t*10|)*2,t*11L'", 1),
    ],
)
def test_chunks_are_read_in_whichever_way_the_command_says_them(options: str, chunks: int) -> None:
    assert read(f"{LLAMA3_8B} --pipeline-model-parallel-size 4 {options}").start.vp == chunks


def test_the_job_has_the_stages_that_its_command_writes_down() -> None:
    stages = "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*7|(t*9|)*2,t*7L'"
    own = read(f"{LLAMA3_8B} {stages}").job.framework.own_pipeline
    assert own is not None and own.layers == (7, 9, 9, 7)
    with pytest.raises(UsageError):
        read(f"{LLAMA3_8B} {stages.replace('t*7L', 't*8L')}")


SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --seq-length 128"


@pytest.mark.parametrize(
    ("command", "given", "problem", "hint"),
    [
        (
            f"srun -N 2 python pretrain_gpt.py {SHAPE} --micro-batch-size 1",
            {},
            ("the number of GPUs", "the command does not say"),
            ("--gpus 8", "--nproc-per-node 8"),
        ),
        (
            f"torchrun --nproc-per-node gpu pretrain_gpt.py {SHAPE} --micro-batch-size 1",
            {},
            ("the number of GPUs", "the command does not say"),
            ("--gpus 8", "--nproc-per-node 8"),
        ),
        (
            f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE}",
            {},
            ("--global-batch-size",),
            ("--gbs 256",),
        ),
        (
            f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} --micro-batch-size 1",
            {"n_gpus": 4},
            ("n_gpus", 4, 8),
            ("n_gpus",),
        ),
        (
            "torchrun --nproc-per-node 8 pretrain_gpt.py --use-checkpoint-args --seq-length 128",
            {},
            ("--num-layers, --hidden-size, --num-attention-heads",),
            ("--model llama3-8b", "config.json"),
        ),
        (
            f"torchrun --nproc-per-node 8 pretrain_gpt.py {SHAPE} --micro-batch-size 1 "
            "--tensor-parallel-num-weight-shards 2",
            {},
            ("--tensor-parallel-num-weight-shards",),
            ("--preset megatron",),
        ),
        (
            "torchrun --nproc-per-node 8 pretrain_t5.py",
            {},
            ("pretrain_t5.py",),
            ("--preset megatron",),
        ),
        (
            "bash nowhere.sh",
            {},
            ("pretrain_*.py", "none"),
            ("--preset",),
        ),
    ],
)
def test_what_is_missing_is_reported_in_one_line(
    command: str, given: dict[str, int], problem: tuple[object, ...], hint: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        read(command, **given)
    assert mentions(caught.value.problem, *problem) and mentions(caught.value.hint, *hint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "n_gpus"),
    [
        ("torchrun --nproc-per-node 8 pretrain_gpt.py", 8),
        ("torchrun --nproc_per_node=4 --nnodes=16 pretrain_gpt.py", 64),
        ("python -m torch.distributed.run --nproc-per-node 2 --nnodes 3 pretrain_gpt.py", 6),
        ("WORLD_SIZE=64 RANK=0 LOCAL_RANK=0 python pretrain_gpt.py --fake-process-group", 64),
        ("export WORLD_SIZE=16; srun python pretrain_gpt.py", 16),
        ("GPUS=8; NODES=2; torchrun --nproc-per-node $GPUS --nnodes ${NODES} pretrain_gpt.py", 16),
        ("bash -c 'torchrun --nproc-per-node 8 pretrain_gpt.py'", 8),
    ],
)
def test_gpus_are_counted_by_what_starts_them(command: str, n_gpus: int) -> None:
    whole = command.replace("pretrain_gpt.py", f"pretrain_gpt.py {SHAPE} --micro-batch-size 1")
    assert read(whole).start.num_gpus == n_gpus


def test_the_world_size_of_the_tuners_own_machine_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="--gpus 8"):
        read(f"srun python pretrain_gpt.py {SHAPE} --micro-batch-size 1")


def test_a_command_in_a_script_is_read_like_one_that_is_written_out(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(LLAMA3_8B + ' "$@"\n')
    assert read(f"bash {script}").start == read(LLAMA3_8B).start
    assert read(f"bash {script}").model == read(LLAMA3_8B).model

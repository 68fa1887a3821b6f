"""Models and jobs that the tests of layouts share; no file is read."""

from __future__ import annotations

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec

LLAMA_70B = ModelSpec(
    name="llama3-70b",
    num_layers=80,
    hidden=8192,
    ffn_hidden=28672,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    vocab=128256,
)
LLAMA_405B = ModelSpec(
    name="llama3-405b",
    num_layers=126,
    hidden=16384,
    ffn_hidden=53248,
    num_heads=128,
    num_kv_heads=8,
    head_dim=128,
    vocab=128256,
)
MIXTRAL = ModelSpec(
    name="mixtral-8x7b",
    num_layers=32,
    hidden=4096,
    ffn_hidden=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab=32000,
    num_experts=8,
    top_k=2,
    moe_ffn_hidden=14336,
)
GPT_OSS = ModelSpec(
    name="gpt-oss-20b",
    num_layers=24,
    hidden=2880,
    ffn_hidden=2880,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    vocab=201088,
    linear_bias=True,
    num_experts=32,
    top_k=4,
    moe_ffn_hidden=2880,
)
DEEPSEEK_V3 = ModelSpec(
    name="deepseek-v3",
    num_layers=61,
    hidden=7168,
    ffn_hidden=18432,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    vocab=129280,
    num_experts=256,
    top_k=8,
    moe_ffn_hidden=2048,
    num_mtp_layers=1,
)
MODELS = (LLAMA_70B, MIXTRAL, LLAMA_405B, GPT_OSS)


def job(framework: str = "megatron", seq_len: int = 8192) -> JobSpec:
    return JobSpec(seq_len=seq_len, framework=FrameworkSpec(name=framework))

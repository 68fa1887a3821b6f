#!/usr/bin/env bash
# An ordinary Megatron-LM command for a Llama of 1.5 billion parameters, set up cautiously: tensor parallelism over four
# GPUs, a micro-batch of 1. pretrain_gpt.py in this folder only pretends, so that it runs anywhere.
export WORLD_SIZE=8 CUDA_DEVICE_MAX_CONNECTIONS=1
exec python "$(dirname "$0")/pretrain_gpt.py" \
  --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 4096 --max-position-embeddings 4096 \
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
  --untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --attention-backend flash \
  --tensor-model-parallel-size 4 --sequence-parallel --micro-batch-size 1 --global-batch-size 32 \
  --train-iters 12 --log-interval 1 "$@"

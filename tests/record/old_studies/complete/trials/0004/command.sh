#!/usr/bin/env bash
python train.py --train-iters 6 --iteration-seconds 0.05 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --micro-batch-size 1 --global-batch-size 16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --vit-gradient-checkpointing true

#!/usr/bin/env bash
python train.py --train-iters 6 --iteration-seconds 0.05

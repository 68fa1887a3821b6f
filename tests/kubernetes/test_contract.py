"""Holds trials on Kubernetes to the contract of runners, as TrainJobs and as Jobs."""

from __future__ import annotations

import pytest

from tests.kubernetes.standin_cluster import StandInCluster
from zenith_kubernetes.runner import KubernetesRunner
from zenith_tune.testing import RunnerContract


class TestTrainJobs(RunnerContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, shared_cluster: StandInCluster) -> None:
        self.cluster = shared_cluster

    def make(self) -> KubernetesRunner:
        return self.cluster.runner()


@pytest.mark.slow
class TestJobs(TestTrainJobs):
    def make(self) -> KubernetesRunner:
        return self.cluster.runner(image="train")

"""Holds trials on Kubernetes to the contract of runners, as TrainJobs and as Jobs."""

from __future__ import annotations

import pytest

from tests.kubernetes.real_cluster import RealCluster
from tests.kubernetes.standin_cluster import StandInCluster
from zenith_kubernetes.runner import KubernetesRunner
from zenith_tune.testing import RunnerContract


@pytest.mark.slow
class TestTrainJobs(RunnerContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, shared_cluster: StandInCluster) -> None:
        self.cluster: StandInCluster | RealCluster = shared_cluster

    def make(self) -> KubernetesRunner:
        return self.cluster.runner()


@pytest.mark.own_environment
class TestTrainJobsOfARealServer(TestTrainJobs):
    @pytest.fixture(autouse=True)
    def _cluster(self, real_cluster: RealCluster) -> None:
        self.cluster = real_cluster


class TestJobsOfARealServer(TestTrainJobsOfARealServer):
    def make(self) -> KubernetesRunner:
        return self.cluster.runner(image="train")

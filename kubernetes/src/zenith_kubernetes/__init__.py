"""Trials as jobs of Kubernetes: Kubeflow TrainJobs, or indexed Jobs where there is no Kubeflow."""

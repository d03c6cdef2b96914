#!/bin/sh
# Makes this machine a node of a cluster that kubeadm made: join.sh ADMIN-KUBECONFIG TOKEN LABELS TAINTS
# The token is what "kubeadm token create" prints. The rest comes from the cluster: where it is, its authority, how its nodes are
# configured. nodelet must be installed from its package.
set -eu
export KUBECONFIG=$1
token=$2 labels=$3 taints=$4
umask 077
conf=/etc/kubernetes/bootstrap-kubelet.conf
mkdir -p /etc/kubernetes/pki /var/lib/kubelet
kubectl -n kube-public get configmap cluster-info -o 'jsonpath={.data.kubeconfig}' > $conf
kubectl --kubeconfig=$conf config set-credentials bootstrap --token="$token"
kubectl --kubeconfig=$conf config set-context bootstrap --cluster="" --user=bootstrap
kubectl --kubeconfig=$conf config use-context bootstrap
kubectl --kubeconfig=$conf config view --raw -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}' |
  base64 -d > /etc/kubernetes/pki/ca.crt
kubectl -n kube-system get configmap kubelet-config -o 'jsonpath={.data.kubelet}' > /var/lib/kubelet/config.yaml
# As kubeadm join does: /etc/resolv.conf names the stub of systemd-resolved, which pods cannot reach.
if ! grep -q '^resolvConf:' /var/lib/kubelet/config.yaml && systemctl is-active -q systemd-resolved; then
  printf '\nresolvConf: /run/systemd/resolve/resolv.conf\n' >> /var/lib/kubelet/config.yaml
fi
args="--config=/var/lib/kubelet/config.yaml --bootstrap-kubeconfig=$conf --kubeconfig=/etc/kubernetes/kubelet.conf"
echo "NODELET_ARGS=$args --node-labels=$labels --register-with-taints=$taints" > /etc/default/nodelet
systemctl enable --now nodelet

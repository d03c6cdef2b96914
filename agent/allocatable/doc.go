// Package allocatable enforces Node Allocatable: it limits the cgroups of all pods together to what the reservations
// leave, and the reserved cgroups to their reservations (KubeletConfiguration enforceNodeAllocatable).
//
// It owns the limits of these cgroups. It never decides how much is allocatable (kube/node does), and never touches the
// cgroups of single pods. cmd/nodelet calls Setup before the first pod starts, and runs Run. The cgroups outlast the
// agent; the next start sets them again.
package allocatable

// Package placement gives containers CPUs and memory of their own, as the CPU, memory and topology managers of the
// kubelet do. All decisions are made in package policy and those below it, which are pure.
//
// It owns who has which CPUs and which memory, and writes that to the kubelet's files cpu_manager_state and
// memory_manager_state before a pod is admitted. It also keeps containers that use the shared pool on the CPUs that
// are left to it. For the supervisor, which owns what pods hold in all, it reads and writes allocated_pods_state. It
// never decides whether a pod fits the node (agent/admission does), and never creates a container.
//
// The supervisor calls it when it admits a pod, workers ask it what a container gets, the pod resources API shows it,
// and cmd/nodelet runs it. With all policies off a Manager admits each pod and gives nothing: no goroutine and no file.
//
// A crash leaves the files. What a pod has that was never admitted, or has ended, is given back by the next run.
package placement

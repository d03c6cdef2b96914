package placement

import (
	"context"
	"fmt"
	"io/fs"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/placement/numa"
	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/host/topology"
	"github.com/nodelet/nodelet/plugins/devices"
)

// Placement gives containers CPUs and memory of their own: a *Manager, or None.
type Placement interface {
	Run(ctx context.Context)
	Admit(pod *corev1.Pod, ended func(types.UID) bool) (record func() error, affinity map[string]numa.Mask,
		rejection *podstate.Rejection)
	Resume(pod *corev1.Pod)
	Rejection(pod *corev1.Pod, ended func(types.UID) bool) *podstate.Rejection
	Fits(pod *corev1.Pod, ended func(types.UID) bool) bool
	Release(pod types.UID)
	HasCPUs(pod *corev1.Pod, c *corev1.Container) bool
	Created(pod types.UID, container string) (cpus, nodes string)
	NotCreated(pod types.UID, container string)
	Starting(pod *corev1.Pod, container string)
	Started(pod types.UID, container string)
	devices.Exclusive // for the pod resources API
}

// Open reads the machine from root, which is /, and returns a Manager for it. With all policies off it returns None
// and only checks that no other agent has left CPUs to containers, and that the reserved CPUs are online. It sets
// cfg.Machine.
func Open(root fs.FS, cfg Config) (Placement, error) {
	s := &cfg.Settings
	if !s.off() || !s.ReservedCPUs.IsEmpty() {
		var err error
		if cfg.Machine, err = topology.Read(root); err != nil {
			return nil, fmt.Errorf("read the CPUs of the machine: %w", err)
		}
		if online := cfg.Machine.Online(); !s.ReservedCPUs.IsSubsetOf(online) {
			return nil, fmt.Errorf("reservedSystemCPUs: CPUs %s are not online; online are %s",
				s.ReservedCPUs.Difference(online), online)
		}
	}
	if s.off() {
		return None{}, checkOff(cfg.Root)
	}
	return New(cfg)
}

// None is a node on which all containers share all CPUs and all memory.
type None struct{ devices.NoneExclusive }

// Run does nothing.
func (None) Run(context.Context) {}

// Admit admits all pods and gives them nothing.
func (None) Admit(*corev1.Pod, func(types.UID) bool) (func() error, map[string]numa.Mask, *podstate.Rejection) {
	return nil, nil, nil
}

// Resume gives nothing.
func (None) Resume(*corev1.Pod) {}

// Rejection rejects no pod.
func (None) Rejection(*corev1.Pod, func(types.UID) bool) *podstate.Rejection { return nil }

// Fits reports whether a pod could have what it asks for: any pod.
func (None) Fits(*corev1.Pod, func(types.UID) bool) bool { return true }

// Release does nothing.
func (None) Release(types.UID) {}

// HasCPUs reports whether a container has CPUs for itself: none has.
func (None) HasCPUs(*corev1.Pod, *corev1.Container) bool { return false }

// Created returns no restriction.
func (None) Created(types.UID, string) (cpus, nodes string) { return "", "" }

// NotCreated does nothing.
func (None) NotCreated(types.UID, string) {}

// Starting does nothing.
func (None) Starting(*corev1.Pod, string) {}

// Started does nothing.
func (None) Started(types.UID, string) {}

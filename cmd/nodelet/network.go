package main

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/kube/status"
)

func (n *nodelet) makeNetwork() error {
	c := n.cfg.Network
	meter := n.metrics.AddNetwork()
	config := manager.Config{
		Mode:          c.Mode,
		Dir:           filepath.Join(n.cfg.Paths.Root, "cni"),
		ConfDir:       c.ConfDir,
		BinDirs:       c.BinDirs,
		Conf:          c.Conf,
		NetworksDir:   c.NetworksDir,
		PodCIDRs:      c.PodCIDRs,
		NonMasquerade: c.NonMasquerade,
		CallTimeout:   c.CallTimeout,
		CheckPeriod:   c.CheckPeriod,
		Runtime:       n.runtime,
		Answered:      n.monitor.Answered(),
		CheckSoon:     n.monitor.CheckSoon,
		Event:         n.networkEvent,
		PodChanged:    func(uid string) { n.supervisor.VerdictChanged(types.UID(uid)) },
		Called:        meter.Called,
		Released:      meter.Released,
		Log:           n.log,
	}
	if n.api != nil {
		config.Core = n.api.Core
	}
	n.network = manager.New(config)
	return nil
}

func (n *nodelet) networkEvent(pod cni.Pod, eventType, reason, message string) {
	ref := status.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
	n.recorder.Event(ref, eventType, reason, message)
}

// podCIDRs returns the ranges of a Node object. Old control planes set PodCIDR only.
func podCIDRs(o *corev1.Node) []string {
	if len(o.Spec.PodCIDRs) == 0 && o.Spec.PodCIDR != "" {
		return []string{o.Spec.PodCIDR}
	}
	return o.Spec.PodCIDRs
}

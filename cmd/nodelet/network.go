package main

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/cni"
	"github.com/nodelet/nodelet/cni/manager"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/status"
)

// newNetwork makes what watches the pods' network, or is it.
func newNetwork(p *process, api *apiServer, r *containerRuntime, l *links) {
	c := p.cfg.Network
	meter := p.metrics.AddNetwork()
	config := manager.Config{
		Mode:          c.Mode,
		Dir:           filepath.Join(p.cfg.Paths.Root, "cni"),
		ConfDir:       c.ConfDir,
		BinDirs:       c.BinDirs,
		Conf:          c.Conf,
		NetworksDir:   c.NetworksDir,
		PodCIDRs:      c.PodCIDRs,
		NonMasquerade: c.NonMasquerade,
		CallTimeout:   c.CallTimeout,
		CheckPeriod:   c.CheckPeriod,
		Runtime:       r.client,
		Answered:      r.monitor.Answered(),
		CheckSoon:     r.monitor.CheckSoon,
		Event: func(pod cni.Pod, eventType, reason, message string) {
			ref := status.Ref{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
			api.recorder.Event(ref, eventType, reason, message)
		},
		PodChanged: func(uid string) { l.supervisor.VerdictChanged(types.UID(uid)) },
		Called:     meter.Called,
		Released:   meter.Released,
		Log:        p.log,
	}
	if api.client != nil {
		config.Core = api.client.Core
	}
	l.network = manager.New(config)
	l.nodeChanged = append(l.nodeChanged, func(o *corev1.Node) { l.network.SetPodCIDRs(node.PodCIDRs(o)) })
	p.start(l.network.Run)
}

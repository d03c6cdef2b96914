package main

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/kube/node"
)

func (n *nodelet) makeMonitor() {
	n.monitor = monitor.New(monitor.Config{
		Client:   n.runtime,
		Endpoint: n.cfg.Runtime.Endpoint,
		Report:   n.reportRuntime,
		Images:   n.reportImages,
		Log:      n.log,
	})
}

// reportRuntime passes the runtime's status to the node and reports whether the runtime and its network are ready.
func (n *nodelet) reportRuntime(v *runtimeapi.VersionResponse, s *runtimeapi.StatusResponse, err error) bool {
	if err != nil {
		n.node.SetRuntime(node.Runtime{Err: err})
		return false
	}
	r := node.Runtime{Name: v.GetRuntimeName(), Version: v.GetRuntimeVersion()}
	for _, c := range s.GetStatus().GetConditions() {
		condition := node.RuntimeCondition{OK: c.Status, Reason: c.Reason, Message: c.Message}
		switch c.Type {
		case runtimeapi.RuntimeReady:
			r.Ready = condition
		case runtimeapi.NetworkReady:
			r.Network = n.withNetwork(condition)
		}
	}
	for _, h := range s.GetRuntimeHandlers() {
		r.Handlers = append(r.Handlers, node.RuntimeHandler{
			Name:                    h.Name,
			RecursiveReadOnlyMounts: h.GetFeatures().GetRecursiveReadOnlyMounts(),
			UserNamespaces:          h.GetFeatures().GetUserNamespaces(),
		})
	}
	if f := s.GetFeatures(); f != nil {
		r.SupplementalGroupsPolicy = &f.SupplementalGroupsPolicy
	}
	n.node.SetRuntime(r)
	return r.Ready.OK && r.Network.OK
}

// withNetwork adds to the runtime's network condition what the agent knows of the network.
func (n *nodelet) withNetwork(c node.RuntimeCondition) node.RuntimeCondition {
	if n.network == nil {
		return c
	}
	err := n.network.Problem(c.OK)
	switch {
	case err == nil:
	case c.OK:
		c = node.RuntimeCondition{Reason: "NetworkPluginNotReady", Message: err.Error()}
	default:
		c.Message += "; nodelet sees: " + err.Error()
	}
	return c
}

// handler returns what a runtime handler can do; one that the runtime does not list has no special features.
func (n *nodelet) handler(name string) execute.Handler {
	f := n.monitor.Features(name)
	return execute.Handler{RecursiveReadOnly: f.GetRecursiveReadOnlyMounts(), UserNamespaces: f.GetUserNamespaces()}
}

// reportImages passes the images to the node and forgets who pulled those that are gone.
func (n *nodelet) reportImages(all []*runtimeapi.Image, requested time.Time) {
	list := make([]node.Image, 0, len(all))
	ids := make([]string, 0, len(all))
	for _, i := range all {
		list = append(list, node.Image{Digests: i.RepoDigests, Tags: i.RepoTags, Bytes: int64(i.Size)})
		ids = append(ids, i.Id)
	}
	n.node.SetImages(list)
	if n.records != nil {
		n.records.Prune(ids, requested)
	}
}

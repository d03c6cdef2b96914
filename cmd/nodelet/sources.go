package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/execute"
	"github.com/nodelet/nodelet/kube/objects"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods"
)

// podObjects are the objects that pods refer to.
type podObjects struct {
	api   *objects.Objects // nil without an API server
	local *objects.Local
}

func newObjects(p *process, x *parts) error {
	o, api := &podObjects{}, x.api
	if !api.standalone() {
		c := objects.Settings(p.cfg)
		c.Core, c.Node = api.client.Core, api.client.Node
		c.Certificates = api.client.Certificates
		c.NodeUID = x.machine.node.UID
		c.Event = api.podEvent
		c.OnChange = x.wake
		c.Log = p.log
		o.api = objects.New(c)
		p.AtEnd(o.api.Close)
		if c.PodCertificates {
			p.metrics.AddPodCertificates(o.api)
		}
	}
	o.local = objects.NewLocal(o.api, x.wake)
	x.objects = o
	return nil
}

// of returns the objects of the manifests for static pods, and those of the API server for all others.
func (o *podObjects) of(pod *corev1.Pod) interface {
	agent.Objects
	execute.Objects
} {
	if o.api == nil || podutil.IsStatic(pod) {
		return o.local
	}
	return o.api
}

// newMirrors makes what keeps the mirror pods of static pods.
func newMirrors(p *process, x *parts) error {
	x.mirrors = pods.NewMirrors(pods.MirrorConfig{
		API:      x.api.client.Core,
		NodeName: p.cfg.Node.Name,
		NodeUID:  x.machine.node.UID,
		Log:      p.log,
		Ending:   func(name types.NamespacedName, now types.UID) bool { return x.supervisor.Ending(name, now) },
	})
	if !x.api.standalone() {
		p.Start(x.mirrors.Run)
	}
	return nil
}

// newSources makes the sources of pods, and delivers each new set of pods to the parts that use it.
func newSources(p *process, x *parts) error {
	c := pods.Settings(p.cfg)
	c.API = !x.api.standalone()
	c.Adopt = func(ctx context.Context) map[types.NamespacedName]pods.Running {
		return agent.RunningStatic(ctx, x.runtime.monitor, x.runtime.client, p.log)
	}
	c.Event = x.api.recorder.NodeEvent
	c.Log = p.log
	sources := pods.New(c)
	p.Start(sources.Run)
	if !x.api.standalone() {
		p.Start(func(ctx context.Context) { sources.FollowAPI(ctx, x.api.client.Core) })
	}
	p.Start(func(ctx context.Context) {
		sources.Deliver(ctx, func(set *pods.Set) {
			x.objects.local.Set(set.ConfigMaps, set.Secrets)
			x.supervisor.Want(set)
			x.mirrors.Keep(set)
			x.network.SetPods(set.Shown)
		})
	})
	return nil
}

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

func newObjects(p *process, api *apiServer, m *machine, l *links) *podObjects {
	o := &podObjects{}
	if api.identity != nil {
		c := objects.Settings(p.cfg)
		c.Core, c.Node = api.client.Core, api.client.Node
		c.Certificates = api.client.Certificates
		c.NodeUID = m.node.UID
		c.Event = api.podEvent
		c.OnChange = l.wake
		c.Log = p.log
		o.api = objects.New(c)
		p.AtEnd(o.api.Close)
		if c.PodCertificates {
			p.metrics.AddPodCertificates(o.api)
		}
	}
	o.local = objects.NewLocal(o.api, l.wake)
	return o
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
func newMirrors(p *process, api *apiServer, m *machine, l *links) *pods.Mirrors {
	mirrors := pods.NewMirrors(pods.MirrorConfig{
		API:      api.client.Core,
		NodeName: p.cfg.Node.Name,
		NodeUID:  m.node.UID,
		Log:      p.log,
		Ending:   func(name types.NamespacedName, now types.UID) bool { return l.supervisor.Ending(name, now) },
	})
	if api.identity != nil {
		p.Start(mirrors.Run)
	}
	return mirrors
}

// newSources makes the sources of pods, and delivers each new set of pods to the parts that use it.
func newSources(p *process, api *apiServer, r *containerRuntime, o *podObjects, mirrors *pods.Mirrors, l *links) {
	c := pods.Settings(p.cfg)
	c.API = api.identity != nil
	c.Adopt = func(ctx context.Context) map[types.NamespacedName]pods.Running {
		return agent.RunningStatic(ctx, r.monitor, r.client, p.log)
	}
	c.Event = api.recorder.NodeEvent
	c.Log = p.log
	sources := pods.New(c)
	p.Start(sources.Run)
	if api.identity != nil {
		p.Start(func(ctx context.Context) { sources.FollowAPI(ctx, api.client.Core) })
	}
	p.Start(func(ctx context.Context) {
		sources.Deliver(ctx, func(set *pods.Set) {
			o.local.Set(set.ConfigMaps, set.Secrets)
			l.supervisor.Want(set)
			mirrors.Keep(set)
			l.network.SetPods(set.Shown)
		})
	})
}

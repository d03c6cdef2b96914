package main

import (
	"context"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/kube/server/podsapi"
	"github.com/nodelet/nodelet/systemd"
)

// newServer makes what answers requests about pods and the agent: at port 10250, at the health port and at a socket for
// the commands of this program. It starts the rotation of the pods' logs as well, which uses the same directory.
func newServer(p *process, x *parts) error {
	dir := logs.New(p.cfg.Kubelet.PodLogsDir)
	c := podapi.Settings(p.cfg)
	c.Pods = x.supervisor
	c.Runtime, c.Logs = x.runtime.client, dir
	x.podAPI = podapi.New(c)
	rotator := logs.Settings(p.cfg)
	rotator.Dir, rotator.List = dir, x.supervisor.RunningLogs
	rotator.Reopen = x.runtime.client.ReopenContainerLog
	rotator.Log = p.log
	p.Start(func(ctx context.Context) {
		if x.runtime.monitor.AwaitAnswer(ctx) { // before it, nobody knows which containers run
			rotator.Run(ctx)
		}
	})
	var s *server.Server // stays nil if enableServer is false
	healthz := healthz(p, x, func() error { return s.Health() })
	p.Start(func(ctx context.Context) { endpoints.ServeHealthz(ctx, p.cfg.Healthz(), healthz, p.log) })
	local := &podapi.Local{
		Supervisor:    x.supervisor,
		Node:          x.machine.node.Shown,
		Configuration: func() any { return p.cfg.Kubelet.InUse(x.machine.cgroups.Driver()) },
		Pods:          x.podAPI,
	}
	p.Start(func(ctx context.Context) { local.Serve(ctx, p.cfg.Paths, p.log) })
	if x.serving == nil {
		return nil
	}
	own := endpoints.Settings(p.cfg)
	own.Healthz = healthz
	own.Configuration = local.Configuration
	own.Logs = logs.New("/var/log")
	own.Verbosity = p.verbosity
	mounts := slices.Concat(endpoints.Mounts(own, p.metrics.Mounts()), p.metrics.Mounts())
	served, err := serverConfig(p, x, mounts)
	if err != nil {
		return err
	}
	if s, err = server.New(served); err != nil {
		return err
	}
	p.Start(s.Run)
	return nil
}

// newPodsAPI makes the local pods API (KEP-4188) unless it is off, and returns what hears about changes of pods.
func newPodsAPI(p *process, x *parts) agent.Watchers {
	if !p.cfg.Gate("PodsAPI") {
		return nil
	}
	s := podsapi.New(podsapi.Config{
		Root:  p.cfg.Paths.Root,
		Pods:  func(ctx context.Context) ([]*corev1.Pod, error) { return x.podAPI.LocalPods(ctx) },
		Asked: p.metrics.AddPodsAPI(),
		Log:   p.log,
	})
	p.Start(s.Run)
	return s
}

// serverConfig returns the configuration of the server of the kubelet API.
func serverConfig(p *process, x *parts, mounts []server.Mount) (server.Config, error) {
	s := server.Settings(p.cfg)
	s.TLS.GetCertificate = x.serving.GetCertificate
	s.Agent = x.podAPI
	s.Mounts = mounts
	s.Metrics = p.metrics.AddRequests()
	s.Log = p.log
	if x.api.standalone() {
		return s, nil
	}
	tokens := *p.cfg.Kubelet.Authentication.Webhook.Enabled
	return s, s.Connect(x.api.identity.Config(), "nodelet-auth/"+config.KubeletVersion(), tokens)
}

// service is how the agent reports its state to systemd.
func service(p *process, x *parts) systemd.Service {
	return systemd.Service{
		Runtime:  p.cfg.Kubelet.ContainerRuntimeEndpoint,
		Work:     "runs the pods of node " + p.cfg.Node.Name,
		Answered: x.runtime.monitor.Answered(),
		Usable:   x.runtime.monitor.Usable(),
		Healthy:  x.supervisor.Alive,
		Line:     p.line,
		Log:      p.log,
	}
}

// healthz checks the agent itself. It leaves the API server out: a restart of the agent would not bring it back.
func healthz(p *process, x *parts, server func() error) http.Handler {
	return endpoints.HealthzHandler([]endpoints.Check{
		{Name: "ping", Run: func() error { return nil }},
		{Name: "log", Run: p.health},
		{Name: "syncloop", Run: x.supervisor.Health},
		{Name: "server", Run: server},
	}, p.metrics.AddHealthChecks())
}

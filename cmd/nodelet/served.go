package main

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/kube/server/endpoints"
	"github.com/nodelet/nodelet/kube/server/podsapi"
)

// served is what answers requests about the node and its pods.
type served struct {
	podAPI *podapi.Server
	// podsAPI is the local pods API; nil if it is off.
	podsAPI *podsapi.Server
	// server is the node's API; nil if it is off. mounts are its handlers of other packages.
	server *server.Server
	mounts []server.Mount
}

// makePodsAPI makes the local pods API (KEP-4188) unless it is off, and returns what hears about changes of pods.
func (s *served) makePodsAPI(c *config.Config, log *slog.Logger) agent.Watchers {
	if !c.Gate("PodsAPI") {
		return nil
	}
	s.podsAPI = podsapi.New(podsapi.Config{
		Root: c.Paths.Root,
		Pods: func(ctx context.Context) ([]*corev1.Pod, error) { return s.podAPI.LocalPods(ctx) },
		Log:  log,
	})
	return s.podsAPI
}

// makePodAPI makes what answers requests about pods, and the rotation of their logs.
func (n *nodelet) makePodAPI() {
	checkpoints := ""
	if n.cfg.Gate("ContainerCheckpoint") {
		checkpoints = filepath.Join(n.cfg.Paths.Root, "checkpoints")
	}
	dir := logs.New(n.cfg.Paths.PodLogs)
	n.podAPI = podapi.New(podapi.Config{
		Pods:        n.supervisor,
		Runtime:     n.runtime,
		Logs:        dir,
		Checkpoints: checkpoints,
	})
	c := n.cfg.Logs
	n.rotator = &logs.Rotator{
		Dir:      dir,
		MaxBytes: c.MaxBytes,
		MaxFiles: c.MaxFiles,
		Workers:  c.Workers,
		Interval: c.Interval,
		List:     n.podAPI.RunningLogs,
		Reopen:   n.runtime.ReopenContainerLog,
		Log:      n.log,
	}
}

// makeServer creates the server of the node's API at port 10250.
func (n *nodelet) makeServer() (err error) {
	n.makePodAPI()
	c := n.cfg.Server
	if c.Port == 0 {
		return nil
	}
	cfg := server.Config{
		Listen:       netip.AddrPortFrom(c.Addr, c.Port),
		Node:         n.cfg.Node.Name,
		Certificate:  n.serving.GetCertificate,
		MinVersion:   c.MinTLSVersion,
		CipherSuites: c.CipherSuites,
		ClientCAFile: c.ClientCAFile,
		TokenTTL:     c.TokenTTL,
		Anonymous:    c.Anonymous,
		AlwaysAllow:  c.AlwaysAllow,
		AllowedTTL:   c.AllowedTTL,
		DeniedTTL:    c.DeniedTTL,
		Agent:        n.podAPI,
		Debug:        c.DebugHandlers,
		StreamIdle:   c.StreamIdle,
		Mounts:       slices.Concat(n.endpoints(), n.mounts),
		Log:          n.log,
	}
	if port := n.cfg.Kubelet.ReadOnlyPort; port != 0 {
		cfg.ReadOnly = netip.AddrPortFrom(c.Addr, uint16(port))
	}
	if n.api != nil {
		// Requests to authenticate and authorize callers have no rate limit, so that they never wait for those of the agent.
		auth, err := client.New(n.identity.Config(), -1, 0, "nodelet-auth/"+config.KubeletVersion())
		if err != nil {
			return err
		}
		cfg.Access = auth.Authorization
		if c.Webhook {
			cfg.Tokens = auth.Authentication
		}
	} else if !c.AlwaysAllow {
		n.log.Warn("no API server to authorize requests: the node's API rejects all of them " +
			"(authorization.mode AlwaysAllow accepts all authenticated clients)")
	}
	n.server, err = server.New(cfg)
	return err
}

// endpoints returns what the node's API serves about the agent itself.
func (n *nodelet) endpoints() []server.Mount {
	c := n.cfg.Server
	return endpoints.Mounts(endpoints.Config{
		Healthz:        n.healthz(),
		Configuration:  n.cfg.Kubelet.Masked(),
		SystemLogs:     c.SystemLogs,
		SystemLogQuery: c.SystemLogsQuery,
		Logs:           logs.New("/var/log"),
		DebugFlags:     c.DebugFlags,
		Verbosity:      n.verbosity,
		Profiling:      c.Profiling,
		Flagz:          n.cfg.Gate("ComponentFlagz"),
		Flags:          n.cfg.Flags,
		Statusz:        n.cfg.Gate("ComponentStatusz"),
		Version:        config.KubeletVersion(),
	}, n.mounts)
}

// serveCommands answers the commands of this program at a socket below the root directory.
func serveCommands(ctx context.Context, n *nodelet) {
	local := &podapi.Local{
		Explain:       n.explainPods,
		Node:          n.node.Node,
		Configuration: n.cfg.Kubelet.Masked(),
		Pods:          n.podAPI,
	}
	local.Serve(ctx, n.cfg.Paths.Root, n.log)
}

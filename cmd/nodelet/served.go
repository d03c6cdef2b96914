package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/kube/server/endpoints"
)

// listenAgain is how soon the port of the node's API is tried again where another program holds it.
const listenAgain = 5 * time.Second

// makePodAPI makes what answers requests about pods, and the rotation of their logs.
func (n *nodelet) makePodAPI() {
	checkpoints := ""
	if n.cfg.Gate("ContainerCheckpoint") {
		checkpoints = filepath.Join(n.cfg.Paths.Root, "checkpoints")
	}
	dir := logs.New(n.cfg.Paths.PodLogs)
	n.podAPI = podapi.New(podapi.Config{Pods: n.supervisor, Runtime: n.runtime, Logs: dir, Checkpoints: checkpoints})
	c := n.cfg.Logs
	n.rotator = &logs.Rotator{Dir: dir, MaxBytes: c.MaxBytes, MaxFiles: c.MaxFiles, Workers: c.Workers, Interval: c.Interval,
		List: n.podAPI.RunningLogs, Reopen: n.runtime.ReopenContainerLog, Log: n.log}
}

// makeServer sets up the node's API at port 10250.
func (n *nodelet) makeServer() (err error) {
	n.makePodAPI()
	c := n.cfg.Server
	if c.Port == 0 {
		return nil
	}
	cfg := server.Config{
		Listen: netip.AddrPortFrom(c.Addr, c.Port), Node: n.cfg.Node.Name,
		Certificate: n.serving.GetCertificate, MinVersion: c.MinTLSVersion, CipherSuites: c.CipherSuites, ClientCAFile: c.ClientCAFile,
		TokenTTL: c.TokenTTL, Anonymous: c.Anonymous,
		AlwaysAllow: c.AlwaysAllow, AllowedTTL: c.AllowedTTL, DeniedTTL: c.DeniedTTL,
		Agent: n.podAPI,
		Debug: c.DebugHandlers, StreamIdle: c.StreamIdle,
		Mounts: slices.Concat(n.endpoints(), n.mounts), Log: n.log,
	}
	if port := n.cfg.Kubelet.ReadOnlyPort; port != 0 {
		cfg.ReadOnly = netip.AddrPortFrom(c.Addr, uint16(port))
	}
	if n.api != nil {
		// Who may come in must not wait behind what the agent asks for itself, so these questions have no rate of their own.
		doors, err := client.New(n.identity.Config(), -1, 0, "nodelet-doors/"+config.KubeletVersion())
		if err != nil {
			return err
		}
		cfg.Access = doors.Authorization
		if c.Webhook {
			cfg.Tokens = doors.Authentication
		}
	} else if !c.AlwaysAllow {
		n.log.Warn("without an API server nobody can be allowed to use the node's API; authorization.mode AlwaysAllow allows all who are known")
	}
	n.server, err = server.New(cfg)
	return err
}

// endpoints returns what the node's API serves about the agent itself.
func (n *nodelet) endpoints() []server.Mount {
	c := n.cfg.Server
	return endpoints.Mounts(endpoints.Config{
		Healthz:        node.HealthzHandler(n.checks()),
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

// serveAPI serves the node's API until ctx ends. Pods do not depend on it, so a port that is taken stops nothing else.
func (n *nodelet) serveAPI(ctx context.Context) {
	if n.server == nil {
		return
	}
	for told := false; ; told = true {
		err := n.server.Listen()
		if err == nil {
			break
		}
		if !told {
			n.log.Error("logs, exec and metrics are not served; trying again", "err", err, "every", listenAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenAgain):
		}
	}
	n.log.Info("the node's API is served", "addr", fmt.Sprint(n.server.Addr()))
	if err := n.server.Run(ctx); err != nil {
		n.log.Error("logs, exec and metrics are not served any more", "err", err)
	}
}

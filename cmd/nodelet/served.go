package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/kube/client"
	"github.com/nodelet/nodelet/kube/node"
	"github.com/nodelet/nodelet/kube/server"
)

// listenAgain is how soon the port of the node's API is tried again where another program holds it.
const listenAgain = 5 * time.Second

// makeDesk sets up what answers for pods, and the rotation of their logs.
func (n *nodelet) makeDesk() {
	checkpoints := ""
	if n.cfg.Gate("ContainerCheckpoint") {
		checkpoints = filepath.Join(n.cfg.Paths.Root, "checkpoints")
	}
	dir := logs.New(n.cfg.Paths.PodLogs)
	n.desk = agent.NewDesk(n.supervisor, dir, checkpoints)
	c := n.cfg.Logs
	n.rotator = &logs.Rotator{Dir: dir, MaxBytes: c.MaxBytes, MaxFiles: c.MaxFiles, Workers: c.Workers, Interval: c.Interval,
		List: n.desk.RunningLogs, Reopen: n.runtime.ReopenContainerLog, Log: n.log}
}

// makeServer sets up the node's API at port 10250.
func (n *nodelet) makeServer() (err error) {
	n.makeDesk()
	c := n.cfg.Server
	if c.Port == 0 {
		return nil
	}
	cfg := server.Config{
		Listen: netip.AddrPortFrom(c.Addr, c.Port), Node: n.cfg.Node.Name,
		Certificate: n.serving.GetCertificate, MinVersion: c.MinTLSVersion, CipherSuites: c.CipherSuites, ClientCAFile: c.ClientCAFile,
		TokenTTL: c.TokenTTL, Anonymous: c.Anonymous,
		AlwaysAllow: c.AlwaysAllow, AllowedTTL: c.AllowedTTL, DeniedTTL: c.DeniedTTL,
		Agent: n.desk,
		Debug: c.DebugHandlers, StreamIdle: c.StreamIdle,
		Mounts: slices.Concat(n.ownMounts(), n.profiles(), n.mounts), Log: n.log,
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

// ownMounts are the paths that the agent itself answers.
func (n *nodelet) ownMounts() []server.Mount {
	healthz := node.HealthzHandler(n.checks())
	access := []string{"healthz", "proxy"}
	all := []server.Mount{
		n.systemLogs(), n.debugFlags(),
		{Path: "/healthz", Access: access, ReadOnly: true, Handler: healthz},
		{Path: "/healthz/", Access: access, ReadOnly: true, Handler: healthz},
		{Path: "/configz", Access: []string{"configz", "proxy"}, Debug: true, Handler: http.HandlerFunc(n.configz)},
	}
	if n.cfg.Gate("ComponentFlagz") {
		all = append(all, server.Mount{Path: "/flagz", Access: []string{"configz", "proxy"}, Handler: flagz(n.cfg.Flags)})
	}
	if n.cfg.Gate("ComponentStatusz") {
		paths := []string{"/checkpoint/", "/containerLogs/", "/exec/", "/attach/", "/portForward/", "/pods", "/run/", "/runningpods/"}
		for _, m := range append(all, n.mounts...) {
			paths = append(paths, m.Path)
		}
		slices.Sort(paths)
		all = append(all, server.Mount{Path: "/statusz", Access: []string{"statusz"}, Handler: statusz(time.Now(), paths)})
	}
	return all
}

// configz shows the configuration, with defaults and flags, without what may be secret in it.
func (n *nodelet) configz(w http.ResponseWriter, _ *http.Request) {
	shown := n.cfg.Kubelet
	if len(shown.StaticPodURLHeader) > 0 {
		masked := make(map[string][]string, len(shown.StaticPodURLHeader))
		for name := range shown.StaticPodURLHeader {
			masked[name] = []string{"<masked>"}
		}
		shown.StaticPodURLHeader = masked
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"kubeletconfig": shown})
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

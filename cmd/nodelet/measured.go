package main

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/host/cgroups"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/volumes/iscsi"
)

// measured is all that counts and measures: the registries of the four endpoints, the instruments in them, and stats.
type measured struct {
	main, cadvisor, resource, probing metrics.Registry
	agent                             *metrics.Agent
	probes                            *metrics.Probes
	stats                             *usage.Collector
}

// makeMeasured makes the instruments, which the other rooms are handed when they are made.
func (n *nodelet) makeMeasured() error {
	m := &n.measured
	m.agent = metrics.NewAgent(&m.main, n.cfg.Node.Name)
	m.probes = metrics.NewProbes(&m.probing)
	metrics.AddProcessStart(&m.probing)
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: requestResult{m.agent}, RequestLatency: requestLatency{m.agent}})
	return nil
}

// makeStats makes what measures the node and its pods. It comes after the rooms that it asks.
func (n *nodelet) makeStats() error {
	m := &n.measured
	c := usage.Config{
		Node: n.cfg.Node.Name, Hierarchy: usage.NewHierarchy(n.cgroups.Mounts()), Runtime: n.runtime, Pods: n.statsPods,
		RootDir: n.cfg.Paths.Root, PodsDir: filepath.Join(n.cfg.Paths.Root, "pods"), LogsDir: n.cfg.Paths.PodLogs,
		Boot: bootTime(), Log: n.log, AgentCgroup: usage.OwnCgroup(), RuntimeCgroup: n.cfg.Cgroups.Runtime,
	}
	if n.cfg.Cgroups.PerQOS {
		c.PodsCgroup, c.ClassCgroups = n.cgroups.PodsCgroup(), n.cgroups.ClassCgroups()
	}
	m.stats = usage.New(c)
	m.main.Func(n.writePods)
	m.main.Func(n.writeIdentity)
	if n.objects != nil && n.cfg.Gate("PodCertificateRequest") {
		m.main.Func(n.writePodCertificates)
	}
	m.main.Func(m.stats.WriteVolumes)
	metrics.AddProcess(&m.main)
	m.cadvisor.Func(m.stats.WriteCadvisor)
	m.resource.Func(m.stats.WriteResource)
	n.mounts = append(n.mounts, n.measuredMounts()...)
	return nil
}

// measuredMounts are the paths of the node's API that tell of it.
func (n *nodelet) measuredMounts() []server.Mount {
	m := &n.measured
	scraped := func(path string, h http.Handler) server.Mount {
		return server.Mount{Path: path, Access: []string{"metrics"}, ReadOnly: true, Handler: h}
	}
	return []server.Mount{
		scraped("/metrics", m.main.Handler()), scraped("/metrics/cadvisor", m.cadvisor.Handler()),
		scraped("/metrics/resource", m.resource.Handler()), scraped("/metrics/probes", m.probing.Handler()),
		{Path: "/stats/summary", Access: []string{"stats"}, ReadOnly: true, Handler: m.stats.SummaryHandler()},
	}
}

func bootTime() time.Time {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(s.Uptime) * time.Second).Truncate(time.Second)
}

// statsPods are the pods of which there is something to measure.
func (n *nodelet) statsPods(ctx context.Context) ([]usage.Pod, error) {
	all, err := n.supervisor.Census(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]usage.Pod, 0, len(all))
	for _, s := range all {
		if !s.Sandbox || s.Rejected {
			continue
		}
		p := usage.Pod{Pod: s.Pod, Volumes: n.volumes.Usage(s.Pod, s.Mounted)}
		if s.Status.StartTime != nil {
			p.Started = s.Status.StartTime.Time
		}
		if n.cfg.Cgroups.PerQOS {
			p.Cgroup, _ = n.cgroups.PodParent(cgroups.Pod{UID: s.Pod.UID, QOS: podutil.QOS(s.Pod)})
		}
		out = append(out, p)
	}
	return out, nil
}

// writePods writes how many pods, containers and volumes there are.
func (n *nodelet) writePods(ctx context.Context, t *metrics.Text) {
	all, err := n.supervisor.Census(ctx)
	if err != nil {
		return
	}
	c := count(all)
	one := func(name, help string, value float64) {
		t.Family(name, help, metrics.KindGauge)
		t.Sample(value)
	}
	byStatic := func(name, help string, of [2]int) {
		t.Family(name, help, metrics.KindGauge)
		t.Sample(float64(of[0]), "static", "")
		t.Sample(float64(of[1]), "static", "true")
	}
	byStatic("kubelet_active_pods", "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods.", c.active)
	byStatic("kubelet_desired_pods", "[ALPHA] The number of pods the kubelet is being instructed to run.", c.desired)
	one("kubelet_mirror_pods", "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)", float64(c.desired[1]))
	one("kubelet_running_pods", "[BETA] Number of pods that have a running pod sandbox", float64(c.running))
	one("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts.", float64(n.cgroups.Version()))
	t.Family("kubelet_running_containers", "[BETA] Number of containers currently running", metrics.KindGauge)
	for state, name := range []string{plan.ContainerCreated: "created", plan.ContainerRunning: "running", plan.ContainerExited: "exited", plan.ContainerUnknown: "unknown"} {
		if k := c.containers[plan.ContainerState(state)]; k > 0 || name == "running" {
			t.Sample(float64(k), "container_state", name)
		}
	}
	t.Family("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager", metrics.KindGauge)
	for plugin, of := range c.volumes {
		t.Sample(float64(of[0]), "plugin_name", plugin, "state", "actual_state_of_world")
		t.Sample(float64(of[1]), "plugin_name", plugin, "state", "desired_state_of_world")
	}
}

// writePodCertificates writes where the certificates of pods stand.
func (n *nodelet) writePodCertificates(_ context.Context, t *metrics.Text) {
	t.Family("kubelet_podcertificate_states", "[ALPHA] Gauge vector reporting the number of pod certificate projected volume sources, "+
		"faceted by signer_name and state.", metrics.KindGauge)
	for s, count := range n.objects.CertificateStates() {
		t.Sample(float64(count), "signer_name", s.Signer, "state", s.State)
	}
}

// writeIdentity writes which program this is and how long its certificates are good for.
func (n *nodelet) writeIdentity(_ context.Context, t *metrics.Text) {
	t.Family("kubernetes_build_info", "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, "+
		"build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.", metrics.KindGauge)
	version := config.KubeletVersion()
	major, minor, _ := strings.Cut(strings.TrimPrefix(config.KubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	t.Sample(1, "build_date", "", "compiler", runtime.Compiler, "git_commit", "", "git_tree_state", "", "git_version", version,
		"go_version", runtime.Version(), "major", major, "minor", minor, "platform", runtime.GOOS+"/"+runtime.GOARCH)
	// Configurations that cannot be used keep the agent from starting.
	t.Family("kubelet_node_config_error", "[ALPHA] This metric is true (1) if the node is experiencing a configuration-related error, false (0) otherwise.", metrics.KindGauge)
	t.Sample(0)
	if n.identity != nil {
		writeCertificate(t, "kubelet_certificate_manager_client_ttl_seconds", "kubelet_certificate_manager_client_expiration_renew_errors", n.identity)
	}
	if n.serving != nil {
		writeCertificate(t, "kubelet_certificate_manager_server_ttl_seconds", "kubelet_server_expiration_renew_errors", n.serving)
	}
}

func writeCertificate(t *metrics.Text, life, failures string, c interface {
	Expires() time.Time
	Failures() uint64
}) {
	left := math.Inf(1) // the kubelet's value where there is no certificate
	if at := c.Expires(); !at.IsZero() {
		left = time.Until(at).Seconds()
	}
	t.Family(life, "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's certificate. The value is in seconds until certificate expiry "+
		"(negative if already expired).", metrics.KindGauge)
	t.Sample(left)
	t.Family(failures, "[ALPHA] Counter of certificate renewal errors.", metrics.KindCounter)
	t.Sample(float64(c.Failures()))
}

// counted is how many there are: of pods, those of the API server first, then the static ones; of volumes, those that are
// set up first, then those wanted.
type counted struct {
	active, desired [2]int
	running         int
	containers      map[plan.ContainerState]int
	volumes         map[string][2]int
}

func count(all []*agent.Counted) counted {
	c := counted{containers: map[plan.ContainerState]int{}, volumes: map[string][2]int{}}
	for _, s := range all {
		kind := 0
		if podutil.IsStatic(s.Pod) {
			kind = 1
		}
		ended := podutil.IsTerminal(s.Status.Phase)
		if s.Stop == nil || s.Stop.Cause != plan.StopOrphaned {
			c.desired[kind]++
		}
		if !s.Rejected && !ended {
			c.active[kind]++
		}
		if s.Sandbox {
			c.running++
		}
		for state, k := range s.Containers {
			c.containers[state] += k
		}
		for i := range s.Pod.Spec.Volumes {
			v := &s.Pod.Spec.Volumes[i]
			of := c.volumes[volumePlugin(v)]
			if !ended && !s.Rejected {
				of[1]++
			}
			if _, mounted := s.Mounted[v.Name]; mounted {
				of[0]++
			}
			c.volumes[volumePlugin(v)] = of
		}
	}
	return c
}

// volumePlugin is the kubelet's name of the plugin that a volume is of.
func volumePlugin(v *corev1.Volume) string {
	switch {
	case v.EmptyDir != nil:
		return "kubernetes.io/empty-dir"
	case v.ConfigMap != nil:
		return "kubernetes.io/configmap"
	case v.Secret != nil:
		return "kubernetes.io/secret"
	case v.DownwardAPI != nil:
		return "kubernetes.io/downward-api"
	case v.Projected != nil:
		return "kubernetes.io/projected"
	case v.HostPath != nil:
		return "kubernetes.io/host-path"
	case v.Image != nil:
		return "kubernetes.io/image"
	case v.ISCSI != nil:
		return iscsi.Plugin
	}
	return "kubernetes.io/csi"
}

// requestResult and requestLatency are told by client-go of requests to the API server.
type (
	requestResult  struct{ a *metrics.Agent }
	requestLatency struct{ a *metrics.Agent }
)

// Increment counts one answer.
func (r requestResult) Increment(_ context.Context, code, method, host string) {
	r.a.Request(code, method, host)
}

// Observe counts how long one request took.
func (r requestLatency) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	r.a.RequestTook(u.Host, verb, took)
}

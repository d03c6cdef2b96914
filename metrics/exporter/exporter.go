package exporter

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/server"
	"github.com/nodelet/nodelet/metrics"
	"github.com/nodelet/nodelet/metrics/usage"
	"github.com/nodelet/nodelet/probes"
)

// Exporter holds the registries of the endpoints with the instruments in them. Make one with New.
type Exporter struct {
	// Agent are the instruments of the agent.
	Agent *metrics.Agent

	// probed counts runs of probes by result, probeTook has how long those that succeeded took.
	probed    *metrics.Vec[*metrics.Counter]
	probeTook *metrics.Vec[*metrics.Histogram]

	main, cadvisor, resource, probing metrics.Registry
	mounts                            []server.Mount
}

// New creates the instruments, and registers those that count the requests of client-go.
func New(node string) *Exporter {
	e := &Exporter{}
	e.Agent = metrics.NewAgent(&e.main, node)
	e.probeTook = e.probing.Histograms("prober_probe_duration_seconds",
		"[ALPHA] Duration in seconds for a probe response.", metrics.DefaultBuckets, "container", "namespace", "pod",
		"probe_type")
	e.probed = e.probing.Counters("prober_probe_total",
		"[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.", "container",
		"namespace", "pod", "pod_uid", "probe_type", "result")
	metrics.AddProcessStart(&e.probing)
	metrics.AddProcess(&e.main)
	countRequests(&e.main)
	e.main.Func(writeBuild)
	e.scraped("/metrics", &e.main)
	e.scraped("/metrics/cadvisor", &e.cadvisor)
	e.scraped("/metrics/resource", &e.resource)
	e.scraped("/metrics/probes", &e.probing)
	return e
}

func (e *Exporter) scraped(path string, r *metrics.Registry) {
	e.mount(path, "metrics", r.Handler())
}

func (e *Exporter) mount(path, access string, h http.Handler) {
	e.mounts = append(e.mounts,
		server.Mount{Path: path, Access: []string{access}, ReadOnly: true, Large: true, Handler: h})
}

// AddUsage adds the families that a collector measures.
func (e *Exporter) AddUsage(c *usage.Collector) {
	e.main.Func(c.WriteVolumes)
	e.cadvisor.Func(c.WriteCadvisor)
	e.resource.Func(c.WriteResource)
	e.mount("/stats/summary", "stats", c.SummaryHandler())
}

// AddFamilies adds to /metrics what write writes.
func (e *Exporter) AddFamilies(write func(context.Context, *metrics.Text)) { e.main.Func(write) }

// AddManagers adds the instruments of the CPU, memory and topology managers. Call it once.
func (e *Exporter) AddManagers() *metrics.Managers { return metrics.NewManagers(&e.main) }

// ForgetProbes drops the counts of the probes of a pod that has ended.
func (e *Exporter) ForgetProbes(namespace, name string, pod types.UID) {
	e.probed.Forget(func(v []string) bool { return v[3] == string(pod) })
	e.probeTook.Forget(func(v []string) bool { return v[1] == namespace && v[2] == name })
}

// Mounts returns the paths of the kubelet API with their handlers.
func (e *Exporter) Mounts() []server.Mount { return e.mounts }

// ProbeAttempted counts an attempt of a probe that says something about its container.
func (e *Exporter) ProbeAttempted(pod types.UID, a probes.Attempt) {
	switch a.Outcome {
	case probes.Succeeded, probes.Warned:
		a.Outcome = probes.Succeeded
		e.probeTook.With(a.Container, a.Namespace, a.Pod, string(a.Kind)).Took(a.Took)
	case probes.Errored:
		return
	}
	e.probed.With(a.Container, a.Namespace, a.Pod, string(pod), string(a.Kind), string(a.Outcome)).Inc()
}

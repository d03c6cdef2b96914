package exporter

import (
	"context"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/objects"
	"github.com/nodelet/nodelet/metrics"
)

// Certificate is a certificate that is renewed.
type Certificate interface {
	// Expires returns the end of its validity; zero if there is no certificate.
	Expires() time.Time
	// Failures returns the number of failed renewals.
	Failures() uint64
}

// AddClientCertificate adds the certificate with which the node authenticates to the API server.
func (e *Exporter) AddClientCertificate(c Certificate) {
	e.addCertificate(c, "kubelet_certificate_manager_client_ttl_seconds",
		"kubelet_certificate_manager_client_expiration_renew_errors")
}

// AddServingCertificate adds the certificate of the kubelet API.
func (e *Exporter) AddServingCertificate(c Certificate) {
	e.addCertificate(c, "kubelet_certificate_manager_server_ttl_seconds", "kubelet_server_expiration_renew_errors")
}

// AddRotations adds the ages of replaced certificates of the kubelet API, and returns what adds one. Call it once.
func (e *Exporter) AddRotations() func(age time.Duration) {
	const hour, day = 60 * 60, 24 * 60 * 60
	return e.main.Histogram("kubelet_certificate_manager_server_rotation_seconds",
		"[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
		[]float64{60, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, 360 * day, 4 * 360 * day}).Took
}

func (e *Exporter) addCertificate(c Certificate, ttl, failures string) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		left := math.Inf(1) // the kubelet's value if there is no certificate
		if at := c.Expires(); !at.IsZero() {
			left = time.Until(at).Seconds()
		}
		t.Gauge(ttl, "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's certificate. "+
			"The value is in seconds until certificate expiry (negative if already expired).", left)
		t.Family(failures, "[ALPHA] Counter of certificate renewal errors.", metrics.KindCounter)
		t.Sample(float64(c.Failures()))
	})
}

// AddPodCertificates adds the number of certificates of pods, by signer and state.
func (e *Exporter) AddPodCertificates(o *objects.Objects) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		t.Family("kubelet_podcertificate_states", "[ALPHA] Gauge vector reporting the number of pod certificate "+
			"projected volume sources, faceted by signer_name and state.", metrics.KindGauge)
		for s, count := range o.CertificateStates() {
			t.Sample(float64(count), "signer_name", s.Signer, "state", s.State)
		}
	})
}

// AddSteps adds the durations of steps of pods, by result (success or failure) and step. Call it once.
func (e *Exporter) AddSteps() *metrics.Vec[*metrics.Histogram] {
	return e.main.Histograms("nodelet_step_duration_seconds", "Duration of the steps of pods, by result.",
		[]float64{.01, .1, .5, 1, 5, 30, 35, 65, 120}, "result", "step") // 30 and 60 are usual grace periods
}

// AddDroppedSpans adds the number of spans that no collector took.
func (e *Exporter) AddDroppedSpans(dropped func() uint64) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		t.Family("nodelet_dropped_spans_total", "Spans that were not sent: the collector does not take them, or not as "+
			"fast as they come.", metrics.KindCounter)
		t.Sample(float64(dropped()))
	})
}

// AddSettings adds the settings without effect.
func (e *Exporter) AddSettings(all []config.Warning) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		if len(all) == 0 {
			return
		}
		t.Family("nodelet_setting_without_effect", "Settings that are accepted and have no effect.", metrics.KindGauge)
		for _, w := range all {
			t.Sample(1, "setting", w.Setting())
		}
	})
}

// AddFeatures adds how each feature gate that the kubelet reads is set.
func (e *Exporter) AddFeatures(enabled func(gate string) bool) {
	e.main.Func(func(_ context.Context, t *metrics.Text) {
		t.Family("kubernetes_feature_enabled",
			"[BETA] This metric records the data about the stage and enablement of a k8s feature.", metrics.KindGauge)
		for _, g := range config.Gates() {
			stage := g.Stage
			if stage == "GA" {
				stage = "" // as the kubelet's own label
			}
			on := g.Fixed && g.Always || !g.Fixed && enabled(g.Name)
			t.Sample(metrics.Flag(on), "name", g.Name, "stage", stage)
		}
	})
}

// writeBuild writes the version of the program.
func writeBuild(_ context.Context, t *metrics.Text) {
	major, minor, _ := strings.Cut(strings.TrimPrefix(config.KubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	t.Gauge("kubernetes_build_info", "[BETA] A metric with a constant '1' value labeled by major, minor, git version, "+
		"git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, "+
		"and platform on which it is running.", 1,
		"build_date", "",
		"compiler", runtime.Compiler,
		"git_commit", "",
		"git_tree_state", "",
		"git_version", config.KubeletVersion(),
		"go_version", runtime.Version(),
		"major", major,
		"minor", minor,
		"platform", runtime.GOOS+"/"+runtime.GOARCH,
	)
	t.Gauge("nodelet_build_info", "The versions of nodelet, of the Kubernetes that it follows, and of Go.", 1,
		"go", runtime.Version(), "kubernetes", config.KubernetesVersion, "version", config.Version)
	// The agent does not start with a configuration that it cannot use.
	t.Gauge("kubelet_node_config_error", "[ALPHA] This metric is true (1) if the node is experiencing a "+
		"configuration-related error, false (0) otherwise.", 0)
}

package config

import (
	"crypto/tls"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func (v *checker) checkServers() {
	c := v.c
	v.between("port", int64(c.Port), 1, 65535)
	v.between("readOnlyPort", int64(c.ReadOnlyPort), 0, 65535)
	v.between("healthzPort", int64(*c.HealthzPort), 0, 65535)
	v.ip("address", c.Address)
	if c.HealthzBindAddress != localhost {
		v.ip("healthzBindAddress", c.HealthzBindAddress)
	}
	v.oneOf("authorization.mode", c.Authorization.Mode, "Webhook", "AlwaysAllow")
	v.between("oomScoreAdj", int64(*c.OOMScoreAdj), -1000, 1000)
	v.notNegative("maxOpenFiles", c.MaxOpenFiles)
	if (c.TLSCertFile == "") != (c.TLSPrivateKeyFile == "") {
		v.bad("tlsCertFile", "set both tlsCertFile and tlsPrivateKeyFile, or neither")
	}
	if c.TLSMinVersion != "" {
		v.oneOf("tlsMinVersion", c.TLSMinVersion, slices.Sorted(maps.Keys(tlsVersions))...)
	}
	v.checkCipherSuites()
	v.checkCurves()
	v.needsGate("serverTLSBootstrap", "RotateKubeletServerCertificate", c.ServerTLSBootstrap)
	if ptr.Deref(c.EnableSystemLogQuery, false) && !*c.EnableSystemLogHandler {
		v.bad("enableSystemLogQuery", "needs enableSystemLogHandler, which is off")
	}
}

// checkCipherSuites refuses names that this version of Go does not know.
func (v *checker) checkCipherSuites() {
	for _, name := range v.c.TLSCipherSuites {
		if _, ok := cipherSuite(name); !ok {
			v.bad("tlsCipherSuites",
				"%q is not a cipher suite of Go's TLS; see https://pkg.go.dev/crypto/tls#pkg-constants", name)
		}
	}
}

// checkCurves refuses numbers that this version of Go does not know.
func (v *checker) checkCurves() {
	const field = "tlsCurvePreferences"
	seen := map[int32]bool{}
	for _, id := range v.c.TLSCurvePreferences {
		known := id > 0 && id <= math.MaxUint16 && !strings.HasPrefix(tls.CurveID(id).String(), "CurveID(")
		switch {
		case !known:
			v.bad(field, "%d is not a key exchange of Go's TLS; see https://pkg.go.dev/crypto/tls#CurveID", id)
		case seen[id]:
			v.bad(field, "duplicate %d", id)
		}
		seen[id] = true
	}
}

var tlsVersions = map[string]uint16{
	"VersionTLS10": tls.VersionTLS10, "VersionTLS11": tls.VersionTLS11,
	"VersionTLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13,
}

// cipherSuite returns a suite by its IANA name, or by one of two older names of the kubelet.
func cipherSuite(name string) (id uint16, ok bool) {
	if strings.HasSuffix(name, "_CHACHA20_POLY1305") {
		name += "_SHA256"
	}
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if s.Name == name {
			return s.ID, true
		}
	}
	return 0, false
}

func (v *checker) ip(field, text string) {
	if _, err := netip.ParseAddr(text); err != nil {
		v.bad(field, "%q is not an IP address", text)
	}
}

func (v *checker) checkNode() {
	c := v.c
	if c.NodeLeaseDurationSeconds <= 0 {
		v.bad("nodeLeaseDurationSeconds", "%d is not greater than 0", c.NodeLeaseDurationSeconds)
	}
	for _, f := range []struct {
		field string
		d     time.Duration
	}{
		{"nodeStatusUpdateFrequency", c.NodeStatusUpdateFrequency.Duration},
		{"nodeStatusReportFrequency", c.NodeStatusReportFrequency.Duration},
	} {
		if f.d <= 0 {
			v.bad(f.field, "%v is not greater than 0", f.d)
		}
	}
	if *c.NodeStatusMaxImages < -1 {
		v.bad("nodeStatusMaxImages", "%d is below -1; -1 lists all images", *c.NodeStatusMaxImages)
	}
	v.notNegative("eventRecordQPS", int64(*c.EventRecordQPS))
	v.notNegative("eventBurst", int64(c.EventBurst))
	v.notNegative("kubeAPIQPS", int64(*c.KubeAPIQPS))
	v.notNegative("kubeAPIBurst", int64(c.KubeAPIBurst))
	if err := validTaints(c.RegisterWithTaints); err != nil {
		v.bad("registerWithTaints", "%v", err)
	}
}

func (v *checker) checkPods() {
	c := v.c
	v.notNegative("maxPods", int64(c.MaxPods))
	v.notNegative("podsPerCore", int64(c.PodsPerCore))
	for _, server := range c.ClusterDNS {
		v.ip("clusterDNS", server)
	}
	// The kubelet takes any text. Resolvers take more than the names of Kubernetes, such as underscores.
	if strings.ContainsFunc(c.ClusterDomain, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		v.bad("clusterDomain", "%q is not a domain name: it contains a space", c.ClusterDomain)
	}
	v.checkPodLogsDir()
	if c.StaticPodURL != "" {
		if u, err := url.Parse(c.StaticPodURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			v.bad("staticPodURL", "not an http or https URL")
		}
	}
	if c.RunOnce {
		v.bad("runOnce", "Kubernetes has removed this mode; remove the setting")
	}
	v.oneOf("hairpinMode", c.HairpinMode, "promiscuous-bridge", "hairpin-veth", "none")
	v.oneOf("configMapAndSecretChangeDetectionStrategy", c.ConfigMapAndSecretChangeDetectionStrategy, "Watch", "Cache",
		"Get")
	v.between("iptablesMasqueradeBit", int64(*c.IPTablesMasqueradeBit), 0, 31)
	v.between("iptablesDropBit", int64(*c.IPTablesDropBit), 0, 31)
	v.checkCrashLoop()
	v.checkUserNamespaces()
}

func (v *checker) checkPodLogsDir() {
	dir := v.c.PodLogsDir
	switch {
	case !filepath.IsAbs(dir):
		v.bad("podLogsDir", "%q is not an absolute path", dir)
	case filepath.Clean(dir) != dir:
		v.bad("podLogsDir", "%q is not a clean path; write %q", dir, filepath.Clean(dir))
	case strings.IndexFunc(dir, func(r rune) bool { return r > unicode.MaxASCII }) >= 0:
		v.bad("podLogsDir", "%q contains letters other than ASCII", dir)
	}
}

func (v *checker) checkCrashLoop() {
	const field = "crashLoopBackOff.maxContainerRestartPeriod"
	period := v.c.CrashLoopBackOff.MaxContainerRestartPeriod
	v.needsGate(field, "KubeletCrashLoopBackOffMax", period != nil)
	if period != nil && (period.Duration < time.Second || period.Duration > 300*time.Second) {
		v.bad(field, "%v is not between 1s and 300s", period.Duration)
	}
}

func (v *checker) checkUserNamespaces() {
	if v.c.UserNamespaces == nil || v.c.UserNamespaces.IDsPerPod == nil {
		return
	}
	const unit = 65536
	if n := *v.c.UserNamespaces.IDsPerPod; n < unit || n%unit != 0 || n > 1<<32-1 {
		v.bad("userNamespaces.idsPerPod", "%d is not a multiple of %d below 2³²", n, unit)
	}
}

func (v *checker) checkTracing() {
	t := v.c.Tracing
	if t == nil {
		return
	}
	if t.SamplingRatePerMillion != nil {
		v.between("tracing.samplingRatePerMillion", int64(*t.SamplingRatePerMillion), 0, 1000000)
	}
	if t.Endpoint != nil && strings.Contains(*t.Endpoint, "//") {
		u, err := url.Parse(*t.Endpoint)
		if err != nil || !slices.Contains([]string{"dns", "unix", "unix-abstract"}, u.Scheme) {
			v.bad("tracing.endpoint", "%q is not host:port and not a dns, unix or unix-abstract address", *t.Endpoint)
		}
	}
}

var taintEffects = []string{
	string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute),
}

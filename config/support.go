package config

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/nodelet/nodelet/internal/strict"
)

// Support says what nodelet does with a setting, a feature gate or a field of a pod.
type Support string

// What nodelet can do with something that the kubelet knows.
const (
	Acts     Support = "acts"             // as the kubelet
	Differs  Support = "acts differently" // a note says how
	Refused  Support = "refused"          // with an error that names it
	NoEffect Support = "no effect"        // accepted; a note says why, or what to do instead
)

// differences says how a field, or a flag with its dashes, acts otherwise than in the kubelet.
var differences = map[string]string{
	"--bootstrap-kubeconfig": "without --kubeconfig it is an error; the kubelet runs without a cluster then",
	"--config": "an unknown field with a value, a duplicate field or a second document is an error; " +
		"the kubelet is lenient",
	"--node-ip":                 "a text that is no address is an error; the kubelet ignores it",
	"--version":                 "nodelet's own version is the build part of the version",
	"clusterDNS":                "a text that is no address is an error; the kubelet ignores it",
	"cgroupRoot":                "a cgroup that does not exist is created; the kubelet refuses to start",
	"enforceNodeAllocatable":    "an empty list in the file of --config counts with --config-dir too",
	"evictionHard":              "without a configuration file, or if a drop-in sets null, the defaults apply",
	"failCgroupV1":              "nodelet refuses to start only if you set true; the kubelet does so by default",
	"failSwapOn":                "nodelet refuses to start only if you set true; the kubelet does so by default",
	"featureGates":              "an unknown or locked gate is a warning; the kubelet refuses to start",
	"nodeStatusReportFrequency": "its default follows nodeStatusUpdateFrequency in drop-in files too",
	"registryBurst":             "has an effect only if you set it or registryPullQPS",
	"registryPullQPS":           "has an effect only if you set it or registryBurst; pulls wait instead of failing",
	"serializeImagePulls":       "has an effect only if you set true; by default different images are pulled in parallel",
	"maxParallelImagePulls":     "it needs no serializeImagePulls: false in drop-in files either",
	"memorySwap.swapBehavior":   "LimitedSwap on cgroup v1 bounds swap to memory; the kubelet refuses to start",
	"systemCgroups":             "it is measured; processes are not moved into it: let systemd place them",
	"staticPodURL":              "/configz and /flagz mask a password in it; the kubelet shows it",
	"staticPodURLHeader":        "/configz masks headers that are named like credentials; the kubelet shows them",
	"singleProcessOOMKill":      "false on cgroup v1 is accepted; the kubelet refuses to start",
	"tracing.endpoint":          "incoming requests have no spans; steps of pods have",
	"readOnlyPort":              "it is closed without a configuration file, and with enableServer: false",
	"logging.verbosity":         "nodelet has three levels: below 2, below 4, and 4 or more",

	"authentication.anonymous.enabled": "the default without a configuration file is false too",
	"authentication.webhook.enabled":   "the default without a configuration file is true too",
	"authorization.mode":               "the default without a configuration file is Webhook too",
	"streamingConnectionIdleTimeout":   "it ends streams; in the kubelet it has no effect",
	"enableProfilingHandler":           "with false the path is not found; the kubelet answers that it is disabled",
}

// refusedFields are the fields of which only the zero value is accepted.
var refusedFields = []string{"runOnce"}

// usual has, for settings without effect, the value that describes what nodelet does anyway, as JSON. It causes no
// warning.
var usual = map[string]string{
	"contentType": `"application/vnd.kubernetes.protobuf"`,
	"configMapAndSecretChangeDetectionStrategy": `"Watch"`,
	"kernelMemcgNotification":                   "true",
	"--maximum-dead-containers-per-container":   "1",
}

// breaks has the settings without effect on which pods may rely. Without them a pod runs with less than it was
// promised, so nodelet does not start with them unless --accept-missing names them.
var breaks = map[string]loss{
	"qosReserved": {"QOSReserved", "the memory requests of pods are not reserved"},
}

// loss is what pods lose. The kubelet acts on the setting only with the gate.
type loss struct{ gate, text string }

// name returns the field, or the flag with its dashes if there is no field.
func (k *setting) name() string {
	if k.field != "" {
		return k.field
	}
	return dashed(k.flag)
}

// support returns what nodelet does with a setting, and how it differs.
func (k *setting) support() (Support, string) {
	how, differs := differences[k.name()]
	switch {
	case slices.Contains(refusedFields, k.field):
		return Refused, ""
	case !k.acts:
		return NoEffect, ""
	case differs:
		return Differs, how
	}
	return Acts, ""
}

// asksForNothing reports whether a written value of a setting without effect needs no warning: it is a zero value,
// which tools write for "not set", or describes what nodelet does anyway.
func (k *setting) asksForNothing(value any) bool {
	text, err := json.Marshal(value)
	return strict.IsEmpty(value) || err == nil && string(text) == usual[k.name()]
}

// Missing returns an error for the first setting without effect on which pods rely and that accepted does not name.
func (c *Config) Missing(accepted ...string) error {
	for _, w := range c.Warnings {
		if w.Breaks != "" && !slices.Contains(accepted, w.Field) && !slices.Contains(c.AcceptMissing, w.Field) {
			return fmt.Errorf("%s has no effect in nodelet: %s; to start anyway, add --accept-missing=%s",
				w.Setting(), w.Breaks, w.Field)
		}
	}
	return nil
}

package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

//go:embed gates.txt
var gatesText string

// gate is what Kubernetes says of one feature gate.
type gate struct {
	on, locked bool
	stage      string // ALPHA, BETA, GA or DEPRECATED
}

// gateActs are the gates whose value changes what nodelet does. Add one in the change that makes it so.
var gateActs = []string{"AllAlpha", "AllBeta", "CSIVolumeHealth", "ClusterTrustBundle", "ClusterTrustBundleProjection", "ComponentStatusz",
	"ContainerCheckpoint", "KubeletCrashLoopBackOffMax", "KubeletServiceAccountTokenForCredentialProviders", "MemoryQoS", "PodCertificateRequest", "ReduceDefaultCrashLoopBackOffDecay", "SELinuxMount"}

// gates reads the list of Kubernetes once, and only where a gate is asked for.
var gates = sync.OnceValue(func() map[string]gate {
	all := map[string]gate{}
	for line := range strings.Lines(gatesText) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "#" {
			all[f[0]] = gate{on: f[1] == "true", locked: f[2] == "locked", stage: f[3]}
		}
	}
	return all
})

// gateEnabled says whether a gate is on, given the settings of the user. A gate's own setting wins over AllAlpha and
// AllBeta, and nothing opens or closes a locked one.
func gateEnabled(set map[string]bool, name string) bool {
	g, known := gates()[name]
	if g.locked {
		return g.on
	}
	if on, ok := set[name]; ok {
		return on
	}
	all := map[string]string{"ALPHA": "AllAlpha", "BETA": "AllBeta"}[g.stage]
	if on, ok := set[all]; ok && known && name != all {
		return on
	}
	return g.on
}

// gateWarnings tells which settings change nothing: the kubelet's list of gates moves with every release, so that an
// unknown one is no reason to leave a node without its agent.
func gateWarnings(set map[string]bool) []Warning {
	var all []Warning
	for _, name := range slices.Sorted(maps.Keys(set)) {
		g, known := gates()[name]
		w := Warning{Field: "featureGates." + name}
		switch {
		case !known:
			w.Text = fmt.Sprintf("is no feature gate of Kubernetes %s%s", KubernetesVersion, DidYouMean(name, slices.Collect(maps.Keys(gates()))))
		case set[name] == g.on:
			continue
		case g.locked:
			w.Text = fmt.Sprintf("is locked to %v in Kubernetes %s; the setting has no effect", g.on, KubernetesVersion)
		case !slices.Contains(gateActs, name):
			w.Text = noEffectText
		default:
			continue
		}
		all = append(all, w)
	}
	return all
}

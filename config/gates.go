package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nodelet/nodelet/internal/suggest"
)

//go:embed gates.txt
var gatesText string

// gate is a feature gate of Kubernetes.
type gate struct {
	on, locked bool
	stage      string // ALPHA, BETA, GA or DEPRECATED
}

// gates parses the list of Kubernetes once, when a gate is first needed.
var gates = sync.OnceValue(func() map[string]gate {
	all := map[string]gate{}
	for line := range strings.Lines(gatesText) {
		if f := strings.Fields(line); len(f) == 5 && f[0] != "#" {
			all[f[0]] = gate{on: f[1] == "true", locked: f[2] == "locked", stage: f[3]}
		}
	}
	return all
})

// gateEnabled reports whether a gate is on with the user's settings. The setting of a gate overrides AllAlpha and
// AllBeta; a locked gate does not change.
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

// gateWarnings returns the settings without effect. An unknown gate is only a warning, because the list of gates
// changes with every release of Kubernetes.
func gateWarnings(set map[string]bool) []Warning {
	var all []Warning
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if text := gateWarning(name, set[name]); text != "" {
			all = append(all, Warning{Field: "featureGates." + name, Text: text})
		}
	}
	return all
}

// gateWarning says why a gate does not do what its setting asks for, or returns "".
func gateWarning(name string, on bool) string {
	g, known := gates()[name]
	rule, hasRule := gateRules[name]
	switch {
	case !known:
		return fmt.Sprintf("is not a feature gate of Kubernetes %s%s", KubernetesVersion,
			suggest.DidYouMean(name, slices.Collect(maps.Keys(gates()))))
	case g.locked && on != g.on:
		return fmt.Sprintf("is locked to %v in Kubernetes %s; the setting has no effect", g.on, KubernetesVersion)
	case !hasRule && on != g.on:
		return noEffectText + ": it is not a gate of the kubelet"
	case !hasRule || rule.behaves == behavesAsSet || on == (rule.behaves == behavesAsOn):
		return ""
	case rule.note != "":
		return noEffectText + ": " + rule.note
	}
	return noEffectText
}

package cpu

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Options are KubeletConfiguration cpuManagerPolicyOptions.
type Options struct {
	// FullCores gives a container whole physical cores only, or refuses it (full-pcpus-only).
	FullCores bool
	// SpreadNodes takes equally many CPUs from each NUMA node, if one node has too few (distribute-cpus-across-numa).
	SpreadNodes bool
	// AlignSocket prefers CPUs of one socket instead of CPUs of one NUMA node (align-by-socket).
	AlignSocket bool
	// SpreadCores takes CPUs of different cores (distribute-cpus-across-cores).
	SpreadCores bool
	// StrictReservation keeps the shared pool away from the reserved CPUs (strict-cpu-reservation).
	StrictReservation bool
	// AlignCache prefers CPUs that share an uncore cache (prefer-align-cpus-by-uncorecache).
	AlignCache bool
}

// option is one policy option: the field that it sets, and the feature gate that it needs; empty for none.
type option struct {
	field func(*Options) *bool
	gate  string
}

const (
	fullCores         = "full-pcpus-only"
	spreadNodes       = "distribute-cpus-across-numa"
	alignSocket       = "align-by-socket"
	spreadCores       = "distribute-cpus-across-cores"
	strictReservation = "strict-cpu-reservation"
	alignCache        = "prefer-align-cpus-by-uncorecache"

	gateAlpha = "CPUManagerPolicyAlphaOptions"
	gateBeta  = "CPUManagerPolicyBetaOptions"
)

var options = map[string]option{
	fullCores:         {func(o *Options) *bool { return &o.FullCores }, ""},
	spreadNodes:       {func(o *Options) *bool { return &o.SpreadNodes }, gateBeta},
	alignSocket:       {func(o *Options) *bool { return &o.AlignSocket }, gateAlpha},
	spreadCores:       {func(o *Options) *bool { return &o.SpreadCores }, gateAlpha},
	strictReservation: {func(o *Options) *bool { return &o.StrictReservation }, ""},
	alignCache:        {func(o *Options) *bool { return &o.AlignCache }, ""},
}

// ParseOptions parses cpuManagerPolicyOptions. gate reports whether a feature gate is on.
func ParseOptions(given map[string]string, gate func(string) bool) (Options, error) {
	var o Options
	for _, name := range slices.Sorted(maps.Keys(given)) {
		known, ok := options[name]
		if !ok {
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		}
		if known.gate != "" && !gate(known.gate) {
			return o, fmt.Errorf("option %q needs the feature gate %s", name, known.gate)
		}
		value, err := strconv.ParseBool(given[name])
		if err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
		*known.field(&o) = value
	}
	return o, o.conflict()
}

// conflict returns an error for options that contradict each other.
func (o *Options) conflict() error {
	for _, pair := range [][2]string{
		{fullCores, spreadCores},
		{spreadNodes, spreadCores},
		{alignCache, spreadCores},
		{alignCache, spreadNodes},
	} {
		if *options[pair[0]].field(o) && *options[pair[1]].field(o) {
			return fmt.Errorf("static policy options %s and %s can not be used at the same time", pair[0], pair[1])
		}
	}
	return nil
}

package main

import (
	"fmt"
	"maps"
	"slices"
)

// suite is a set of specs with a name, which is a row of the matrix in docs/conformance.md.
type suite struct {
	title              string
	focus, skip, label string
}

// usual leaves out specs that need the node for themselves, take long, or fail now and then by themselves.
const usual = " && !Serial && !Disruptive && !Slow && !Flaky"

// suites are the values of the flag -suite.
var suites = map[string]suite{
	"node": {
		title: "NodeConformance of `[sig-node]`",
		focus: `\[sig-node\]`,
		label: "NodeConformance" + usual,
	},
	"storage": {
		title: "NodeConformance of `[sig-storage]`",
		focus: `\[sig-storage\]`,
		label: "NodeConformance" + usual,
	},
	"resize": {
		title: "in-place resize, without Serial and Slow",
		focus: `Pod InPlace Resize|Pod Level Resources.*[Rr]esize`,
		label: "!Alpha" + usual,
	},
	"conformance": {
		title: "Conformance of all groups, without Serial, Disruptive and Slow",
		focus: `.`,
		label: "Conformance" + usual,
	},
}

// defaultSuite is what every node must pass.
const defaultSuite = "node"

// choose fills in the expressions of the named suite. FOCUS, SKIP and LABEL replace the suite; the run then has none,
// and neither has one of the suite for a single node.
func (o *options) choose() error {
	s, ok := suites[o.suite]
	switch {
	case !ok:
		return fmt.Errorf("-suite %q: use one of %q", o.suite, slices.Sorted(maps.Keys(suites)))
	case o.node || o.focus != "" || o.skip != "" || o.label != "":
		o.suite = ""
	default:
		o.focus, o.skip, o.label = s.focus, s.skip, s.label
	}
	return nil
}

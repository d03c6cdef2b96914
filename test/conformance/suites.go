package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// suite is a set of specs with a name, which is a row of the matrix in docs/conformance.md.
type suite struct {
	title              string
	focus, skip, label string
	// node: its specs are those of the suite for a single node, test/e2e_node.
	node bool
	// nodes is the number of nodes that its specs need; 0 means 1.
	nodes int
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
		title: "Conformance of all groups, on two nodes",
		focus: `.`,
		label: "Conformance",
		nodes: 2,
	},
	"single-api": {
		title: "`e2e_node`: metrics, statistics, `/configz`, local APIs",
		focus: `ContainerMetrics|ResourceMetricsAPI|Summary API|P(OD|od) Resources API|Kubelet Pods API|` +
			`Kubelet Endpoints|Kubelet Config|Kubelet TLS|Kubelet server TLS|certificate reload`,
		label: "!Flaky",
		node:  true,
	},
	"single-pods": {
		title: "`e2e_node`: static, critical, deleted and unknown pods, conditions, OOM kills, restarts of the agent",
		focus: `MirrorPod|StaticPod|\] CriticalPod|Pod conditions managed|Deleted pods|Unknown Pods|Terminate Pods|` +
			`Restart Kubelet|RestartAllContainersWithKubeletRestarts|Pods status phase|OOMKiller|PodPidsLimit`,
		label: "!Flaky",
		node:  true,
	},
	"single-lifecycle": {
		title: "`e2e_node`: lifecycle of containers, init containers and sidecars",
		focus: `Containers Lifecycle`,
		label: "!Flaky",
		node:  true,
	},
	"single-managers": {
		title: "`e2e_node`: CPU, memory and topology managers",
		focus: `(CPU|Memory|Topology) Manager`,
		label: "!Flaky",
		node:  true,
	},
	"single-eviction": {
		title: "`e2e_node`: eviction by memory, disk, inodes and processes, image garbage collection",
		focus: `Eviction|ImageGC|ImageGarbageCollect|SystemNodeCriticalPod`,
		label: "!Flaky",
		node:  true,
	},
	"single-cgroups": {
		title: "`e2e_node`: memory QoS, swap, reserved resources, OOM scores, cgroups of pods",
		focus: `MemoryQoS|\] Swap|Node Container Manager|Cgroup reconciliation|Container Manager Misc`,
		label: "!Flaky",
		node:  true,
	},
	"single-devices": {
		title: "`e2e_node`: device plugins",
		focus: `Device (Plugin|Manager)`,
		label: "!Flaky",
		node:  true,
	},
	"single-node": {
		title: "`e2e_node`: old containers, logs, cgroups, sysctls, seccomp, overhead, client CA, kept statuses",
		focus: `\] GarbageCollect|ContainerLog(Rotation|Path)|Kubelet Cgroup Manager|DefaultPodSysctls|SeccompDefault|` +
			`PodOverhead|Pod SIGKILL|Kubelet Volume Manager|ReloadKubeletClientCAFileTest|Not Change Container Status|` +
			`Sidecar container restart after kubelet restart`,
		label: "!Flaky",
		node:  true,
	},
	"single-conformance": {
		title: "`e2e_node`: the rest of NodeConformance, image volumes, pull credentials, huge pages, user namespaces",
		focus: `\] (Hostname of Pod|Pod (Host )?IPs|Mount recursive read-only|(Default)?ProcMount|AppArmor|ImageVolume|` +
			`(Pod Level )?HugePages|HugepageAware|OSArchLabel|Ensure Credential|Probe Stress|user namespaces|` +
			`Checkpoint Container|Container Runtime Conformance)|PID namespace sharing|in the host (IPC|network)`,
		// Without huge pages of 2 MiB this spec leaves the agent stopped, and those after it fail.
		skip:  `should add resources for new huge page sizes`,
		label: "!Flaky",
		node:  true,
	},
	"single-dra": {
		title: "`e2e_node`: drivers of dynamic resources (DRA)",
		focus: `\[DRA\] \[Feature:DynamicResourceAllocation\]`,
		label: "!Flaky",
		skip:  `OffByDefault`,
		node:  true,
	},
	"single-runtime": {
		title: "`e2e_node`: errors, delays and an old version of the container runtime, back-off of restarts and pulls",
		focus: proxySpecs,
		label: "!Flaky",
		skip:  `OffByDefault`,
		node:  true,
	},
	"single-standalone": {
		title: "`e2e_node`: static pods of an agent without an API server",
		focus: standaloneSpecs,
		label: "!Flaky",
		node:  true,
	},
}

// proxySpecs is in the names of specs of which each call to the runtime goes through the suite's own proxy, in which
// they make calls fail or take long.
const proxySpecs = "Feature:CriProxy"

// standaloneSpecs is in the names of specs for which the suite starts the agent without an API server.
const standaloneSpecs = "Feature:StandaloneMode"

// The suites of a run that names none: what every node must pass.
const (
	defaultSuite     = "node"
	defaultNodeSuite = "single-pods"
)

// choose fills in the expressions of the named suite and the number of nodes. FOCUS, SKIP and LABEL replace the suite;
// the run then has none, but as many nodes.
func (o *options) choose() error {
	if o.suite == "" {
		o.suite = defaultSuite
		if o.node {
			o.suite = defaultNodeSuite
		}
	}
	s := suites[o.suite]
	o.testbed.Nodes = max(1, cmp.Or(o.testbed.Nodes, s.nodes))
	switch {
	case s.title == "" || s.node != o.node:
		return fmt.Errorf("-suite %q: use one of %q", o.suite, o.suiteNames())
	case o.focus != "" || o.skip != "" || o.label != "":
		o.suite = ""
	default:
		o.focus, o.skip = s.focus, s.skip
		o.label = s.label
	}
	return nil
}

// suiteNames returns the suites that this program of the Kubernetes tests has.
func (o *options) suiteNames() []string {
	all := slices.Sorted(maps.Keys(suites))
	return slices.DeleteFunc(all, func(name string) bool { return suites[name].node != o.node })
}

package admission

import (
	"cmp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/agent/podstate"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// podOf returns a pod from YAML.
func podOf(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "web", "default"
	pod.UID = "uid"
	fromYAML(t, text, pod)
	return pod
}

func fromYAML(t testing.TB, text string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		t.Fatalf("parse YAML: %v in:\n%s", err, text)
	}
}

// admitNode is a node with the resources that the kubelet's own predicate tests assume.
const (
	admitNode = `{metadata: {name: machine1, labels: {kubernetes.io/os: linux, zone: a}}}`
	admitFree = `{cpu: 10m, memory: "20", pods: "32", ephemeral-storage: "20", example.com/gpu: "5", hugepages-2Mi: "5"}`
)

// nodeOf is a node with a device plugin for example.com/gone.
func nodeOf(object *corev1.Node, allocatable corev1.ResourceList) Node {
	return Node{
		Object:      object,
		Allocatable: allocatable,
		Device:      func(resource string) bool { return resource == "example.com/gone" },
		Volume:      podfs.Supported,
	}
}

func requests(cpuAndMore string) string {
	return `{spec: {containers: [{name: app, resources: {requests: ` + cpuAndMore + `}}]}}`
}

func TestAdmit(t *testing.T) {
	tests := []struct {
		name   string
		pod    string
		others []string
		node   string // admitNode where empty
		free   string // admitFree where empty
		want   *podstate.Rejection
	}{
		{name: "a pod without requests", pod: `{spec: {containers: [{name: app}]}}`},
		{
			name:   "fits beside another",
			pod:    requests(`{cpu: 8m, memory: "10"}`),
			others: []string{requests(`{cpu: 2m, memory: "10"}`)},
		},
		{
			name: "cpu", pod: requests(`{cpu: 8m, memory: "10"}`), others: []string{requests(`{cpu: 5m, memory: "19"}`)},
			want: reject("OutOfcpu", "Node didn't have enough resource: cpu, requested: 8, used: 5, capacity: 10"),
		},
		{
			name: "memory", pod: requests(`{cpu: 1m, memory: "2"}`), others: []string{requests(`{cpu: 5m, memory: "19"}`)},
			want: reject("OutOfmemory", "Node didn't have enough resource: memory, requested: 2, used: 19, capacity: 20"),
		},
		{
			name: "ephemeral storage", pod: requests(`{ephemeral-storage: "25"}`), want: reject("OutOfephemeral-storage",
				"Node didn't have enough resource: ephemeral-storage, requested: 25, used: 0, capacity: 20"),
		},
		{
			name: "memory of a pod that is being resized to less", pod: requests(`{memory: "2"}`),
			others: []string{`{spec: {containers: [{name: app, resources: {requests: {memory: "5"}}}]},
				status: {resources: {requests: {memory: "19"}}}}`},
			want: reject("OutOfmemory", "Node didn't have enough resource: memory, requested: 2, used: 19, capacity: 20"),
		},
		{
			name: "memory of a pod that is being resized to more", pod: requests(`{memory: "2"}`),
			others: []string{`{spec: {containers: [{name: app, resources: {requests: {memory: "19"}}}]},
				status: {resources: {requests: {memory: "5"}}}}`},
			want: reject("OutOfmemory", "Node didn't have enough resource: memory, requested: 2, used: 19, capacity: 20"),
		},
		{
			name: "overhead of another pod counts once", pod: requests(`{memory: "5"}`),
			others: []string{`{spec: {overhead: {memory: "5"}, containers: [{name: app, resources: {requests: {memory: "10"}}}]},
				status: {resources: {requests: {memory: "15"}}, allocatedResources: {memory: "15"}}}`},
		},
		{
			name: "an extended resource", pod: requests(`{example.com/gpu: "3"}`),
			others: []string{requests(`{example.com/gpu: "3"}`)},
			want: reject("OutOfexample.com/gpu",
				"Node didn't have enough resource: example.com/gpu, requested: 3, used: 3, capacity: 5"),
		},
		{name: "an extended resource that the node does not offer", pod: requests(`{example.com/license: "1"}`)},
		{
			name: "huge pages", pod: requests(`{hugepages-2Mi: "6"}`),
			want: reject("OutOfhugepages-2Mi",
				"Node didn't have enough resource: hugepages-2Mi, requested: 6, used: 0, capacity: 5"),
		},
		{
			name: "huge pages of a size that the node lacks", pod: requests(`{hugepages-1Gi: "1"}`),
			want: reject("OutOfhugepages-1Gi",
				"Node didn't have enough resource: hugepages-1Gi, requested: 1, used: 0, capacity: 0"),
		},
		{
			name: "the number of pods", pod: `{spec: {containers: [{name: app}]}}`, others: []string{requests(`{}`)},
			free: `{pods: "1"}`,
			want: reject("OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"),
		},
		{
			name: "an init container counts if it requests more",
			pod: `{spec: {initContainers: [{name: first, resources: {requests: {cpu: 11m}}}],
				containers: [{name: app, resources: {requests: {cpu: 1m}}}]}}`,
			want: reject("OutOfcpu", "Node didn't have enough resource: cpu, requested: 11, used: 0, capacity: 10"),
		},
		{
			name: "pod-level resources count for the pod",
			pod:  `{spec: {resources: {requests: {cpu: 11m}}, containers: [{name: app, resources: {requests: {cpu: 1m}}}]}}`,
			want: reject("OutOfcpu", "Node didn't have enough resource: cpu, requested: 11, used: 0, capacity: 10"),
		},
		{
			name: "overhead counts", pod: `{spec: {overhead: {cpu: 11m}, containers: [{name: app}]}}`,
			want: reject("OutOfcpu", "Node didn't have enough resource: cpu, requested: 11, used: 0, capacity: 10"),
		},
		{
			name: "another node's name", pod: `{spec: {nodeName: machine2, containers: [{name: app}]}}`,
			want: reject("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name"),
		},
		{
			name: "node selector", pod: `{spec: {nodeSelector: {zone: b}, containers: [{name: app}]}}`,
			want: reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
		},
		{name: "node selector that fits", pod: `{spec: {nodeSelector: {zone: a}, containers: [{name: app}]}}`},
		{
			name: "node affinity",
			pod: `{spec: {containers: [{name: app}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:
				{nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}}}}`,
			want: reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
		},
		{
			name: "a static pod's selector counts too",
			pod: `{metadata: {annotations: {kubernetes.io/config.source: file}}, spec: {nodeSelector: {zone: b},
				containers: [{name: app}]}}`,
			want: reject("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
		},
		{
			name:   "a host port",
			pod:    `{spec: {containers: [{name: app, ports: [{containerPort: 123, hostPort: 123}]}]}}`,
			others: []string{`{spec: {containers: [{name: app, ports: [{containerPort: 123, hostPort: 123, protocol: TCP}]}]}}`},
			want: reject("NodePorts",
				"Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
		},
		{
			name: "the same port on another address and protocol",
			pod:  `{spec: {containers: [{name: app, ports: [{containerPort: 1, hostPort: 123, hostIP: 127.0.0.1}]}]}}`,
			others: []string{`{spec: {containers: [{name: app, ports: [{containerPort: 1, hostPort: 123, hostIP: 127.0.0.2},
				{containerPort: 1, hostPort: 123, protocol: UDP}]}]}}`},
		},
		{
			name: "a sidecar's host port on all addresses",
			pod:  `{spec: {containers: [{name: app, ports: [{containerPort: 1, hostPort: 123, hostIP: 127.0.0.1}]}]}}`,
			others: []string{`{spec: {initContainers: [{name: mesh, restartPolicy: Always, ports: [{containerPort: 1,
				hostPort: 123}]}], containers: [{name: app}]}}`},
			want: reject("NodePorts",
				"Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
		},
		{
			name: "a taint with effect NoExecute", pod: `{spec: {containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: bar, effect: NoExecute}]}}`,
			want: reject("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"),
		},
		{
			name: "a taint with effect NoSchedule", pod: `{spec: {containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: bar, effect: NoSchedule}]}}`,
		},
		{
			name: "a taint that is tolerated",
			pod:  `{spec: {tolerations: [{key: foo, value: bar, effect: NoExecute}], containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: bar, effect: NoExecute}]}}`,
		},
		{
			name: "a toleration of everything", pod: `{spec: {tolerations: [{operator: Exists}], containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: bar, effect: NoExecute}]}}`,
		},
		{
			name: "a toleration of another value",
			pod:  `{spec: {tolerations: [{key: foo, value: baz}], containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: bar, effect: NoExecute}]}}`,
			want: reject("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"),
		},
		{
			name: "a toleration of larger numbers",
			pod:  `{spec: {tolerations: [{key: foo, operator: Gt, value: "900"}], containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: "950", effect: NoExecute}]}}`,
		},
		{
			name: "a toleration of smaller numbers",
			pod:  `{spec: {tolerations: [{key: foo, operator: Lt, value: "900"}], containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: "950", effect: NoExecute}]}}`,
			want: reject("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"),
		},
		{
			name: "static pods stay on tainted nodes",
			pod:  `{metadata: {annotations: {kubernetes.io/config.source: file}}, spec: {containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, spec: {taints: [{key: foo, value: bar, effect: NoExecute}]}}`,
		},
		{
			name: "label for another OS",
			pod:  `{metadata: {labels: {kubernetes.io/os: windows}}, spec: {containers: [{name: app}]}}`,
			want: reject("PodOSSelectorNodeLabelDoesNotMatch",
				"Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"),
		},
		{
			name: "another OS", pod: `{spec: {os: {name: windows}, containers: [{name: app}]}}`,
			want: reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
		},
		{
			name: "this OS",
			pod:  `{metadata: {labels: {kubernetes.io/os: linux}}, spec: {os: {name: linux}, containers: [{name: app}]}}`,
		},
		{
			name: "strict groups on a runtime without them",
			pod:  `{spec: {securityContext: {supplementalGroupsPolicy: Strict}, containers: [{name: app}]}}`,
			want: reject("SupplementalGroupsPolicyNotSupported",
				"SupplementalGroupsPolicy=Strict is not supported in this node"),
		},
		{
			name: "strict groups on a runtime that has them",
			pod:  `{spec: {securityContext: {supplementalGroupsPolicy: Strict}, containers: [{name: app}]}}`,
			node: `{metadata: {name: machine1}, status: {features: {supplementalGroupsPolicy: true}}}`,
		},
		{
			name: "gitRepo that no container mounts",
			pod:  `{spec: {volumes: [{name: src, gitRepo: {repository: "x"}}], containers: [{name: app}]}}`,
		},
		{
			name: "gitRepo",
			pod: `{spec: {volumes: [{name: src, gitRepo: {repository: "x"}}],
				containers: [{name: app, volumeMounts: [{name: src}]}]}}`,
			want: reject("UnexpectedAdmissionError", `volume "src": gitRepo is unsupported, because a repository's hooks would `+
				`run as root on the node: clone into an emptyDir from an init container instead`),
		},
		{
			name: "a device whose plugin is gone",
			pod: `{spec: {containers: [{name: app, resources: {limits: {example.com/gone: 1},
				requests: {example.com/gone: 1}}}]}}`,
			free: `{cpu: 10m, memory: "20", pods: "32", example.com/gone: "0"}`,
		},
		{
			name: "a Windows host process, which admission does not check",
			pod:  `{spec: {containers: [{name: app, securityContext: {windowsOptions: {hostProcess: true}}}]}}`,
		},
		{
			name: "resource claims",
			pod:  `{spec: {resourceClaims: [{name: gpu, resourceClaimName: x}], containers: [{name: app}]}}`,
		},
		{
			name: "an extended resource of a device class, with a ResourceClaim",
			pod: `{spec: {containers: [{name: app, resources: {requests: {deviceclass.resource.kubernetes.io/gpu: 1}}}]},
				status: {extendedResourceClaimStatus: {resourceClaimName: x, requestMappings:
				[{containerName: app, resourceName: deviceclass.resource.kubernetes.io/gpu, requestName: r}]}}}`,
		},
		{
			name: "an extended resource of a device class, without a ResourceClaim",
			pod:  `{spec: {containers: [{name: app, resources: {requests: {deviceclass.resource.kubernetes.io/gpu: 1}}}]}}`,
			want: reject("OutOfdeviceclass.resource.kubernetes.io/gpu",
				"Node didn't have enough resource: deviceclass.resource.kubernetes.io/gpu, requested: 1, used: 0, capacity: 0"),
		},
		{
			name: "restart of all containers",
			pod: `{spec: {containers: [{name: app, restartPolicy: Never, restartPolicyRules:
				[{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]}]}}`,
		},
		{
			name: "user namespace on the host network",
			pod:  `{spec: {hostNetwork: true, hostUsers: false, containers: [{name: app}]}}`,
			want: reject("PodFeatureUnsupported",
				"Pod requires node features that are not available: UserNamespacesHostNetworkSupport"),
		},
		{
			name: "options of bind mounts on a node without them",
			pod: `{spec: {initContainers: [{name: init}, {name: app,
				volumeMounts: [{name: a, mountPath: /a, bindMountOptions: [noexec]}]}]}}`,
			want: reject("PodFeatureUnsupported",
				"Pod requires node features that are not available: VolumeBindMountOptions"),
		},
		{
			name: "options of bind mounts",
			pod: `{spec: {containers: [{name: app,
				volumeMounts: [{name: a, mountPath: /a, bindMountOptions: [noexec]}]}]}}`,
			node: `{metadata: {name: node}, status: {declaredFeatures: [VolumeBindMountOptions]}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node, free := &corev1.Node{}, corev1.ResourceList{}
			fromYAML(t, cmp.Or(tt.node, admitNode), node)
			fromYAML(t, cmp.Or(tt.free, admitFree), &free)
			var others []*corev1.Pod
			for _, text := range tt.others {
				others = append(others, podOf(t, text))
			}
			got := Admit(podOf(t, tt.pod), nodeOf(node, free), others).Rejection
			if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestHugeRequests checks that requests beyond any number that a program counts with are refused, and that a pod that
// has them leaves nothing to others.
func TestHugeRequests(t *testing.T) {
	const half = `resources: {requests: {memory: "4611686018427387904"}}` // of the sum that no longer fits into int64
	free := corev1.ResourceList{}
	fromYAML(t, admitFree, &free)
	node := nodeOf(nil, free)
	for name, text := range map[string]string{
		"sum of memory": `{spec: {containers: [{name: a, ` + half + `}, {name: b, ` + half + `}]}}`,
		"sum of memory is 0": `{spec: {containers: [{name: a, ` + half + `}, {name: b, ` + half + `},
			{name: c, ` + half + `}, {name: d, ` + half + `}]}}`,
		"CPU":               requests(`{cpu: "9223372036854775807"}`),
		"CPU, negative":     requests(`{cpu: "13835058055282163"}`),
		"CPU, 0":            requests(`{cpu: "18446744073709551616"}`),
		"memory":            requests(`{memory: 16Ei}`),
		"extended resource": requests(`{example.com/gpu: "18446744073709551616"}`),
	} {
		huge := podOf(t, text)
		if got := Admit(huge, node, nil).Rejection; got == nil {
			t.Errorf("%s: got admission, want a rejection", name)
		}
		critical := withPriority(podOf(t, text), 2_000_000_000)
		if got := Admit(critical, node, []*corev1.Pod{podOf(t, requests(`{cpu: 1m}`))}); got.Rejection == nil {
			t.Errorf("%s, critical: got admission after %d pods have ended, want a rejection", name, len(got.Preempt))
		}
		for _, others := range [][]*corev1.Pod{{huge}, slices.Repeat([]*corev1.Pod{huge}, 20)} {
			small := podOf(t, requests(`{cpu: 1m, memory: "1", example.com/gpu: "1"}`))
			if got := Admit(small, node, others).Rejection; got == nil {
				t.Errorf("%s: got admission beside %d such pods, want a rejection", name, len(others))
			}
			if got := Admit(withPriority(small, 2_000_000_000), node, others); len(got.Preempt) == 0 {
				t.Errorf("%s: got %+v for a critical pod beside %d such pods, want them to end", name, got, len(others))
			}
		}
	}
}

func TestAdmitWithoutANode(t *testing.T) {
	free := corev1.ResourceList{}
	fromYAML(t, admitFree, &free)
	pod := podOf(t, `{spec: {nodeSelector: {zone: b}, containers: [{name: app}]}}`)
	if got := Admit(pod, nodeOf(nil, free), nil).Rejection; got != nil {
		t.Errorf("got %+v for unknown labels, want admission", got)
	}
}

package spec

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

func requirements(cpuRequest, memoryRequest, cpuLimit, memoryLimit string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: list(cpuRequest, memoryRequest), Limits: list(cpuLimit, memoryLimit)}
}

func TestOOMScoreAdj(t *testing.T) {
	const capacity = 4_000_000_000
	always := corev1.ContainerRestartPolicyAlways
	memory := func(s string) corev1.ResourceRequirements { return requirements("", s, "", "") }
	critical := func(p *corev1.Pod) {
		p.Spec.Priority, p.Spec.PriorityClassName = new(int32(2_000_001_000)), "system-node-critical"
	}
	for name, c := range map[string]struct {
		resources corev1.ResourceRequirements
		change    func(*corev1.Pod)
		container string
		want      int64
	}{
		"best effort":   {want: 1000},
		"guaranteed":    {resources: requirements("1", "1Gi", "1", "1Gi"), want: -997},
		"a tenth":       {resources: memory("400M"), want: 900},
		"half":          {resources: memory("2G"), want: 500},
		"no memory":     {resources: requirements("1", "", "", ""), want: 999},
		"a trace":       {resources: memory("1"), want: 999},
		"all":           {resources: memory("4G"), want: 3},
		"more than all": {resources: memory("40G"), want: 3},
		"nearly all":    {resources: memory("3999999999"), want: 3},
		"sum beyond any number": {resources: memory("4611686018427387904"), change: func(p *corev1.Pod) {
			for _, name := range []string{"d", "e"} {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Resources: memory("4Ei")})
			}
			p.Spec.Resources = new(requirements("", "18446744073709551616", "", ""))
		}, want: 3},
		"beyond any number": {resources: memory("13835058055282163712"), want: 3},
		"product beyond":    {resources: memory("13835058055282163"), want: 3},
		"less than nothing": {resources: memory("1M"), change: func(p *corev1.Pod) {
			p.Spec.Resources = new(requirements("", "1k", "", ""))
		}, want: 999},
		"node critical": {change: critical, want: -997},
		"class without priority": {
			change: func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" },
			want:   1000,
		},
		"cluster critical": {change: func(p *corev1.Pod) {
			critical(p)
			p.Spec.PriorityClassName = "system-cluster-critical"
		}, want: 1000},
		"static, node critical": {change: func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
			p.Spec.PriorityClassName = "system-node-critical"
		}, want: -997},
		"from the API": {change: func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
			p.Spec.PriorityClassName = "system-node-critical"
		}, want: 1000},
		"mirror, node critical": {change: func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.mirror": "x"}
			p.Spec.PriorityClassName = "system-node-critical"
		}, want: -997},
		"sidecar like the app": {resources: memory("2G"), container: "side", change: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always, Resources: memory("40M")}}
		}, want: 500},
		"sidecar requests more": {resources: memory("400M"), container: "side", change: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always, Resources: memory("2G")}}
		}, want: 500},
		"sidecar, one app without a request": {resources: memory("2G"), container: "side", change: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always}}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "free"})
		}, want: 999},
		"init container, not a sidecar": {resources: memory("2G"), container: "setup", change: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "setup", Resources: memory("40M")}}
		}, want: 990},
		"the pod's other memory is shared": {resources: memory("400M"), change: func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "free"})
			p.Spec.Resources = new(memory("1200M"))
		}, want: 800},
		"pod requests only CPU": {resources: memory("400M"), change: func(p *corev1.Pod) {
			p.Spec.Resources = new(requirements("1", "", "", ""))
		}, want: 900},
	} {
		pod := testPod()
		pod.Spec.Containers[0].Resources = c.resources
		if c.change != nil {
			c.change(pod)
		}
		if c.container == "" {
			c.container = "c"
		}
		_, container := podutil.Container(&pod.Spec, c.container)
		if got := oomScoreAdj(pod, container, capacity); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
	pod := testPod()
	pod.Spec.Containers[0].Resources = memory("1G")
	if got := oomScoreAdj(pod, &pod.Spec.Containers[0], 0); got != 999 {
		t.Errorf("unknown capacity: got %d, want 999", got)
	}
	pod.Spec.Containers = nil
	if leastMemory(pod) != 0 || unclaimedMemory(pod) != 0 {
		t.Error("a pod without containers: got memory, want none")
	}
}

func TestQuotaPeriod(t *testing.T) {
	n := &Node{}
	if got := n.quotaPeriod(); got != 100000 {
		t.Errorf("default: got a period of %d µs, want 100000", got)
	}
	n.CPUCFSQuotaPeriod = 5 * time.Millisecond
	if got := n.quotaPeriod(); got != 5000 {
		t.Errorf("configured: got a period of %d µs, want 5000", got)
	}
}

func TestSwap(t *testing.T) {
	for name, c := range map[string]struct {
		resources corev1.ResourceRequirements
		change    func(*corev1.Pod, *Node)
		want      string // memory.swap.max
	}{
		"share":           {resources: requirements("", "2Gi", "", "4Gi"), want: "1073741824"}, // a quarter of 4 GiB
		"no limit":        {resources: requirements("", "2Gi", "", ""), want: "1073741824"},
		"fixed":           {resources: requirements("", "2Gi", "", "2Gi"), want: "0"},
		"no memory":       {resources: requirements("1", "", "", ""), want: "0"},
		"limit alone":     {resources: requirements("", "", "", "2Gi"), want: "0"},
		"best effort":     {want: "0"},
		"guaranteed":      {resources: requirements("1", "1Gi", "1", "1Gi"), want: "0"},
		"all the machine": {resources: requirements("", "8Gi", "", ""), want: "4294967296"},
		"beyond machine":  {resources: requirements("", "9Gi", "", ""), want: "0"},
		"off": {
			resources: requirements("", "2Gi", "", ""),
			change:    func(_ *corev1.Pod, n *Node) { n.Swap.Limited = false },
			want:      "0",
		},
		"critical": {
			resources: requirements("", "2Gi", "", ""),
			change:    func(p *corev1.Pod, _ *Node) { p.Spec.Priority = new(int32(2_000_000_000)) },
			want:      "0",
		},
		"no controller": {
			resources: requirements("", "2Gi", "", ""),
			change:    func(_ *corev1.Pod, n *Node) { n.Swap.Controller = false },
		},
		"unknown machine": {
			resources: requirements("", "2Gi", "", ""),
			change:    func(_ *corev1.Pod, n *Node) { n.Capacity = nil },
			want:      "0",
		},
	} {
		pod, node := testPod(), testNode(nodeFacts{SwapController: true, LimitedSwap: true})
		pod.Spec.Containers[0].Resources = c.resources
		if c.change != nil {
			c.change(pod, node)
		}
		got := ContainerResources(pod, &pod.Spec.Containers[0], node)
		if got.Unified["memory.swap.max"] != c.want || got.MemorySwapLimitInBytes != 0 {
			t.Errorf("%s: got %v", name, got)
		}
		node.CgroupV2 = false
		got = ContainerResources(pod, &pod.Spec.Containers[0], node)
		if got.Unified != nil || node.Swap.Controller && got.MemorySwapLimitInBytes != got.MemoryLimitInBytes {
			t.Errorf("%s on cgroup v1: got %v", name, got)
		}
	}
}

func TestMemoryQoS(t *testing.T) {
	for name, c := range map[string]struct {
		resources      corev1.ResourceRequirements
		tiered         bool
		min, low, high string
	}{
		"nothing": {min: "0", low: "0", high: "6764572672"}, // 0.9 of the 7 GiB allocatable
		// 1 GiB and 0.9 of what is left to the 7 GiB allocatable, in whole pages
		"untiered": {resources: requirements("", "1Gi", "", ""), min: "0", low: "0", high: "6871945216"},
		"burstable": {
			resources: requirements("", "1Gi", "", "2Gi"),
			tiered:    true,
			low:       "1073741824",
			high:      "2040107008",
		},
		"guaranteed": {resources: requirements("1", "1Gi", "1", "1Gi"), tiered: true, min: "1073741824",
			high: "max"},
		"limit alone": {
			resources: requirements("", "", "", "1Gi"),
			tiered:    true,
			min:       "0",
			low:       "0",
			high:      "966365184",
		},
		"request beyond the node": {resources: requirements("", "8Gi", "", ""), tiered: true, low: "8589934592",
			high: "max"},
	} {
		pod, node := testPod(), testNode(nodeFacts{MemoryQoS: "none"})
		node.MemoryQoS.Tiered = c.tiered
		pod.Spec.Containers[0].Resources = c.resources
		got := ContainerResources(pod, &pod.Spec.Containers[0], node).Unified
		if got["memory.min"] != c.min || got["memory.low"] != c.low || got["memory.high"] != c.high {
			t.Errorf("%s: got %v", name, got)
		}
		node.CgroupV2 = false
		if got := ContainerResources(pod, &pod.Spec.Containers[0], node).Unified; got != nil {
			t.Errorf("%s on cgroup v1: got %v", name, got)
		}
	}
	quiet := testNode(nodeFacts{MemoryQoS: "none", SingleProcessOOMKill: true})
	if got := ContainerResources(testPod(), &corev1.Container{}, quiet).Unified; len(got) != 3 {
		t.Errorf("without other settings: got %v, want three", got)
	}
	if wholePages(8191, 4096) != 4096 || wholePages(8191, 0) != 8191 {
		t.Error("got a partial page, want whole pages")
	}
}

// TestNotThrottled checks that memory.high of a container that is not throttled is reset, so that a resize ends the
// throttling of its earlier size or configuration.
func TestNotThrottled(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod, *Node){
		"unknown node":          func(_ *corev1.Pod, n *Node) { n.Allocatable = nil },
		"no throttling":         func(_ *corev1.Pod, n *Node) { n.MemoryQoS.ThrottlingFactor = 0 },
		"gate off":              func(_ *corev1.Pod, n *Node) { n.MemoryQoS = nil },
		"the pod has the limit": func(p *corev1.Pod, _ *Node) { p.Spec.Resources = new(requirements("", "", "", "4Gi")) },
		"the request is its limit": func(p *corev1.Pod, _ *Node) {
			p.Spec.Containers[0].Resources = requirements("", "1Gi", "", "1Gi")
		},
	} {
		pod, node := testPod(), testNode(nodeFacts{MemoryQoS: "none"})
		pod.Spec.Containers[0].Resources = requirements("", "1Gi", "", "")
		change(pod, node)
		if high := ContainerResources(pod, &pod.Spec.Containers[0], node).Unified["memory.high"]; high != "max" {
			t.Errorf("%s: got memory.high %q, want max", name, high)
		}
	}
}

// TestPodMemoryHigh checks that a pod with a limit of its own is throttled as a whole.
func TestPodMemoryHigh(t *testing.T) {
	pod, node := testPod(), testNode(nodeFacts{MemoryQoS: "none"})
	for name, c := range map[string]struct {
		pod    *corev1.ResourceRequirements
		factor float64
		want   string
	}{
		"no limit of the pod":   {factor: 0.9},
		"limit of the pod":      {pod: new(requirements("", "1Gi", "", "2Gi")), factor: 0.9, want: "2040107008"},
		"request equals limit":  {pod: new(requirements("", "1Gi", "", "1Gi")), factor: 0.9, want: "max"},
		"no throttling":         {pod: new(requirements("", "1Gi", "", "2Gi")), want: "max"},
		"request without limit": {pod: new(requirements("", "1Gi", "", "")), factor: 0.9},
	} {
		pod.Spec.Resources, node.MemoryQoS.ThrottlingFactor = c.pod, c.factor
		if got := PodCgroup(pod, node).unified["memory.high"]; got != c.want {
			t.Errorf("%s: got memory.high %q, want %q", name, got, c.want)
		}
	}
	pod.Spec.Resources, node.MemoryQoS = new(requirements("", "1Gi", "", "2Gi")), nil
	if got := PodCgroup(pod, node).unified["memory.high"]; got != "max" {
		t.Errorf("gate off: got memory.high %q, want max", got)
	}
}

// TestThrottledByItsLimit checks that throttling begins elsewhere only together with the limit: while a cgroup still
// has the limit of an earlier size, it could use more than where throttling by the next one begins.
func TestThrottledByItsLimit(t *testing.T) {
	pod, node := testPod(), testNode(nodeFacts{MemoryQoS: "none"})
	node.MemoryQoS.Tiered, node.MemoryQoS.ThrottlingFactor = true, 0.9
	pod.Spec.Resources = new(requirements("", "1Gi", "", "2Gi"))
	want := PodCgroup(pod, node)
	for memory, high := range map[int64]string{2 << 30: "2040107008", 3 << 30: "", 1 << 30: "", 0: ""} {
		got := want.Unified(memory)
		if got["memory.high"] != high || got["memory.low"] != "1073741824" || want.unified["memory.high"] == "" {
			t.Errorf("limit %d: got %v, want memory.high %q and memory.low", memory, got, high)
		}
	}
}

func TestPodCgroup(t *testing.T) {
	node := testNode(nodeFacts{})
	node.PodPidsLimit = 100
	pod := testPod()
	pod.Spec.Containers[0].Resources = requirements("500m", "1Gi", "1", "2Gi")
	got := PodCgroup(pod, node)
	size := podstate.Size{Shares: 512, Quota: 100000, Period: 100000, Memory: 2 << 30}
	if got.Size != size || got.Pids != 100 || got.unified != nil {
		t.Errorf("burstable with limits: got %+v", got)
	}

	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "free"})
	if got := PodCgroup(pod, node); got.Size != (podstate.Size{Shares: 512}) {
		t.Errorf("one container without limits: got %+v", got)
	}
	pod.Spec.Resources = new(requirements("", "", "2", "4Gi"))
	if got := PodCgroup(pod, node); got.Size.Quota != 200000 || got.Size.Memory != 4<<30 {
		t.Errorf("limits of the pod: got %+v", got)
	}
	if got := PodCgroup(testPod(), node); got.Size != (podstate.Size{Shares: 2}) {
		t.Errorf("best effort: got %+v", got)
	}
	node.CPUCFSQuota = false
	if got := PodCgroup(pod, node); got.Size != (podstate.Size{Shares: 512, Memory: 4 << 30}) {
		t.Errorf("without CFS quota: got %+v, want neither quota nor period", got)
	}
	node.MemoryQoS = &MemoryQoS{Tiered: true, PageSize: 4096}
	guaranteed := testPod()
	guaranteed.Spec.Containers[0].Resources = requirements("1", "1Gi", "1", "1Gi")
	if got := PodCgroup(guaranteed, node); got.unified["memory.min"] != "1073741824" || len(got.unified) != 1 {
		t.Errorf("guaranteed: got %+v", got)
	}
}

// TestHugeLimits checks that limits and requests beyond any number that a program counts with do not become small ones
// or none.
func TestHugeLimits(t *testing.T) {
	node := testNode(nodeFacts{})
	pod := testPod()
	pod.Spec.Containers = slices.Repeat(pod.Spec.Containers, 3)
	for i, amount := range []string{"4611686018427387904", "4611686018427387904", "100Gi"} {
		pod.Spec.Containers[i].Resources = requirements("13835058055282163", amount, "13835058055282163", amount)
	}
	pod.Spec.Containers[0].Resources.Requests["hugepages-2Mi"] = resource.MustParse("16Ei")
	got := PodCgroup(pod, node)
	if got.Size.Memory < 1<<59 || got.Size.Quota < 1<<40 || got.Size.Shares != 262144 || got.Hugepages[2<<20] < 1<<59 {
		t.Errorf("pod: got %v, huge pages %v, want the most", got.Size, got.Hugepages)
	}
	huge := list("9223372036854775807", "16Ei")
	if got := linuxResources(node, huge, huge); got.MemoryLimitInBytes < 1<<59 || got.CpuQuota < 1<<40 ||
		got.CpuShares != 262144 {
		t.Errorf("container: got %+v, want the most", got)
	}
}

// TestCgroups checks that the parent of a sandbox is the cgroup that package cgroups makes for the pod, with both
// drivers; pods without cgroups of their own have none. A cgroupRoot may be a slice.
func TestCgroups(t *testing.T) {
	const uid = "01234567-89ab-cdef-0123-456789abcdef"
	const underscored = "01234567_89ab_cdef_0123_456789abcdef"
	for name, c := range map[string]struct {
		cgroups Cgroups
		class   corev1.PodQOSClass
		want    string
	}{
		"cgroupfs":            {Cgroups{Root: "/"}, "Guaranteed", "/kubepods/pod" + uid},
		"cgroupfs, burstable": {Cgroups{Root: "/a-b/c/"}, "Burstable", "/a-b/c/kubepods/burstable/pod" + uid},
		"systemd": {Cgroups{Systemd: true}, "Guaranteed",
			"/kubepods.slice/kubepods-pod" + underscored + ".slice"},
		"systemd, best effort": {Cgroups{Systemd: true, Root: "/kube-let"}, "BestEffort",
			"/kube_let.slice/kube_let-kubepods.slice/kube_let-kubepods-besteffort.slice/" +
				"kube_let-kubepods-besteffort-pod" + underscored + ".slice"},
		"systemd, below a slice": {Cgroups{Systemd: true, Root: "/kube.slice"}, "Guaranteed",
			"/kube.slice/kube-kubepods.slice/kube-kubepods-pod" + underscored + ".slice"},
		"flat": {Cgroups{Flat: true}, "Guaranteed", ""},
	} {
		if got, err := c.cgroups.Pod(uid, c.class); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, c.want)
		}
	}
	if got, err := (Cgroups{}).Pod("a_b", corev1.PodQOSGuaranteed); err == nil {
		t.Errorf("a UID that systemd would take for another: got %s, want an error", got)
	}
}

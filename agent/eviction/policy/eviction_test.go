package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func bytes(text string) Amount {
	q := resource.MustParse(text)
	return Amount{Quantity: &q}
}

// at is the levels "memory.available 50 pid.available 3", of a capacity of 100 each.
func at(levels string) map[string]Level {
	all := map[string]Level{}
	f := strings.Fields(levels)
	for i := 0; i < len(f); i += 2 {
		var n int64
		_, _ = fmt.Sscan(f[i+1], &n)
		all[f[i]] = Level{Available: n, Capacity: 100}
	}
	return all
}

// TestJudge goes through levels one after the other. A step is seconds, levels, and what is to come of them: the
// pressures, then the signal to act on, with a bang for one that has a grace.
func TestJudge(t *testing.T) {
	hard := Threshold{Signal: MemoryAvailable, Value: bytes("10")}
	soft := Threshold{Signal: MemoryAvailable, Value: Amount{Percentage: 20}, Grace: 30 * time.Second}
	disk := Threshold{Signal: NodeFSAvailable, Value: bytes("10"), Reclaim: bytes("5")}
	pid := Threshold{Signal: PIDAvailable, Value: bytes("10")}
	for name, c := range map[string]struct {
		thresholds []Threshold
		steps      []string
	}{
		"nothing known": {[]Threshold{hard}, []string{"0||", "10|nodefs.available 1|"}},
		"hard, and the condition outlives it by a minute": {[]Threshold{hard}, []string{
			"0|memory.available 10|", "10|memory.available 9|memory memory.available", "20|memory.available 50|memory",
			"69|memory.available 50|memory", "70|memory.available 50|"}},
		"soft waits for its grace, the condition does not": {[]Threshold{soft}, []string{
			"0|memory.available 19|memory", "29|memory.available 19|memory", "30|memory.available 19|memory memory.available!"}},
		"soft grace period restarts after a good level": {[]Threshold{soft}, []string{
			"0|memory.available 19|memory", "20|memory.available 20|memory", "30|memory.available 19|memory",
			"59|memory.available 19|memory", "60|memory.available 19|memory memory.available!"}},
		"minimum reclaim": {[]Threshold{disk}, []string{
			"0|nodefs.available 12|",
			"1|nodefs.available 9|disk nodefs.available",
			"2|nodefs.available 14|disk nodefs.available",
			"3|nodefs.available 15|disk",
			"4|nodefs.available 12|disk",
		}},
		"memory first": {[]Threshold{disk, pid, hard}, []string{
			"0|nodefs.available 1 pid.available 1|disk pid nodefs.available",
			"1|nodefs.available 1 pid.available 1 memory.available 1|memory disk pid memory.available"}},
		"hard before soft": {WithAllocatable([]Threshold{hard, soft}), []string{
			"0|memory.available 19 allocatableMemory.available 50|memory",
			"30|memory.available 19 allocatableMemory.available 50|memory memory.available!",
			"31|memory.available 19 allocatableMemory.available 9|memory allocatableMemory.available"}},
		"hard of processes before soft of memory": {[]Threshold{soft, pid}, []string{
			"0|memory.available 19 pid.available 50|memory", "30|memory.available 19 pid.available 1|memory pid pid.available"}},
	} {
		t.Run(name, func(t *testing.T) {
			var s State
			for _, step := range c.steps {
				f := strings.Split(step, "|")
				seconds, _ := time.ParseDuration(f[0] + "s")
				var v Decision
				v, s = Evaluate(c.thresholds, at(f[1]), s, time.Minute, epoch.Add(seconds))
				if got := show(v); got != f[2] {
					t.Errorf("at %ss with %s: got %q, want %q", f[0], f[1], got, f[2])
				}
			}
		})
	}
}

// TestNoTransitionPeriod checks that a condition which ends with its cause asks for no evaluation while that lasts: it
// would come at once, and again at once.
func TestNoTransitionPeriod(t *testing.T) {
	all := []Threshold{{Signal: MemoryAvailable, Value: bytes("10")}}
	v, s := Evaluate(all, at("memory.available 9"), State{}, 0, epoch)
	if short := v.Pressure[corev1.NodeMemoryPressure]; !short || !v.Again.IsZero() {
		t.Errorf("short of memory: got pressure=%t, again at %v, want pressure and never", short, v.Again)
	}
	v, _ = Evaluate(all, at("memory.available 50"), s, 0, epoch.Add(time.Second))
	if short := v.Pressure[corev1.NodeMemoryPressure]; short || !v.Again.IsZero() {
		t.Errorf("enough memory: got pressure=%t, again at %v, want no pressure and never", short, v.Again)
	}
}

func show(v Decision) string {
	var words []string
	if v.Pressure[corev1.NodeMemoryPressure] {
		words = append(words, "memory")
	}
	if v.Pressure[corev1.NodeDiskPressure] {
		words = append(words, "disk")
	}
	if v.Pressure[corev1.NodePIDPressure] {
		words = append(words, "pid")
	}
	if v.Act != nil {
		word := v.Act.Signal
		if v.Act.Grace > 0 {
			word += "!"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// TestAgain checks that the caller is woken when a grace or transition period is over.
func TestAgain(t *testing.T) {
	soft := []Threshold{{Signal: MemoryAvailable, Value: bytes("10"), Grace: 3 * time.Second}}
	v, s := Evaluate(soft, at("memory.available 1"), State{}, time.Minute, epoch)
	if !v.Again.Equal(epoch.Add(3 * time.Second)) {
		t.Errorf("next look: got %v, want 3 s after the start", v.Again)
	}
	v, s = Evaluate(soft, at("memory.available 50"), s, time.Minute, epoch.Add(time.Second))
	if !v.Again.Equal(epoch.Add(time.Minute)) {
		t.Errorf("next look: got %v, want a minute after the start", v.Again)
	}
	v, _ = Evaluate(soft, at("memory.available 50"), s, time.Minute, v.Again)
	if !v.Again.IsZero() || len(v.Pressure.Holding()) > 0 {
		t.Errorf("in the end: got %+v, want no pressure and no further look", v)
	}
}

// podThat is a pod by its name, priority and request of memory and disk in MiB.
func podThat(name string, priority int32, request int64) *corev1.Pod {
	list := corev1.ResourceList{}
	if request > 0 {
		list["memory"] = *resource.NewQuantity(request<<20, resource.BinarySI)
		list["ephemeral-storage"] = list["memory"]
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			Priority:   &priority,
			Containers: []corev1.Container{{Name: "app", Resources: corev1.ResourceRequirements{Requests: list}}},
		},
	}
}

func TestRank(t *testing.T) {
	use := func(pod *corev1.Pod, mib, processes int64) Pod {
		return Pod{pod, Usage{Known: true, Memory: mib << 20, Disk: mib << 20, Inodes: mib, Processes: processes}}
	}
	static := podThat("static", 0, 0)
	static.Annotations["kubernetes.io/config.source"] = "file"
	pods := []Pod{
		use(podThat("modest", 0, 100), 90, 5), use(podThat("greedy", 0, 100), 300, 1), use(podThat("small", 0, 0), 50, 9),
		use(podThat("precious", 9, 0), 900, 99), use(podThat("system", 2_000_000_000, 0), 900, 1), use(static, 900, 1),
	}
	for signal, want := range map[string]string{
		MemoryAvailable:      "greedy small precious modest",
		AllocatableAvailable: "greedy small precious modest",
		NodeFSAvailable:      "greedy small precious modest",
		ImageFSInodes:        "greedy modest small precious",
		PIDAvailable:         "small modest greedy precious",
	} {
		var got []string
		for _, p := range Rank(signal, pods) {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %s, want %s", signal, got, want)
		}
	}
	unknown := Pod{podThat("unknown", 5, 0), Usage{}}
	if first := Rank(MemoryAvailable, append(pods, unknown))[0].Name; first != "unknown" {
		t.Errorf("first pod to be evicted: got %s, want the one of which nothing is known", first)
	}
}

// TestHugeRequestIsNotExceeded checks that a pod that requests more than any number stays below its request.
func TestHugeRequestIsNotExceeded(t *testing.T) {
	huge, modest := podThat("huge", 0, 0), podThat("modest", 9, 100)
	for name := range modest.Spec.Containers[0].Resources.Requests {
		huge.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("13835058055282163712")
	}
	use := Usage{Known: true, Memory: 150 << 20, Disk: 150 << 20}
	for _, signal := range []string{MemoryAvailable, NodeFSAvailable} {
		if first := Rank(signal, []Pod{{huge, use}, {modest, use}})[0].Name; first != "modest" {
			t.Errorf("%s: got %s first, want the one that exceeds its request", signal, first)
		}
	}
}

func TestRefuse(t *testing.T) {
	plain, static := podThat("plain", 0, 0), podThat("static", 0, 0)
	tolerant := podThat("tolerant", 0, 0)
	static.Annotations["kubernetes.io/config.source"] = "file"
	tolerant.Spec.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists},
	}
	burstable := podThat("burstable", 0, 1)
	short := Pressure{corev1.NodeMemoryPressure: true, corev1.NodeDiskPressure: false}
	full := Pressure{corev1.NodeMemoryPressure: true, corev1.NodeDiskPressure: true}
	for _, c := range []struct {
		pod   *corev1.Pod
		under Pressure
		want  string
	}{
		{plain, Pressure{}, ""},
		{plain, short, "The node had condition: [MemoryPressure]. "},
		{burstable, short, ""},
		{tolerant, short, ""},
		{tolerant, full, "The node had condition: [MemoryPressure DiskPressure]. "},
		{static, full, ""},
		{podThat("system", 2_000_000_000, 0), full, ""},
	} {
		if got := Rejection(c.pod, c.under); got != c.want {
			t.Errorf("%s under %+v: got %q, want %q", c.pod.Name, c.under, got, c.want)
		}
	}
}

// TestExplain checks the message and the annotations against those that the kubelet writes, and what is added.
func TestExplain(t *testing.T) {
	hard := &Threshold{Signal: MemoryAvailable, Value: bytes("100Mi")}
	p := Pod{podThat("greedy", 0, 100), Usage{Known: true, Memory: 300 << 20}}
	p.Spec.Containers[0].Name = "app"
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "small"}, corev1.Container{Name: "idle"})
	whole := p
	whole.Pod = p.Pod.DeepCopy()
	whole.Spec.Resources = &corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("200Mi")},
	}
	levels := map[string]Level{
		MemoryAvailable: {Available: 50<<20 + 4096, Capacity: 1 << 30},
		PIDAvailable:    {Available: 7, Capacity: 1000},
	}
	used := map[string]int64{"app": 299 << 20, "small": 1 << 20, "gone": 5}
	low := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51204Ki. "
	blamed := "Container app was using 299Mi, request is 100Mi, has larger consumption of memory. " +
		"Container small was using 1Mi, request is 0, has larger consumption of memory. "
	for _, c := range []struct {
		t           *Threshold
		pod         Pod
		used        map[string]int64
		want        string
		annotations string
	}{
		{hard, p, used, low + blamed, "app,small|299Mi,1Mi|memory||"},
		{hard, p, nil, low, "||memory||"},
		{hard, whole, nil, low + "Pod greedy was using 300Mi, request is 200Mi, has larger consumption of memory. ",
			"||memory|greedy|300Mi"},
		{&Threshold{Signal: PIDAvailable, Value: Amount{Percentage: 5}}, p, nil,
			"The node was low on resource: pids. Threshold quantity: 50, available: 7. ", "||pids||"},
		{&Threshold{Signal: NodeFSAvailable, Value: bytes("1Gi")},
			Pod{p.Pod, Usage{Known: true, Disk: 20 << 30}}, map[string]int64{"idle": 4096},
			"The node was low on resource: ephemeral-storage. " +
				"Container idle was using 4Ki, request is 0, has larger consumption of ephemeral-storage. " +
				"In all, pod greedy was using at least 20Gi. ",
			"idle|4Ki|ephemeral-storage||"},
		{&Threshold{Signal: NodeFSAvailable, Value: bytes("1Gi")}, p, map[string]int64{"idle": 4096},
			"The node was low on resource: ephemeral-storage. " +
				"Container idle was using 4Ki, request is 0, has larger consumption of ephemeral-storage. ",
			"idle|4Ki|ephemeral-storage||"},
	} {
		text, a := Explain(c.t, levels, c.pod, c.used)
		if text != c.want {
			t.Errorf("%s: got message\n%s\nwant\n%s", c.t.Signal, text, c.want)
		}
		got := strings.Join([]string{a["offending_containers"], a["offending_containers_usage"], a["starved_resource"],
			a["offending_pod"], a["offending_pod_usage"]}, "|")
		if got != c.annotations {
			t.Errorf("%s: got annotations %q, want %q", c.t.Signal, got, c.annotations)
		}
	}
}

// TestThresholdsOfContainerFS checks that the file system of the writable layers has the thresholds of the node's, of
// each kind, hard and soft, unless it has some of its own.
func TestThresholdsOfContainerFS(t *testing.T) {
	hard := Threshold{Signal: NodeFSAvailable, Value: Amount{Percentage: 10}}
	soft := Threshold{Signal: NodeFSAvailable, Value: Amount{Percentage: 20}, Grace: time.Minute}
	inodes := Threshold{Signal: NodeFSInodes, Value: Amount{Percentage: 5}, Reclaim: Amount{Percentage: 1}}
	own := Threshold{Signal: ContainerFSAvailable, Value: Amount{Percentage: 3}}
	ownSoft := Threshold{Signal: ContainerFSAvailable, Value: Amount{Percentage: 30}, Grace: time.Hour}
	as := func(signal string, t Threshold) Threshold {
		t.Signal = signal
		return t
	}
	images := Threshold{Signal: ImageFSAvailable, Value: Amount{Percentage: 15}}
	for _, c := range []struct{ all, added []Threshold }{
		{[]Threshold{images}, nil},
		{[]Threshold{hard, soft, inodes, images}, []Threshold{
			as(ContainerFSAvailable, hard), as(ContainerFSAvailable, soft), as(ContainerFSInodes, inodes),
		}},
		{[]Threshold{own, hard, soft, inodes}, []Threshold{as(ContainerFSAvailable, soft), as(ContainerFSInodes, inodes)}},
		{[]Threshold{ownSoft, hard, soft}, []Threshold{as(ContainerFSAvailable, hard)}},
		{[]Threshold{own, ownSoft, hard, soft}, nil},
	} {
		want := slices.Concat(c.all, c.added)
		if got := WithContainerFS(c.all); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

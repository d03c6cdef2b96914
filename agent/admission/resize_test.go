package admission

import (
	"cmp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/agent/podstate"
)

// sized is a request and limit of CPU in thousandths, and of memory in MiB.
func sized(cpu, memory int64) corev1.ResourceRequirements {
	list := corev1.ResourceList{
		"cpu":    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		"memory": *resource.NewQuantity(memory<<20, resource.BinarySI),
	}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func TestAdmitResize(t *testing.T) {
	free := corev1.ResourceList{
		"cpu":    resource.MustParse("1"),
		"memory": resource.MustParse("1Gi"),
		"pods":   resource.MustParse("9"),
	}
	pod := func(cpu int64) *corev1.Pod {
		p := podOf(t, `{metadata: {generation: 4}, spec: {containers: [{name: a}]}}`)
		p.Spec.Containers[0].Resources = sized(cpu, cpu)
		return p
	}
	never := func(*corev1.Pod, *corev1.Container) bool { return false }
	others := []*corev1.Pod{pod(500)}
	if got := AdmitResize(pod(500), pod(100), free, others, never, nil); got != nil {
		t.Errorf("a resize that fits: got %v, want nil", got)
	}
	want := podstate.PendingResize{
		Generation: 4,
		Reason:     "Deferred",
		Message:    "Node didn't have enough resource: cpu, requested: 600, used: 500, capacity: 1000",
	}
	if got := AdmitResize(pod(600), pod(100), free, others, never, nil); got == nil || *got != want {
		t.Errorf("too much: got %v, want %v", got, want)
	}
	want = podstate.PendingResize{
		Generation: 4,
		Reason:     "Infeasible",
		Message:    "In-place resize of containers with swap is not supported.",
	}
	swaps := func(*corev1.Pod, *corev1.Container) bool { return true }
	if got := AdmitResize(pod(200), pod(100), free, nil, swaps, nil); got == nil || *got != want {
		t.Errorf("with swap: got %v, want %v", got, want)
	}
	restarts := pod(100)
	restarts.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: "memory", RestartPolicy: corev1.RestartContainer},
	}
	if got := AdmitResize(pod(200), restarts, free, nil, swaps, nil); got != nil {
		t.Errorf("with swap and a restart: got %v, want nil", got)
	}
	want = podstate.PendingResize{
		Generation: 4,
		Reason:     "Infeasible",
		Message:    `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`,
	}
	static := []Static{StaticCPU, StaticMemory}
	if got := AdmitResize(pod(100), pod(200), free, nil, never, static); got == nil || *got != want {
		t.Errorf("with static CPUs: got %v, want %v", got, want)
	}
	if got := AdmitResize(pod(100), pod(100), free, nil, never, static); got != nil {
		t.Errorf("with static CPUs, without a change: got %v, want nil", got)
	}
	burstable := pod(100)
	burstable.Status.QOSClass = corev1.PodQOSBurstable
	if got := AdmitResize(burstable, pod(200), free, nil, never, static); got != nil {
		t.Errorf("with static CPUs, not Guaranteed: got %v, want nil", got)
	}
}

// TestAdmitResizeBesideUnhealthyDevice checks that a resize does not wait because the node offers fewer devices or pods
// than it has: the pod keeps its own.
func TestAdmitResizeBesideUnhealthyDevice(t *testing.T) {
	pod := func(cpu int64) *corev1.Pod {
		p := podOf(t, `{spec: {containers: [{name: a}]}}`)
		r := sized(cpu, cpu)
		r.Requests["vendor.com/gpu"] = resource.MustParse("1") // the same list as the limit
		p.Spec.Containers[0].Resources = r
		return p
	}
	less := corev1.ResourceList{
		"cpu":            resource.MustParse("1"),
		"memory":         resource.MustParse("1Gi"),
		"pods":           resource.MustParse("1"),
		"vendor.com/gpu": resource.MustParse("1"),
	}
	never := func(*corev1.Pod, *corev1.Container) bool { return false }
	if got := AdmitResize(pod(500), pod(100), less, []*corev1.Pod{pod(500)}, never, nil); got != nil {
		t.Errorf("beside an unhealthy device: got %v, want nil", got)
	}
	if got := AdmitResize(pod(600), pod(100), less, []*corev1.Pod{pod(500)}, never, nil); got == nil {
		t.Error("too much: got nil, want the resize deferred")
	}
}

func TestCompareResizes(t *testing.T) {
	named := func(name string, cpu int64, more string) *corev1.Pod {
		p := podOf(t, more)
		p.Name = name
		p.Spec.Containers = []corev1.Container{{Name: "a", Resources: sized(cpu, 100)}}
		return p
	}
	has := named("", 100, `{}`)
	order := []*corev1.Pod{
		named("less", 50, `{status: {qosClass: Burstable}}`),
		named("important", 200, `{spec: {priority: 10}, status: {qosClass: Burstable}}`),
		named("guaranteed", 200, `{status: {qosClass: Guaranteed}}`),
		named("long", 200, `{status: {qosClass: Burstable, conditions: [{type: PodResizePending,
			lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`),
		named("later", 200, `{status: {qosClass: Burstable, conditions: [{type: PodResizePending,
			lastTransitionTime: "2026-01-02T00:00:00Z"}]}}`),
		named("new", 200, `{status: {qosClass: Burstable}}`),
	}
	for i := range order {
		for j := range order {
			if got := CompareResizes(order[i], order[j], has, has); cmp.Compare(got, 0) != cmp.Compare(i, j) {
				t.Errorf("%s against %s: got %d, want %d", order[i].Name, order[j].Name, got, cmp.Compare(i, j))
			}
		}
	}
}

package pod_test

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func annotated(keysAndValues ...string) *corev1.Pod {
	all := map[string]string{}
	for i := 0; i < len(keysAndValues); i += 2 {
		all[keysAndValues[i]] = keysAndValues[i+1]
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: all}}
}

func withPriority(p int32) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{Priority: &p}} }

func TestOrigin(t *testing.T) {
	for name, c := range map[string]struct {
		pod                      *corev1.Pod
		static, mirror, critical bool
		priority                 int32
	}{
		"no annotation":    {pod: &corev1.Pod{}},
		"of the API":       {pod: annotated(podutil.AnnotationSource, "api")},
		"of a file":        {pod: annotated(podutil.AnnotationSource, "file"), static: true, critical: true},
		"of a URL":         {pod: annotated(podutil.AnnotationSource, "http"), static: true, critical: true},
		"empty source":     {pod: annotated(podutil.AnnotationSource, ""), static: true, critical: true},
		"mirror":           {pod: annotated(podutil.AnnotationMirror, "1f"), mirror: true, critical: true},
		"high priority":    {pod: withPriority(1_999_999_999), priority: 1_999_999_999},
		"system priority":  {pod: withPriority(2_000_000_000), priority: 2_000_000_000, critical: true},
		"below everything": {pod: withPriority(-5), priority: -5},
	} {
		if got := podutil.IsStatic(c.pod); got != c.static {
			t.Errorf("%s: IsStatic: got %v, want %v", name, got, c.static)
		}
		if got := podutil.IsMirror(c.pod); got != c.mirror {
			t.Errorf("%s: IsMirror: got %v, want %v", name, got, c.mirror)
		}
		if got := podutil.IsCritical(c.pod); got != c.critical {
			t.Errorf("%s: IsCritical: got %v, want %v", name, got, c.critical)
		}
		if got := podutil.Priority(c.pod); got != c.priority {
			t.Errorf("%s: Priority: got %d, want %d", name, got, c.priority)
		}
	}
}

func TestGracePeriod(t *testing.T) {
	for name, c := range map[string]struct {
		deletion, spec *int64
		want           time.Duration
	}{
		"neither":       {want: 30 * time.Second},
		"spec":          {spec: new(int64(5)), want: 5 * time.Second},
		"deletion":      {deletion: new(int64(1)), spec: new(int64(5)), want: time.Second},
		"deletion of 0": {deletion: new(int64(0)), spec: new(int64(5)), want: 0},
		"for ever":      {spec: new(int64(math.MaxInt64)), want: math.MaxInt32 * time.Second},
	} {
		pod := &corev1.Pod{}
		pod.DeletionGracePeriodSeconds, pod.Spec.TerminationGracePeriodSeconds = c.deletion, c.spec
		if got := podutil.GracePeriod(pod); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestIsTerminal(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{
		"": false, corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false,
		corev1.PodSucceeded: true, corev1.PodFailed: true,
	} {
		if got := podutil.IsTerminal(phase); got != want {
			t.Errorf("%q: got %v, want %v", phase, got, want)
		}
	}
}

func TestValidUID(t *testing.T) {
	for _, uid := range []types.UID{
		"a", "0", "6f9d1b6e-53a0-4a34-9b4c-7c1b2a0a5f3e", "d41d8cd98f00b204e9800998ecf8427e", "node.1",
		types.UID(strings.Repeat("x", 128)),
	} {
		if !podutil.ValidUID(uid) {
			t.Errorf("%q: got false, want true", uid)
		}
	}
	for _, uid := range []types.UID{
		"", ".", "..", "../etc", ".hidden", "-x", "a/b", "a b", "a_b", "a\x00", "ä", types.UID(strings.Repeat("x", 129)),
	} {
		if podutil.ValidUID(uid) {
			t.Errorf("%q: got true, want false", uid)
		}
	}
}

package spec

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestParseContainerRoundTrip checks that ParseContainer returns the facts that Container has recorded.
func TestParseContainerRoundTrip(t *testing.T) {
	for _, w := range corpus(t) {
		sandbox, _, err := Sandbox(w.sandboxInput())
		if err != nil {
			t.Fatal(err)
		}
		ref := PodRef{Namespace: w.pod.Namespace, Name: w.pod.Name, UID: w.pod.UID}
		if got, err := ParsePodLabels(sandbox.Labels); err != nil || got != ref {
			t.Errorf("%s: got the sandbox of %v, %v, want %v", w.name, got, err, ref)
		}
		for _, c := range podutil.Containers(&w.pod.Spec) {
			config, err := Container(w.containerInput(t, c))
			if err != nil {
				t.Fatal(err)
			}
			resources := EffectiveResources(w.pod, c)
			want := ContainerFacts{
				Pod: ref, Name: c.Name, Hash: ContainerHash(c), RestartCount: w.facts.Attempt,
				DeletionGrace: w.pod.DeletionGracePeriodSeconds, TerminationGrace: w.pod.Spec.TerminationGracePeriodSeconds,
				TerminationMessagePath: c.TerminationMessagePath, TerminationMessagePolicy: c.TerminationMessagePolicy,
				Ports: c.Ports, Resources: &resources,
			}
			if c.Lifecycle != nil {
				want.PreStop = c.Lifecycle.PreStop
			}
			got, ok, err := ParseContainer(config.Labels, config.Annotations)
			if diff := cmp.Diff(want, got); !ok || err != nil || diff != "" {
				t.Errorf("%s container %s: got %v, %v, and -want +got:\n%s", w.name, c.Name, ok, err, diff)
			}
		}
	}
}

func TestParsePodLabelsRefuses(t *testing.T) {
	good := map[string]string{LabelPodName: "p", LabelPodNamespace: "n", LabelPodUID: "u"}
	for key, values := range map[string][]string{
		LabelPodName:      {""},
		LabelPodNamespace: {""},
		LabelPodUID:       {"", "../etc", ".", "a/b", "a b", strings.Repeat("x", 129)},
	} {
		for _, value := range values {
			labels := map[string]string{}
			maps.Copy(labels, good)
			labels[key] = value
			if ref, err := ParsePodLabels(labels); err == nil {
				t.Errorf("%s %q: got %v, want an error", key, value, ref)
			}
			if _, ok, err := ParseContainer(labels, nil); ok || err == nil {
				t.Errorf("container with %s %q: got %v, %v", key, value, ok, err)
			}
		}
	}
	if _, ok, err := ParseContainer(good, nil); ok || err == nil {
		t.Error("a container without a name: got no error, want one")
	}
}

// TestParseContainerKeepsWhatIsReadable checks that one invalid annotation must not hide the others: the agent must
// stop the container with its hook and grace period.
func TestParseContainerKeepsWhatIsReadable(t *testing.T) {
	labels := map[string]string{LabelPodName: "p", LabelPodNamespace: "n", LabelPodUID: "u", LabelContainerName: "c"}
	got, ok, err := ParseContainer(labels, map[string]string{
		AnnotationHash:                   "ffff",
		AnnotationRestartCount:           "-1",
		AnnotationDeletionGracePeriod:    "soon",
		AnnotationTerminationGracePeriod: "7",
		AnnotationPreStopHandler:         `{"httpGet":{"port":"web"}}`,
		AnnotationPorts:                  "{",
	})
	seven := int64(7)
	want := ContainerFacts{
		Pod: PodRef{"n", "p", "u"}, Name: "c", Hash: "ffff", // the count is unreadable, so 0
		TerminationGrace: &seven,
		PreStop:          &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}},
	}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("got %v, and -want +got:\n%s", ok, diff)
	}
	for _, key := range []string{AnnotationRestartCount, AnnotationDeletionGracePeriod, AnnotationPorts} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("got the error %v, want one that names %s", err, key)
		}
	}
}

// TestParseContainerBrokenHook checks that an invalid hook is ignored as a whole.
func TestParseContainerBrokenHook(t *testing.T) {
	labels := map[string]string{LabelPodName: "p", LabelPodNamespace: "n", LabelPodUID: "u", LabelContainerName: "c"}
	got, ok, err := ParseContainer(labels,
		map[string]string{AnnotationPreStopHandler: `{"exec":{"command":["a"]},"sleep":1}`})
	if got.PreStop != nil || !ok || err == nil {
		t.Errorf("got hook %v, %v, %v, want none, true, an error", got.PreStop, ok, err)
	}
}

// TestParseContainerWithoutAnnotations checks a container of another agent, which may have only its labels.
func TestParseContainerWithoutAnnotations(t *testing.T) {
	labels := map[string]string{LabelPodName: "p", LabelPodNamespace: "n", LabelPodUID: "u", LabelContainerName: "c"}
	got, ok, err := ParseContainer(labels, nil)
	if diff := cmp.Diff(ContainerFacts{Pod: PodRef{"n", "p", "u"}, Name: "c"}, got); !ok || err != nil || diff != "" {
		t.Errorf("got %v, %v, and -want +got:\n%s", ok, err, diff)
	}
}

func FuzzParseContainer(f *testing.F) {
	f.Add("n", "p", "u", "c", "ff", "1", "30", `{"exec":{"command":["x"]}}`, `[{"containerPort":1}]`)
	f.Add("", "", "..", "/", "", "4294967296", "-9223372036854775809", "null", "[null]")
	f.Fuzz(func(t *testing.T, namespace, name, uid, container, hash, count, grace, preStop, ports string) {
		facts, ok, err := ParseContainer(
			map[string]string{LabelPodNamespace: namespace, LabelPodName: name, LabelPodUID: uid, LabelContainerName: container},
			map[string]string{
				AnnotationHash: hash, AnnotationRestartCount: count, AnnotationDeletionGracePeriod: grace,
				AnnotationTerminationGracePeriod: grace, AnnotationPreStopHandler: preStop, AnnotationPorts: ports,
			})
		if !ok {
			if err == nil || !cmp.Equal(facts, ContainerFacts{}) {
				t.Errorf("not ok: got %v, %v, want no facts and an error", facts, err)
			}
			return
		}
		// The names become parts of paths.
		for _, part := range []string{string(facts.Pod.UID), facts.Name} {
			if part == "" || part[0] == '.' || strings.ContainsAny(part, "/\x00") {
				t.Errorf("got %q, which can leave its directory", part)
			}
		}
	})
}

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
		for _, c := range podutil.Containers(&w.pod.Spec) {
			config, err := Container(w.containerInput(t, c))
			if err != nil {
				t.Fatal(err)
			}
			resources := EffectiveResources(w.pod, c)
			want := ContainerFacts{
				Name: c.Name, Hash: podutil.ContainerHash(c),
				TerminationMessagePath: c.TerminationMessagePath, TerminationMessagePolicy: c.TerminationMessagePolicy,
				Ports: c.Ports, Resources: &resources,
			}
			if c.Lifecycle != nil {
				want.PreStop = c.Lifecycle.PreStop
			}
			got, err := ParseContainer(config.Labels, config.Annotations)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s container %s: got %v, and -want +got:\n%s", w.name, c.Name, err, diff)
			}
		}
	}
}

func labelsFor(namespace, pod, uid, container string) map[string]string {
	return map[string]string{
		podutil.LabelPodNamespace:  namespace,
		podutil.LabelPodName:       pod,
		podutil.LabelPodUID:        uid,
		podutil.LabelContainerName: container,
	}
}

func TestParseContainerRefuses(t *testing.T) {
	good := labelsFor("n", "p", "u", "c")
	for key, values := range map[string][]string{
		podutil.LabelPodName:       {""},
		podutil.LabelPodNamespace:  {""},
		podutil.LabelPodUID:        {"", "../etc", ".", "a/b", "a b", strings.Repeat("x", 129)},
		podutil.LabelContainerName: {"", "../etc", "A"},
	} {
		for _, value := range values {
			labels := map[string]string{}
			maps.Copy(labels, good)
			labels[key] = value
			if got, err := ParseContainer(labels, nil); err == nil {
				t.Errorf("%s %q: got %v, want an error", key, value, got)
			}
		}
	}
}

// TestParseContainerKeepsWhatIsReadable checks that one invalid annotation must not hide the others: the agent must
// stop the container with its hook and grace period.
func TestParseContainerKeepsWhatIsReadable(t *testing.T) {
	labels := labelsFor("n", "p", "u", "c")
	got, err := ParseContainer(labels, map[string]string{
		AnnotationHash:           "ffff",
		AnnotationPreStopHandler: `{"httpGet":{"port":"web"}}`,
		AnnotationPorts:          "{",
		AnnotationResources:      "[]",
	})
	want := ContainerFacts{
		Name: "c", Hash: "ffff",
		PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, key := range []string{AnnotationPorts, AnnotationResources} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("got the error %v, want one that names %s", err, key)
		}
	}
}

// TestParseContainerBrokenHook checks that an invalid hook is ignored as a whole.
func TestParseContainerBrokenHook(t *testing.T) {
	labels := labelsFor("n", "p", "u", "c")
	got, err := ParseContainer(labels,
		map[string]string{AnnotationPreStopHandler: `{"exec":{"command":["a"]},"sleep":1}`})
	if got.PreStop != nil || got.Name != "c" || err == nil {
		t.Errorf("got hook %v of container %q, %v, want none, c, an error", got.PreStop, got.Name, err)
	}
}

// TestParseContainerWithoutAnnotations checks a container of another agent, which may have only its labels.
func TestParseContainerWithoutAnnotations(t *testing.T) {
	labels := labelsFor("n", "p", "u", "c")
	got, err := ParseContainer(labels, nil)
	if diff := cmp.Diff(ContainerFacts{Name: "c"}, got); err != nil || diff != "" {
		t.Errorf("got %v, and -want +got:\n%s", err, diff)
	}
}

func FuzzParseContainer(f *testing.F) {
	f.Add("n", "p", "u", "c", "ff", `{"exec":{"command":["x"]}}`, `[{"containerPort":1}]`)
	f.Add("", "", "..", "/", "", "null", "[null]")
	f.Fuzz(func(t *testing.T, namespace, name, uid, container, hash, preStop, ports string) {
		facts, err := ParseContainer(
			labelsFor(namespace, name, uid, container),
			map[string]string{AnnotationHash: hash, AnnotationPreStopHandler: preStop, AnnotationPorts: ports})
		if err != nil && facts.Name == "" {
			return
		}
		// The names become parts of paths.
		for _, part := range []string{uid, facts.Name} {
			if part == "" || part[0] == '.' || strings.ContainsAny(part, "/\x00") {
				t.Errorf("got %q, which can leave its directory", part)
			}
		}
	})
}

// TestUnknownHash checks that a container whose hash another agent has recorded in another form is adopted, not
// restarted.
func TestUnknownHash(t *testing.T) {
	labels := map[string]string{
		podutil.LabelPodName:       "p",
		podutil.LabelPodNamespace:  "n",
		podutil.LabelPodUID:        "u",
		podutil.LabelContainerName: "app",
	}
	for recorded, want := range map[string]string{
		"ed432b69":         "ed432b69",
		"":                 "", // of an agent that records none
		"v2:whatever":      "", // of an agent with a newer recipe
		"123456789abcdef0": "", // more bits than this recipe has
	} {
		facts, err := ParseContainer(labels, map[string]string{AnnotationHash: recorded})
		if err != nil || facts.Hash != want {
			t.Errorf("recorded %q: got %q (%v), want %q", recorded, facts.Hash, err, want)
		}
	}
}

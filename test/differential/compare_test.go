package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func statusOf(phase corev1.PodPhase, containers ...corev1.ContainerStatus) corev1.PodStatus {
	return corev1.PodStatus{Phase: phase, StartTime: &metav1.Time{}, ContainerStatuses: containers}
}

func running(name string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name:        name,
		Ready:       true,
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		ContainerID: "containerd://" + strings.Repeat("a", 64),
	}
}

func waiting(name, reason string, restarts int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, RestartCount: restarts,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func TestEqualPodsAreEqual(t *testing.T) {
	seen := func(id string, more ...corev1.PodStatus) *sighting {
		c := running("app")
		c.ContainerID = "containerd://" + strings.Repeat(id, 64)
		return &sighting{UID: id, Reached: true, Rested: statusOf(corev1.PodRunning, c),
			Statuses: append(more, statusOf(corev1.PodRunning, c), statusOf(corev1.PodRunning, c)),
			Events:   []corev1.Event{{Reason: "Created", Message: "Container created"}},
			Calls: []call{
				{Container: "app", Text: "create 0", Config: `{"labels": {"a": "b"}}`},
				{Container: "app", Text: "start 0"},
				{Container: "app", Text: "exec in 0 [\"true\"] within 1s"},
			}}
	}
	a, b := seen("a"), seen("b", statusOf(corev1.PodPending, waiting("app", "ContainerCreating", 0)),
		statusOf(corev1.PodPending))
	a.Statuses = append([]corev1.PodStatus{statusOf(corev1.PodPending)}, a.Statuses...)
	b.Calls = append(b.Calls, call{Container: "app", Text: "remove 0"},
		call{Container: "app", Text: "exec in 0 [\"true\"] within 1s"})
	b.Events = append(b.Events, b.Events[0], corev1.Event{Reason: "Scheduled"})
	if found := compare(sightings{"web": a}, sightings{"web": b}); len(found) > 0 {
		t.Errorf("got differences, want none:\n%s", strings.Join(found, "\n"))
	}
}

func TestDifferencesAreFound(t *testing.T) {
	a := &sighting{Statuses: []corev1.PodStatus{statusOf(corev1.PodPending), statusOf(corev1.PodRunning, running("app"))},
		Events: []corev1.Event{{Type: "Normal", Reason: "Started", Message: "Container started"}},
		Calls: []call{
			{Container: "app", Text: "stop 0 within 30s"},
			{Container: "app", Text: "create 0", Config: `{"envs": [{"key": "A", "value": "1"}]}`},
		}}
	b := &sighting{Statuses: []corev1.PodStatus{statusOf(corev1.PodFailed)}, Rested: statusOf(corev1.PodFailed),
		Calls: []call{
			{Container: "app", Text: "stop 0 within 2s"},
			{Container: "app", Text: "create 0", Config: `{"envs": [{"key": "A", "value": "2"}]}`},
		}}
	found := compare(sightings{"web": a}, sightings{"web": b})
	for _, want := range []string{
		"web phases -Pending > Running", "web phases +Failed", "web status +phase = Failed",
		"web events -Normal Started : Container started",
		"web calls app -stop 0 within 30s > create 0", "web config app -envs[A].value = 1",
		"web config app +envs[A].value = 2",
		"web states app -ready", "web reached -false", "web reached +false",
	} {
		if !slices.Contains(found, want) {
			t.Errorf("got no difference %q in\n%s", want, strings.Join(found, "\n"))
		}
	}
}

func TestCutSequencesMatchAsFarAsTheyGo(t *testing.T) {
	a := &sighting{Until: "restarts 2", Reached: true,
		Calls: []call{{Text: "create 0"}, {Text: "create 1"}, {Text: "create 2"}}}
	b := &sighting{Until: "restarts 2", Reached: true, Calls: []call{{Text: "create 0"}, {Text: "create 1"}}}
	if found := compare(sightings{"web": a}, sightings{"web": b}); len(found) > 0 {
		t.Errorf("got differences %v, want none", found)
	}
}

// TestMissingSequenceDiffers leaves out all calls of a pod that restarts under one agent.
func TestMissingSequenceDiffers(t *testing.T) {
	a := &sighting{Until: "restarts 2", Reached: true, Calls: []call{{Container: "app", Text: "create 0"}}}
	b := &sighting{Until: "restarts 2", Reached: true}
	for want, pair := range map[string][2]*sighting{"web calls app -create 0": {a, b}, "web calls app +create 0": {b, a}} {
		if found := compare(sightings{"web": pair[0]}, sightings{"web": pair[1]}); !slices.Contains(found, want) {
			t.Errorf("got differences %q, want %q", found, want)
		}
	}
}

// TestConfigurationOfOneAgent has one line for a container that only one agent has made.
func TestConfigurationOfOneAgent(t *testing.T) {
	made := &sighting{Reached: true, Calls: []call{{Container: "app", Text: "create 0", Config: `{"a": 1, "b": 2}`}}}
	none := &sighting{Reached: true}
	for want, pair := range map[string][2]*sighting{
		"web config app -was made": {made, none}, "web config app +was made": {none, made},
	} {
		found := compare(sightings{"web": pair[0]}, sightings{"web": pair[1]})
		found = slices.DeleteFunc(found, func(d string) bool { return !strings.Contains(d, " config ") })
		if !slices.Equal(found, []string{want}) {
			t.Errorf("got differences %q, want %q", found, want)
		}
	}
}

// TestRandomPodAtRest compares neither the steps on the way to the last status nor the rest of a grace period.
func TestRandomPodAtRest(t *testing.T) {
	pod := func(grace string, before ...corev1.PodStatus) *sighting {
		last := statusOf(corev1.PodRunning, running("app"))
		return &sighting{Until: rest, Reached: true, Rested: last, Statuses: append(before, last),
			Calls: []call{{Container: "app", Text: "stop 0" + grace}}}
	}
	a, b := pod(" within 3s", statusOf(corev1.PodPending)), pod(" within 2s")
	if found := compare(sightings{"web": a}, sightings{"web": b}); len(found) > 0 {
		t.Errorf("got differences %q, want none", found)
	}
	b.Calls = append(b.Calls, call{Container: "app", Text: "start 1"})
	if found := compare(sightings{"web": a}, sightings{"web": b}); len(found) != 2 {
		t.Errorf("got differences %q, want that of the calls", found)
	}
}

// TestSpoiledPodIsNeverKnown has a known difference that matches all of a pod that was not seen or reached nothing.
func TestSpoiledPodIsNeverKnown(t *testing.T) {
	for _, d := range []string{"web pod -was seen", "web reached -false", "web reached +false"} {
		known, err := parseKnown(strings.NewReader("# It is faster.\nweb *\n"))
		if err != nil {
			t.Fatal(err)
		}
		if known.judge(io.Discard, []string{d}, 1, true) == nil {
			t.Errorf("%s: got it accepted, want it refused", d)
		}
	}
}

func TestKnownDifferences(t *testing.T) {
	known, err := parseKnown(strings.NewReader("# It is faster.\nweb phases *Pending*\n\n# Nothing.\nother *\n"))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := known.judge(&out, []string{"web phases -Pending > Running\n"}, 1, true); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "   1  web phases *Pending*  (It is faster.)") ||
		!strings.Contains(out.String(), "gone  other *") {
		t.Errorf("got output\n%s", out.String())
	}
	if known.judge(&out, []string{"web events -x"}, 1, true) == nil {
		t.Error("a new difference: got it accepted, want it refused")
	}
	if _, err := parseKnown(strings.NewReader("web *\n")); err == nil {
		t.Error("a pattern without a reason: got no error, want one")
	}
}

func TestCorpusIsRead(t *testing.T) {
	pods, err := readCorpus("corpus", "")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, pod := range pods {
		if names[pod.Name] || pod.Annotations["until"] == "" || len(pod.Spec.Containers) == 0 {
			t.Errorf("pod %s: got a duplicate name, no containers or no annotation until", pod.Name)
		}
		names[pod.Name] = true
	}
	if len(pods) < 60 {
		t.Errorf("got %d pods, want more", len(pods))
	}
	if _, err := readKnown("known.txt"); err != nil {
		t.Error(err)
	}
}

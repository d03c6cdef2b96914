package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestASeedMakesTheSamePod(t *testing.T) {
	all := randomPods(100, 20)
	for i, pod := range all {
		if again := randomPods(uint64(100+i), 1)[0]; !reflect.DeepEqual(pod, again) {
			t.Errorf("seed %d made two pods:\n%+v\n%+v", 100+i, pod, again)
		}
	}
	if all[0].Spec.String() == all[1].Spec.String() {
		t.Error("two seeds made the same pod")
	}
}

func TestRandomPodsOfAllKinds(t *testing.T) {
	want := []string{"no-secret", "no-key", "no-image", "root", "too-large", "elsewhere", "late", "sysctl", "no-variable",
		"StartupProbe", "LivenessProbe", "PreStop", "PostStart", "RestartPolicyRules", "SubPath:a/b"}
	seen := map[string]bool{}
	for _, pod := range randomPods(1, 500) {
		text := pod.Name + strings.ReplaceAll(pod.Spec.String(), ":nil,", "-nil,")
		for _, what := range want {
			seen[what] = seen[what] || strings.Contains(strings.ReplaceAll(text, what+"-nil", ""), what)
		}
	}
	for _, what := range want {
		if !seen[what] {
			t.Errorf("none of 500 random pods has %s", what)
		}
	}
}

package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func TestSidecar(t *testing.T) {
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	for _, c := range []struct {
		policy *corev1.ContainerRestartPolicy
		want   bool
	}{{nil, false}, {&always, true}, {&never, false}} {
		if podutil.Sidecar(&corev1.Container{RestartPolicy: c.policy}) != c.want {
			t.Errorf("an init container with policy %v is a sidecar: %v", c.policy, !c.want)
		}
	}
}

func TestRestartsAll(t *testing.T) {
	with := func(actions ...corev1.ContainerRestartRuleAction) corev1.Container {
		c := corev1.Container{}
		for _, a := range actions {
			c.RestartPolicyRules = append(c.RestartPolicyRules, corev1.ContainerRestartRule{Action: a})
		}
		return c
	}
	one, all := corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"no rules":          {corev1.PodSpec{Containers: []corev1.Container{with()}}, false},
		"one container":     {corev1.PodSpec{Containers: []corev1.Container{with(one)}}, false},
		"an app":            {corev1.PodSpec{Containers: []corev1.Container{with(), with(one, all)}}, true},
		"an init container": {corev1.PodSpec{InitContainers: []corev1.Container{with(all)}, Containers: []corev1.Container{with()}}, true},
	} {
		if podutil.RestartsAll(&c.spec) != c.want {
			t.Errorf("%s: %v", name, !c.want)
		}
	}
}

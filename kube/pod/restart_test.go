package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

const (
	restart    = corev1.ContainerRestartRuleActionRestart
	restartAll = corev1.ContainerRestartRuleActionRestartAllContainers
	in         = corev1.ContainerRestartRuleOnExitCodesOpIn
	notIn      = corev1.ContainerRestartRuleOnExitCodesOpNotIn
)

type rules []corev1.ContainerRestartRule

func rule(
	action corev1.ContainerRestartRuleAction,
	op corev1.ContainerRestartRuleOnExitCodesOperator,
	codes ...int32,
) corev1.ContainerRestartRule {
	return corev1.ContainerRestartRule{
		Action:    action,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes},
	}
}

func TestShouldRestart(t *testing.T) {
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	onFailure := corev1.ContainerRestartPolicyOnFailure
	on3, notOn3 := rules{rule(restart, in, 3)}, rules{rule(restart, notIn, 3)}
	allOn3 := rules{rule(restartAll, in, 3)}
	for name, c := range map[string]struct {
		pod      corev1.RestartPolicy
		own      *corev1.ContainerRestartPolicy
		rules    rules
		role     podutil.Role
		exitCode int32
		want     bool
	}{
		"always, 0":                 {pod: "Always", role: podutil.RoleApp, want: true},
		"on failure, 0":             {pod: "OnFailure", role: podutil.RoleApp},
		"on failure, 1":             {pod: "OnFailure", role: podutil.RoleApp, exitCode: 1, want: true},
		"never, 1":                  {pod: "Never", role: podutil.RoleApp, exitCode: 1},
		"init of always, 0":         {pod: "Always", role: podutil.RoleInit},
		"init of always, 1":         {pod: "Always", role: podutil.RoleInit, exitCode: 1, want: true},
		"init of never, 1":          {pod: "Never", role: podutil.RoleInit, exitCode: 1},
		"sidecar of never, 0":       {pod: "Never", own: &always, role: podutil.RoleSidecar, want: true},
		"ephemeral of always, 1":    {pod: "Always", role: podutil.RoleEphemeral, exitCode: 1},
		"own policy on failure, 0":  {pod: "Always", own: &onFailure, role: podutil.RoleApp},
		"own policy never, 1":       {pod: "Always", own: &never, role: podutil.RoleApp, exitCode: 1},
		"rule in":                   {pod: "Never", rules: on3, role: podutil.RoleApp, exitCode: 3, want: true},
		"rule in, other code":       {pod: "Never", rules: on3, role: podutil.RoleApp, exitCode: 4},
		"rule not in":               {pod: "Never", rules: notOn3, role: podutil.RoleApp, exitCode: 4, want: true},
		"rule not in, listed":       {pod: "Never", rules: notOn3, role: podutil.RoleApp, exitCode: 3},
		"rule restarts all":         {pod: "Never", rules: allOn3, role: podutil.RoleApp, exitCode: 3, want: true},
		"unknown action, on policy": {pod: "Never", rules: rules{rule("Sing", in, 3)}, role: podutil.RoleApp, exitCode: 3},
		"rule without exit codes":   {pod: "Never", rules: rules{{Action: restart}}, role: podutil.RoleApp, exitCode: 3},
		"rule before policy": {
			pod:      "Always",
			own:      &never,
			rules:    on3,
			role:     podutil.RoleInit,
			exitCode: 3,
			want:     true,
		},
	} {
		spec := &corev1.PodSpec{RestartPolicy: c.pod}
		container := &corev1.Container{RestartPolicy: c.own, RestartPolicyRules: c.rules}
		if got := podutil.ShouldRestart(spec, container, c.role, c.exitCode); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestFirstMatchingRuleCounts(t *testing.T) {
	c := &corev1.Container{RestartPolicyRules: []corev1.ContainerRestartRule{
		rule(restart, in, 1), rule(restartAll, in, 1, 2), rule(restart, notIn, 1, 2),
	}}
	for code, want := range map[int32]int{1: 0, 2: 1, 3: 2} {
		if got := podutil.RestartRule(c, code); got != &c.RestartPolicyRules[want] {
			t.Errorf("exit code %d: got %+v, want rule %d", code, got, want)
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
	for name, c := range map[string]struct {
		init, app corev1.Container
		want      bool
	}{
		"no rules":          {with(), with(), false},
		"one container":     {with(), with(restart), false},
		"an app":            {with(), with(restart, restartAll), true},
		"an init container": {with(restartAll), with(), true},
	} {
		spec := &corev1.PodSpec{InitContainers: []corev1.Container{c.init}, Containers: []corev1.Container{c.app}}
		if got := podutil.RestartsAll(spec); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// chance reports true once in n times on average.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomPod returns a pod with containers of random roles, restart policies, hooks and probes.
func randomPod(r *rand.Rand) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "web", "default"
	pod.UID, pod.Generation = "uid", 1
	spec := &pod.Spec
	spec.RestartPolicy = pick(r, corev1.RestartPolicyAlways, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever)
	spec.TerminationGracePeriodSeconds = pick(r, nil, ptr(int64(0)), ptr(int64(1)), ptr(int64(30)))
	spec.HostNetwork = chance(r, 8)
	if chance(r, 10) {
		spec.ActiveDeadlineSeconds = ptr(int64(1 + r.IntN(3600)))
	}
	if chance(r, 10) {
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	}
	for i := range r.IntN(3) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i)})
	}
	if chance(r, 2) {
		for i := range 1 + r.IntN(3) {
			spec.InitContainers = append(spec.InitContainers, randomInit(r, fmt.Sprint("init", i)))
		}
	}
	for i := range 1 + r.IntN(3) {
		spec.Containers = append(spec.Containers, randomApp(r, fmt.Sprint("app", i)))
	}
	for _, v := range spec.Volumes {
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: v.Name})
	}
	return pod
}

// claimSomething gives a pod a resource claim.
func claimSomething(pod *corev1.Pod) {
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr("gpu")}}
}

// hookApps gives all app containers of a pod a preStop hook.
func hookApps(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Lifecycle == nil {
			c.Lifecycle = &corev1.Lifecycle{}
		}
		c.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}
	}
}

// pullAlways gives all containers of a pod the pull policy Always.
func pullAlways(pod *corev1.Pod) {
	for _, c := range podutil.Containers(&pod.Spec) {
		c.ImagePullPolicy = corev1.PullAlways
	}
}

func randomInit(r *rand.Rand, name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "image", ImagePullPolicy: corev1.PullIfNotPresent}
	switch r.IntN(4) {
	case 0, 1:
		c.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways) // a sidecar
		randomHabits(r, &c)
		if chance(r, 3) {
			if c.Lifecycle == nil {
				c.Lifecycle = &corev1.Lifecycle{}
			}
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}
		}
	case 2:
		randomRules(r, &c)
	}
	return c
}

func randomApp(r *rand.Rand, name string) corev1.Container {
	c := corev1.Container{Name: name, Image: "image", ImagePullPolicy: corev1.PullIfNotPresent}
	randomHabits(r, &c)
	if chance(r, 4) {
		randomRules(r, &c)
	}
	return c
}

// randomHabits adds a hook and probes.
func randomHabits(r *rand.Rand, c *corev1.Container) {
	if chance(r, 4) {
		c.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{}}}
	}
	probe := func() *corev1.Probe {
		if !chance(r, 4) {
			return nil
		}
		return &corev1.Probe{TerminationGracePeriodSeconds: pick(r, nil, ptr(int64(2)))}
	}
	c.StartupProbe = probe()
	c.LivenessProbe, c.ReadinessProbe = probe(), probe()
}

// randomRules adds a restart policy with rules by exit code to a container. It never makes the container a sidecar.
func randomRules(r *rand.Rand, c *corev1.Container) {
	c.RestartPolicy = ptr(pick(r, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure))
	if chance(r, 2) {
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: pick(r, corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn),
				Values:   []int32{int32(r.IntN(3))},
			}}}
		if rule := &c.RestartPolicyRules[0]; chance(r, 3) {
			// Success has no rule; otherwise such a pod would never reach a stable state.
			rule.Action = corev1.ContainerRestartRuleActionRestartAllContainers
			rule.ExitCodes.Operator = corev1.ContainerRestartRuleOnExitCodesOpIn
			rule.ExitCodes.Values[0] = 1 + int32(r.IntN(2))
		}
	}
}

// containersOf returns the containers of a pod by name.
func containersOf(pod *corev1.Pod) map[string]*corev1.Container {
	all := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			all[list[i].Name] = &list[i]
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		all[c.Name] = &c
	}
	return all
}

// withImage returns a copy of a pod in which one container has another image.
func withImage(r *rand.Rand, pod *corev1.Pod, image string) *corev1.Pod {
	next := *pod
	next.Generation++
	list := &next.Spec.Containers
	if n := len(next.Spec.InitContainers); n > 0 && chance(r, 3) {
		list = &next.Spec.InitContainers
	}
	*list = slices.Clone(*list)
	(*list)[r.IntN(len(*list))].Image = image
	return &next
}

// withDebugger returns a copy of a pod with one more ephemeral container.
func withDebugger(pod *corev1.Pod) *corev1.Pod {
	next := *pod
	next.Spec.EphemeralContainers = append(slices.Clip(pod.Spec.EphemeralContainers), corev1.EphemeralContainer{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name:  fmt.Sprint("debug", len(next.Spec.EphemeralContainers)),
			Image: "image",
		}})
	return &next
}

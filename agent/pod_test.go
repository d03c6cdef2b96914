package agent_test

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	running = runtimeapi.ContainerState_CONTAINER_RUNNING
	exited  = runtimeapi.ContainerState_CONTAINER_EXITED
	// anHour is long enough for everything that happens without another change to the node.
	anHour = time.Hour
)

// apiPod is a pod of the API server with one container, app.
func apiPod(name string, more ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Generation: 1,
			CreationTimestamp: metav1.NewTime(time.Now()),
			Annotations:       map[string]string{"kubernetes.io/config.source": "api"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault,
			TerminationGracePeriodSeconds: ptr(int64(30)), EnableServiceLinks: ptr(false),
			Containers: []corev1.Container{container("app")},
		},
	}
	for _, f := range more {
		f(pod)
	}
	return pod
}

// staticPod is a pod of a manifest.
func staticPod(name, uid string, more ...func(*corev1.Pod)) *corev1.Pod {
	pod := apiPod(name, more...)
	pod.UID, pod.CreationTimestamp = types.UID(uid), metav1.Time{}
	pod.Annotations["kubernetes.io/config.source"] = "file"
	pod.Annotations["kubernetes.io/config.hash"] = uid
	return pod
}

// container is a container with what the API fills in.
func container(name string) corev1.Container {
	return corev1.Container{
		Name: name, Image: "busybox:1", ImagePullPolicy: corev1.PullIfNotPresent,
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}

func withInit(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(name)) }
}

func withSidecar(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := container(name)
		c.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
}

func withRestart(policy corev1.RestartPolicy) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = policy }
}

// withEmptyDir gives app a directory.
func withEmptyDir(pod *corev1.Pod) {
	withVolume("data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})(pod)
}

func withConfigMap(name string) func(*corev1.Pod) {
	return withVolume("data", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, DefaultMode: ptr(int32(0o644))}})
}

func withConfigMapEnv(name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
	}
}

func withVolume(name string, source corev1.VolumeSource) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		app := &pod.Spec.Containers[0]
		app.VolumeMounts = append(app.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
}

func withPreStop(pod *corev1.Pod) {
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: command("drain")}}
}

func quantities(name corev1.ResourceName, value string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(value)}
}

func command(words ...string) *corev1.ExecAction { return &corev1.ExecAction{Command: words} }

// execProbe runs a command each second.
func execProbe(words ...string) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: command(words...)},
		TimeoutSeconds: 1, PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
}

// deleted returns the pod with a deletion timestamp and a grace period, as the API server sets them.
func deleted(pod *corev1.Pod, grace time.Duration) *corev1.Pod {
	next := *pod
	next.DeletionTimestamp = ptr(metav1.NewTime(time.Now().Add(grace)))
	next.DeletionGracePeriodSeconds = ptr(int64(grace / time.Second))
	return &next
}

func ptr[T any](v T) *T { return &v }

// containerStatus returns the status of a container in a pod's status.
func containerStatus(st corev1.PodStatus, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return &corev1.ContainerStatus{}
}

func ready(st corev1.PodStatus) bool {
	for _, c := range st.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

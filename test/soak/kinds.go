package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodelet/nodelet/test/testbed"
)

// expectation is what is to come of a pod.
type expectation string

const (
	isReady   expectation = "Ready"
	succeeds  expectation = "Succeeded"
	fails     expectation = "Failed"
	restarted expectation = "restarted"
)

func (e expectation) holds(p *corev1.Pod) bool {
	switch e {
	case succeeds:
		return p.Status.Phase == corev1.PodSucceeded || notStarted(p)
	case fails:
		return p.Status.Phase == corev1.PodFailed
	case restarted:
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// notStarted reports whether the pod failed because the runtime could not start a container: one that is killed
// between the creation and the start of a container cannot, and with restartPolicy Never that is the end of the pod.
// Nothing of the container ran, which the pod's trace shows.
func notStarted(p *corev1.Pod) bool {
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if c.State.Terminated != nil && c.State.Terminated.Reason == "StartError" {
			return p.Status.Phase == corev1.PodFailed
		}
	}
	return false
}

// refusedForDevice reports whether the pod was refused because the device plugin does not run. As with the kubelet, a
// pod that comes then is not kept until the plugin is back.
func refusedForDevice(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnexpectedAdmissionError" &&
		strings.Contains(p.Status.Message, deviceResource)
}

// refusedForDisk reports whether the pod was refused because its devices could not be recorded on the agent's broken
// disk. The kubelet refuses such a pod as well: a device without a record could be given to two pods.
func refusedForDisk(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "UnexpectedAdmissionError" &&
		strings.Contains(p.Status.Message, "failed to write checkpoint file")
}

// exitCodeLost reports whether the pod failed because the runtime was killed after a container had ended and before it
// had written down how: containerd then says that it does not know.
func exitCodeLost(p *corev1.Pod) bool {
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if end := c.State.Terminated; end != nil && end.Reason == "Unknown" && end.ExitCode == 255 {
			return p.Status.Phase == corev1.PodFailed
		}
	}
	return false
}

// kind is a kind of pod. One with trace leaves a line for each container that runs, in the order of traces.
type kind struct {
	name   string
	expect expectation
	change func(*corev1.Pod)
	// trace is what the pod has written down at its end if it succeeded.
	trace []string
}

var kinds = []kind{
	{name: "plain", expect: isReady},
	{name: "job", expect: succeeds, change: job("app"), trace: []string{"app"}},
	{name: "init job", expect: succeeds, change: initJob, trace: []string{"one", "two", "app"}},
	{name: "failing job", expect: fails, change: failingJob, trace: []string{"app"}},
	{name: "crashing", expect: restarted, change: crashing},
	{name: "probed", expect: isReady, change: probed},
	{name: "sidecar", expect: succeeds, change: withSidecar, trace: []string{"app"}},
	{name: "hooks", expect: isReady, change: hooks},
	{name: "config", expect: isReady, change: withConfig},
	{name: "host network", expect: isReady, change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
	{name: "limits", expect: isReady, change: limits},
	{name: "csi", expect: isReady, change: withClaim},
	{name: "inline csi", expect: succeeds, change: withInlineCSI, trace: []string{"app"}},
	{name: "device", expect: isReady, change: withDevice},
}

// pod makes the object. It is bound from the start, so that the scheduler has no part in the test.
func (k kind) pod(s *soak, name string) *corev1.Pod {
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"soak": "churn"}},
		Spec: corev1.PodSpec{
			NodeName:                      s.node.Name,
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name:         "app",
				Image:        testbed.PauseImage,
				VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "out", VolumeSource: corev1.VolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: s.outDir}}},
			},
		},
	}
	if k.change != nil {
		k.change(p)
	}
	return p
}

// tracer is a container that writes its name to the pod's file, and then does what script says.
func tracer(name, script string) corev1.Container {
	return corev1.Container{
		Name:    name,
		Image:   testbed.BusyboxImage,
		Command: []string{"sh", "-c", fmt.Sprintf("echo %s >>/out/$UID_OF_POD; %s", name, script)},
		Env: []corev1.EnvVar{{Name: "UID_OF_POD", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
		VolumeMounts: []corev1.VolumeMount{{Name: "out", MountPath: "/out"}},
	}
}

func job(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers = []corev1.Container{tracer(name, "exit 0")}
	}
}

func initJob(p *corev1.Pod) {
	job("app")(p)
	p.Spec.InitContainers = []corev1.Container{tracer("one", "exit 0"), tracer("two", "sleep 0.3")}
}

func failingJob(p *corev1.Pod) {
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	p.Spec.Containers = []corev1.Container{tracer("app", "exit 3")}
}

func crashing(p *corev1.Pod) {
	p.Spec.Containers = []corev1.Container{tracer("app", "sleep 0.2; exit 1")}
}

func probed(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	c.Image, c.Command = testbed.AgnhostImage, []string{"/agnhost", "netexec", "--http-port=8080"}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
		PeriodSeconds:    1,
		TimeoutSeconds:   5,
		FailureThreshold: 10,
	}
}

func withSidecar(p *corev1.Pod) {
	job("app")(p)
	always := corev1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: testbed.PauseImage, RestartPolicy: &always}}
}

func hooks(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	c.Image, c.Command = testbed.BusyboxImage, []string{"sleep", "1000000"}
	run := func(script string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", script}}}
	}
	c.Lifecycle = &corev1.Lifecycle{PostStart: run("echo started >/scratch/hook"), PreStop: run("sleep 0.2")}
}

func withConfig(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: configName}}}}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "config", MountPath: "/config"})
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configName}}}})
}

// withClaim uses a volume of the CSI driver.
func withClaim(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "claim", MountPath: "/claim"})
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "claim", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimOf(p.Name)}}})
}

func withInlineCSI(p *corev1.Pod) {
	job("app")(p)
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "inline", MountPath: "/inline"})
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: driverName}}})
}

func withDevice(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{deviceResource: apiresource.MustParse("1")}
}

func limits(p *corev1.Pod) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		corev1.ResourceCPU:    apiresource.MustParse("100m"),
		corev1.ResourceMemory: apiresource.MustParse("32Mi"),
	}
}

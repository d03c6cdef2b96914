package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if text != "" {
			out[name] = resource.MustParse(text)
		}
	}
	return out
}

func requirements(cpuRequest, memoryRequest, cpuLimit, memoryLimit string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: list(cpuRequest, memoryRequest), Limits: list(cpuLimit, memoryLimit)}
}

func TestQOS(t *testing.T) {
	none, equal := requirements("", "", "", ""), requirements("1", "1Gi", "1", "1Gi")
	type r = corev1.ResourceRequirements
	gpu := corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
	for name, c := range map[string]struct {
		app  []r
		init []r
		pod  *r
		want corev1.PodQOSClass
	}{
		"nothing":              {app: []r{none}, want: "BestEffort"},
		"no containers":        {want: "BestEffort"},
		"zeros":                {app: []r{requirements("0", "0", "0", "0")}, want: "BestEffort"},
		"other resources only": {app: []r{{Limits: gpu}}, want: "BestEffort"},
		"equal":                {app: []r{equal}, want: "Guaranteed"},
		"equal, other unit":    {app: []r{requirements("1000m", "1Gi", "1", "1024Mi")}, want: "Guaranteed"},
		"two equal":            {app: []r{equal, equal}, want: "Guaranteed"},
		"limits alone":         {app: []r{requirements("", "", "1", "1Gi")}, want: "Burstable"},
		"requests alone":       {app: []r{requirements("1", "1Gi", "", "")}, want: "Burstable"},
		"no memory":            {app: []r{requirements("1", "", "1", "")}, want: "Burstable"},
		"no cpu":               {app: []r{requirements("", "1Gi", "", "1Gi")}, want: "Burstable"},
		"lower request":        {app: []r{requirements("1", "1Mi", "1", "1Gi")}, want: "Burstable"},
		"one without":          {app: []r{equal, none}, want: "Burstable"},
		"init without":         {app: []r{equal}, init: []r{none}, want: "Burstable"},
		"init equal":           {app: []r{equal}, init: []r{equal}, want: "Guaranteed"},
		"init alone":           {app: []r{none}, init: []r{requirements("1", "", "", "")}, want: "Burstable"},
		"sums equal, parts not": {
			app:  []r{requirements("1", "1Gi", "2", "1Gi"), requirements("2", "1Gi", "1", "1Gi")},
			want: "Guaranteed",
		},
		"pod equal":               {app: []r{none}, pod: &equal, want: "Guaranteed"},
		"pod equal, parts differ": {app: []r{requirements("", "1Mi", "", "")}, pod: &equal, want: "Guaranteed"},
		"pod requests":            {app: []r{equal}, pod: new(requirements("1", "1Gi", "", "")), want: "Burstable"},
		"pod memory":              {app: []r{none}, pod: new(requirements("", "1Gi", "", "1Gi")), want: "Burstable"},
		"pod empty":               {app: []r{equal}, pod: &none, want: "Guaranteed"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: c.pod}}
		for _, r := range c.app {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: r})
		}
		for _, r := range c.init {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Resources: r})
		}
		pod.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
		if got := podutil.QOS(pod); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		pod.Status.QOSClass = "Guaranteed"
		if got := podutil.QOS(pod); got != "Guaranteed" {
			t.Errorf("%s: got %s, want the recorded class Guaranteed", name, got)
		}
	}
}

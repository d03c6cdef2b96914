package manifest

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// SetDefaults sets the defaults that the API server sets in a new v1 Pod, but those of pod-level resources. It changes
// no value that is set, except for a negative grace period, and a second call changes nothing. The defaults are those
// of API group v1 in Kubernetes 1.37 with its default feature gates; testdata/defaults has pods and the results of a
// real API server.
func SetDefaults(pod *corev1.Pod) {
	spec := &pod.Spec
	for _, c := range podutil.Containers(spec) {
		requestsFromLimits(&c.Resources)
	}
	def(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	if spec.HostNetwork {
		for _, c := range podutil.Containers(spec) {
			for i := range c.Ports {
				orElse(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
			}
		}
	}
	orElse(&spec.DNSPolicy, corev1.DNSClusterFirst)
	orElse(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	orElse(&spec.SchedulerName, corev1.DefaultSchedulerName)
	def(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	if *spec.TerminationGracePeriodSeconds < 0 {
		*spec.TerminationGracePeriodSeconds = 1
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i].VolumeSource)
	}
	for _, c := range podutil.Containers(spec) {
		defaultContainer(c)
	}
	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits)
		roundUp(spec.Resources.Requests)
	}
}

// setPodLevelDefaults sets those of pod-level resources (KEP-2837), as the API server of Kubernetes 1.36 does. That of
// 1.37 also sets requests and limits where a pod has requests only. The kubelet does not, and the class of the pod,
// with its cgroup, would not be the kubelet's.
func setPodLevelDefaults(pod *corev1.Pod) {
	podLevelHugePages(pod)
	podLevelRequests(pod)
}

// def sets a nil pointer.
func def[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// orElse sets a zero value.
func orElse[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func defaultContainer(c *corev1.Container) {
	orElse(&c.ImagePullPolicy, pullPolicyFor(c.Image))
	orElse(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	orElse(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		orElse(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				def(&from.FileKeyRef.Optional, false)
			}
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			defaultProbe(p)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	orElse(&p.TimeoutSeconds, 1)
	orElse(&p.PeriodSeconds, 10)
	orElse(&p.SuccessThreshold, 1)
	orElse(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		def(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h != nil {
		orElse(&h.Path, "/")
		orElse(&h.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultFieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil {
		orElse(&f.APIVersion, "v1")
	}
}

// pullPolicyFor returns Always for the tag "latest", and for a name without tag and digest, which means that tag.
func pullPolicyFor(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	last := name[strings.LastIndex(name, "/")+1:]
	_, tag, tagged := strings.Cut(last, ":")
	if name != "" && (tag == "latest" || !tagged && !digested) {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func requestsFromLimits(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	addMissing(r.Requests, r.Limits, func(corev1.ResourceName) bool { return true })
}

// addMissing copies those entries of from that are not in to and that wanted accepts.
func addMissing(to, from corev1.ResourceList, wanted func(corev1.ResourceName) bool) {
	for name, q := range from {
		if _, has := to[name]; !has && wanted(name) {
			to[name] = q.DeepCopy()
		}
	}
}

// podLevelHugePages sets the huge pages of a pod with pod-level resources: those that its containers may use
// (KEP-2837).
func podLevelHugePages(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits) == 0 && len(r.Requests) == 0 {
		return
	}
	limits := maps.Clone(r.Limits)
	if limits == nil {
		limits = corev1.ResourceList{}
	}
	sum := helpers.AggregateContainerLimits(pod, helpers.PodResourcesOptions{})
	addMissing(limits, sum, func(n corev1.ResourceName) bool {
		_, requested := r.Requests[n]
		return helpers.IsSupportedPodLevelResource(n) && podutil.IsHugePages(n) && !requested
	})
	if len(limits) > 0 {
		r.Limits = limits
	}
}

// podLevelRequests sets the requests of a pod with pod-level limits: the sum over its containers, or else its limits
// (KEP-2837).
func podLevelRequests(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits) == 0 {
		return
	}
	requests := maps.Clone(r.Requests)
	if requests == nil {
		requests = corev1.ResourceList{}
	}
	sum := helpers.AggregateContainerRequests(pod, helpers.PodResourcesOptions{})
	addMissing(requests, sum, func(n corev1.ResourceName) bool {
		return helpers.IsSupportedPodLevelResource(n) && !podutil.IsHugePages(n)
	})
	addMissing(requests, r.Limits, helpers.IsSupportedPodLevelResource)
	if len(requests) > 0 {
		r.Requests = requests
	}
}

// roundUp rounds all resources up to thousandths.
func roundUp(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}

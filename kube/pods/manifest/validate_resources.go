package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	helpers "k8s.io/component-helpers/resource"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func (c *checker) resources(p *field.Path, r *corev1.ResourceRequirements) {
	pages, others := false, false
	for _, l := range []struct {
		name string
		list corev1.ResourceList
	}{{"limits", r.Limits}, {"requests", r.Requests}} {
		for name, q := range l.list {
			lp := p.Child(l.name).Key(string(name))
			c.resourceName(lp, string(name))
			c.amount(lp, name, q)
			pages = pages || podutil.IsHugePages(name)
			others = others || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	if pages && !others {
		c.add(field.Forbidden(p, "huge pages require cpu or memory"))
	}
	c.requestsWithinLimits(p, r)
	if len(r.Claims) > 0 {
		c.add(field.Forbidden(p.Child("claims"), "static pods may not use resource claims"))
	}
}

func (c *checker) amount(p *field.Path, name corev1.ResourceName, q resource.Quantity) {
	size, sized := podutil.HugePageSize(name)
	switch {
	case q.Sign() < 0:
		c.add(field.Invalid(p, q.String(), "must not be negative"))
	case podutil.IsHugePages(name) && (!sized || q.Value()%size != 0):
		c.add(field.Invalid(p, q.String(), "must be a multiple of the page size"))
	case !podutil.IsNative(name) && q.MilliValue()%1000 != 0:
		c.add(field.Invalid(p, q.String(), "must be a whole number"))
	}
}

func (c *checker) requestsWithinLimits(p *field.Path, r *corev1.ResourceRequirements) {
	for name, q := range r.Requests {
		limit, limited := r.Limits[name]
		rp := p.Child("requests").Key(string(name))
		switch {
		case !overcommits(name) && (!limited || limit.Cmp(q) != 0):
			c.add(field.Invalid(rp, q.String(), "must be equal to the limit"))
		case limited && q.Cmp(limit) > 0:
			c.add(field.Invalid(rp, q.String(), "must not be greater than the limit of "+limit.String()))
		}
	}
}

func (c *checker) resizePolicy(p *field.Path, policies []corev1.ContainerResizePolicy) {
	seen := map[corev1.ResourceName]bool{}
	for i, r := range policies {
		pp := p.Index(i)
		oneOf(c.findings, pp.Child("resourceName"), r.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		oneOf(c.findings, pp.Child("restartPolicy"), r.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if seen[r.ResourceName] {
			c.add(field.Duplicate(pp, r.ResourceName))
		}
		seen[r.ResourceName] = true
		if c.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && r.RestartPolicy == corev1.RestartContainer {
			c.add(field.Invalid(pp.Child("restartPolicy"), r.RestartPolicy,
				"must be NotRequired in a pod with restartPolicy: Never"))
		}
	}
}

// overcommits reports whether the limit of a resource may be larger than its request: only for those of Kubernetes,
// except huge pages.
func overcommits(name corev1.ResourceName) bool {
	return podutil.IsNative(name) && !podutil.IsHugePages(name)
}

func (f *findings) resourceName(p *field.Path, name string) {
	switch {
	case strings.Contains(name, "/"):
		f.texts(p, name, validation.IsQualifiedName(name))
	case name == string(corev1.ResourceCPU), name == string(corev1.ResourceMemory),
		name == string(corev1.ResourceEphemeralStorage), podutil.IsHugePages(corev1.ResourceName(name)):
	default:
		f.add(field.Invalid(p, name, "is not a resource of a container: want cpu, memory, ephemeral-storage, "+
			"hugepages-<size> or a name with a domain"))
	}
}

func (c *checker) podResources(p *field.Path) {
	s := &c.pod.Spec
	if len(s.ResourceClaims) > 0 {
		c.add(field.Forbidden(p.Child("resourceClaims"), "static pods may not use resource claims"))
	}
	for name, q := range s.Overhead {
		c.amount(p.Child("overhead").Key(string(name)), name, q)
	}
	if s.Resources == nil {
		return
	}
	rp := p.Child("resources")
	c.resources(rp, s.Resources)
	for _, list := range []corev1.ResourceList{s.Resources.Limits, s.Resources.Requests} {
		for name := range list {
			if !helpers.IsSupportedPodLevelResource(name) {
				c.add(field.NotSupported(rp, name, helpers.SupportedPodLevelResources().UnsortedList()))
			}
		}
	}
	sum := helpers.AggregateContainerRequests(c.pod, helpers.PodResourcesOptions{})
	for name, q := range s.Resources.Requests {
		if containers, ok := sum[name]; ok && containers.Cmp(q) > 0 {
			c.add(field.Invalid(rp.Child("requests").Key(string(name)), q.String(),
				"must not be less than the requests of the containers, "+containers.String()))
		}
	}
	for i := range s.Containers {
		for name, q := range s.Containers[i].Resources.Limits {
			if limit, limited := s.Resources.Limits[name]; limited && q.Cmp(limit) > 0 {
				c.add(field.Invalid(p.Child("containers").Index(i).Child("resources", "limits").Key(string(name)), q.String(),
					"must not be greater than the limit of the pod, "+limit.String()))
			}
		}
	}
}

package pod

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Role is what a container is to its pod.
type Role uint8

const (
	// RoleInit containers run one after the other, each to its end, before the app containers.
	RoleInit Role = iota
	// RoleSidecar containers are init containers that keep running (restartPolicy Always, KEP-753).
	RoleSidecar
	// RoleApp containers are those of spec.containers.
	RoleApp
	// RoleEphemeral containers join a running pod for debugging.
	RoleEphemeral
)

func (r Role) String() string {
	switch r {
	case RoleInit:
		return "init"
	case RoleSidecar:
		return "sidecar"
	case RoleApp:
		return "app"
	case RoleEphemeral:
		return "ephemeral"
	}
	return "unknown"
}

// Containers iterates over the containers of all roles: init containers and sidecars in the spec's order,
// then app containers, then ephemeral ones. A rule about containers goes through this one iterator, so that
// it forgets no role. The containers are the spec's own: a caller that does not own the spec must not
// change them.
func Containers(spec *corev1.PodSpec) iter.Seq2[Role, *corev1.Container] {
	return func(yield func(Role, *corev1.Container) bool) {
		for i := range spec.InitContainers {
			c := &spec.InitContainers[i]
			role := RoleInit
			if IsSidecar(c) {
				role = RoleSidecar
			}
			if !yield(role, c) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(RoleApp, &spec.Containers[i]) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			common := &spec.EphemeralContainers[i].EphemeralContainerCommon
			if !yield(RoleEphemeral, (*corev1.Container)(common)) {
				return
			}
		}
	}
}

// ContainersWithResources iterates like Containers over those that may have resources of their own: all but ephemeral
// ones.
func ContainersWithResources(spec *corev1.PodSpec) iter.Seq2[Role, *corev1.Container] {
	return func(yield func(Role, *corev1.Container) bool) {
		for role, c := range Containers(spec) {
			if role == RoleEphemeral || !yield(role, c) {
				return
			}
		}
	}
}

// AppsAndSidecars iterates like Containers over the containers that run as long as the pod does: app containers and
// sidecars.
func AppsAndSidecars(spec *corev1.PodSpec) iter.Seq2[Role, *corev1.Container] {
	return func(yield func(Role, *corev1.Container) bool) {
		for role, c := range Containers(spec) {
			if (role == RoleApp || role == RoleSidecar) && !yield(role, c) {
				return
			}
		}
	}
}

// Count is how many containers of all roles the spec has.
func Count(spec *corev1.PodSpec) int {
	return len(spec.InitContainers) + len(spec.Containers) + len(spec.EphemeralContainers)
}

// Container returns the container of that name and its role; nil where the spec has none.
func Container(spec *corev1.PodSpec, name string) (Role, *corev1.Container) {
	for role, c := range Containers(spec) {
		if c.Name == name {
			return role, c
		}
	}
	return 0, nil
}

// Target is the name of the container whose process namespace the named ephemeral container joins; empty
// where there is no such ephemeral container or it joins none.
func Target(spec *corev1.PodSpec, ephemeral string) string {
	for i := range spec.EphemeralContainers {
		if e := &spec.EphemeralContainers[i]; e.Name == ephemeral {
			return e.TargetContainerName
		}
	}
	return ""
}

// Limits reports whether a resource of the whole pod is limited: by a limit of the pod itself, or of each init and app
// container. A sum that leaves out a container is not a limit.
func Limits(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	if spec.Resources != nil && isSet(spec.Resources.Limits, name) {
		return true
	}
	for _, c := range ContainersWithResources(spec) {
		if !isSet(c.Resources.Limits, name) {
			return false
		}
	}
	return true
}

// isSet reports whether a list has more than zero of a resource.
func isSet(list corev1.ResourceList, name corev1.ResourceName) bool {
	q := list[name]
	return !q.IsZero()
}

// IsSidecar reports whether an init container keeps running beside the app containers (KEP-753).
func IsSidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Privileged reports whether a security context, which may be nil, is that of a privileged container.
func Privileged(sc *corev1.SecurityContext) bool { return sc != nil && ptr.Deref(sc.Privileged, false) }

// Field is the name of the list in the spec that holds the containers of that role.
func (r Role) Field() string {
	switch r {
	case RoleInit, RoleSidecar:
		return "initContainers"
	case RoleEphemeral:
		return "ephemeralContainers"
	}
	return "containers"
}

// CloneContainers is a shallow copy of the spec with container lists of its own, so that a field of a
// container can be replaced. What the fields of containers refer to is shared with spec.
func CloneContainers(spec *corev1.PodSpec) corev1.PodSpec {
	out := *spec
	out.InitContainers = slices.Clone(spec.InitContainers)
	out.Containers = slices.Clone(spec.Containers)
	out.EphemeralContainers = slices.Clone(spec.EphemeralContainers)
	return out
}

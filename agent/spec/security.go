package spec

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The paths that procMount Default hides from containers and those that it makes read-only, as in container engines.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// sandboxSecurity returns the security context of the sandbox itself, in which no process of the user runs. Its seccomp
// profile is always RuntimeDefault.
func sandboxSecurity(in *SandboxInput) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	namespaces, err := namespaces(in.Pod, in.UserNS)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces,
		Privileged:       anyPrivileged(in.Pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if sc := in.Pod.Spec.SecurityContext; sc != nil {
		out.RunAsUser = int64Value(sc.RunAsUser)
		out.RunAsGroup = int64Value(sc.RunAsGroup)
		out.SelinuxOptions = selinuxOptions(sc.SELinuxOptions)
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(in.Pod)
	return out, err
}

// containerSecurity returns the security context of one container instance: the pod's settings, overridden by the
// container's. It depends only on the input, so every instance gets the same user.
func containerSecurity(in *ContainerInput) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effective(in.Pod, in.Container)
	if err := checkIDs(sc); err != nil {
		return nil, err
	}
	if err := checkNonRoot(in, sc); err != nil {
		return nil, err
	}
	namespaces, err := containerNamespaces(in)
	if err != nil {
		return nil, err
	}
	seccomp, err := seccompProfile(in.Pod, in.Container, in.Node)
	if err != nil {
		return nil, err
	}
	apparmor, apparmorText, err := apparmorProfile(in.Pod, in.Container)
	if err != nil {
		return nil, err
	}
	capabilities, err := capabilities(sc)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:     capabilities,
		Privileged:       ptr.Deref(sc.Privileged, false),
		NamespaceOptions: namespaces,
		SelinuxOptions:   selinuxOptions(sc.SELinuxOptions),
		RunAsGroup:       int64Value(sc.RunAsGroup),
		ReadonlyRootfs:   ptr.Deref(sc.ReadOnlyRootFilesystem, false),
		NoNewPrivs:       !ptr.Deref(sc.AllowPrivilegeEscalation, true),
		Seccomp:          seccomp,
		Apparmor:         apparmor,
		ApparmorProfile:  apparmorText,
	}
	out.RunAsUser, out.RunAsUsername = runAs(sc, in.Image)
	if err := setProcMount(out, sc, in.Node); err != nil {
		return nil, err
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(in.Pod)
	out.SupplementalGroups = append(out.SupplementalGroups, in.ExtraGroups...)
	return out, err
}

// effective returns the container's security context, with the fields that it does not set taken from the pod's.
// Seccomp and AppArmor have their own rules: see seccompProfile and apparmorProfile.
func effective(pod *corev1.Pod, c *corev1.Container) *corev1.SecurityContext {
	out := &corev1.SecurityContext{}
	if c.SecurityContext != nil {
		*out = *c.SecurityContext
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		out.SELinuxOptions = cmp.Or(out.SELinuxOptions, sc.SELinuxOptions)
		out.RunAsUser = cmp.Or(out.RunAsUser, sc.RunAsUser)
		out.RunAsGroup = cmp.Or(out.RunAsGroup, sc.RunAsGroup)
		out.RunAsNonRoot = cmp.Or(out.RunAsNonRoot, sc.RunAsNonRoot)
	}
	return out
}

// runAs returns the user of the container's process, as a number or as a name: the user of the spec, else the user of
// the image, else root.
func runAs(sc *corev1.SecurityContext, image Image) (*runtimeapi.Int64Value, string) {
	switch {
	case sc.RunAsUser != nil:
		return int64Value(sc.RunAsUser), ""
	case image.UID != nil:
		return int64Value(image.UID), ""
	case image.Username != "":
		return nil, image.Username
	}
	return &runtimeapi.Int64Value{}, ""
}

// checkNonRoot enforces runAsNonRoot. It rejects a user that the image specifies only by name: the number of that
// user is in the image's files, which this package does not read.
func checkNonRoot(in *ContainerInput, sc *corev1.SecurityContext) error {
	if !ptr.Deref(sc.RunAsNonRoot, false) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", podutil.Text(in.Pod), in.Container.Name)
	user, name := runAs(sc, in.Image)
	switch {
	case user == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s",
			name, where)
	case user.Value == 0 && sc.RunAsUser != nil:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
	case user.Value == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case user.Value < 0 || user.Value > math.MaxInt32:
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d), must be 1 to %d %s",
			user.Value, math.MaxInt32, where)
	}
	return nil
}

// groups returns the supplemental groups of a pod, and whether those of the image's user are added.
func groups(pod *corev1.Pod) (all []int64, policy runtimeapi.SupplementalGroupsPolicy, err error) {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil, policy, nil
	}
	if err := checkPodIDs(sc); err != nil {
		return nil, policy, err
	}
	if sc.FSGroup != nil {
		all = append(all, *sc.FSGroup)
	}
	if name := sc.SupplementalGroupsPolicy; name != nil {
		value, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*name)]
		if !ok {
			return nil, policy, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *name)
		}
		policy = runtimeapi.SupplementalGroupsPolicy(value)
	}
	return append(all, sc.SupplementalGroups...), policy, nil
}

// setProcMount hides parts of /proc and /sys and makes parts of them read-only, unless procMount is Unmasked.
func setProcMount(out *runtimeapi.LinuxContainerSecurityContext, sc *corev1.SecurityContext, node *Node) error {
	switch mode := ptr.Deref(sc.ProcMount, corev1.DefaultProcMount); mode {
	case corev1.DefaultProcMount:
		out.MaskedPaths = slices.Concat(maskedPaths, node.ThermalThrottlePaths)
		out.ReadonlyPaths = slices.Clone(readonlyPaths)
	case corev1.UnmaskedProcMount:
	default:
		return fmt.Errorf("unknown securityContext.procMount %q", mode)
	}
	return nil
}

func capabilities(sc *corev1.SecurityContext) (*runtimeapi.Capability, error) {
	if sc.Capabilities == nil {
		return nil, nil
	}
	out := &runtimeapi.Capability{}
	for _, c := range sc.Capabilities.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(c))
	}
	for _, c := range sc.Capabilities.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(c))
	}
	for _, name := range slices.Concat(out.AddCapabilities, out.DropCapabilities) {
		if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" || name == "" {
			return nil, fmt.Errorf("securityContext.capabilities: %q is not a valid capability name", name)
		}
	}
	return out, nil
}

func selinuxOptions(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func anyPrivileged(pod *corev1.Pod) bool {
	for _, c := range podutil.Containers(&pod.Spec) {
		if podutil.Privileged(c.SecurityContext) {
			return true
		}
	}
	return false
}

// checkIDs rejects numbers that are not a valid user or group ID.
func checkIDs(sc *corev1.SecurityContext) error {
	if err := checkID("runAsUser", sc.RunAsUser); err != nil {
		return err
	}
	return checkID("runAsGroup", sc.RunAsGroup)
}

func checkPodIDs(sc *corev1.PodSecurityContext) error {
	for i := range sc.SupplementalGroups {
		if err := checkID("supplementalGroups", &sc.SupplementalGroups[i]); err != nil {
			return err
		}
	}
	if err := checkID("fsGroup", sc.FSGroup); err != nil {
		return err
	}
	return checkIDs(&corev1.SecurityContext{RunAsUser: sc.RunAsUser, RunAsGroup: sc.RunAsGroup})
}

func checkID(field string, id *int64) error {
	if id != nil && (*id < 0 || *id > math.MaxInt32) {
		return fmt.Errorf("securityContext.%s %d must be 0 to %d", field, *id, math.MaxInt32)
	}
	return nil
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

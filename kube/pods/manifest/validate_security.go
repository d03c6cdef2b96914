package manifest

import (
	"math"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/utils/ptr"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func (c *checker) podSecurity(p *field.Path) {
	s := &c.pod.Spec
	sp := p.Child("securityContext")
	if ptr.Deref(s.ShareProcessNamespace, false) && s.HostPID {
		c.add(field.Invalid(p.Child("shareProcessNamespace"), true, "shareProcessNamespace and hostPID exclude each other"))
	}
	if podutil.HasUserNamespace(s) && (s.HostNetwork || s.HostPID || s.HostIPC) {
		c.add(field.Forbidden(p.Child("hostUsers"), "false excludes the network, PID and IPC namespaces of the host"))
	}
	sc := s.SecurityContext
	if sc == nil {
		return
	}
	c.id(sp.Child("runAsUser"), sc.RunAsUser)
	c.id(sp.Child("runAsGroup"), sc.RunAsGroup)
	c.id(sp.Child("fsGroup"), sc.FSGroup)
	for i := range sc.SupplementalGroups {
		c.id(sp.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])
	}
	c.seccomp(sp.Child("seccompProfile"), sc.SeccompProfile)
	c.appArmor(sp.Child("appArmorProfile"), sc.AppArmorProfile)
	c.sysctls(sp.Child("sysctls"), sc.Sysctls)
	if f := sc.FSGroupChangePolicy; f != nil {
		oneOf(c.findings, sp.Child("fsGroupChangePolicy"), *f, corev1.FSGroupChangeOnRootMismatch, corev1.FSGroupChangeAlways)
	}
	if g := sc.SupplementalGroupsPolicy; g != nil {
		oneOf(c.findings, sp.Child("supplementalGroupsPolicy"), *g,
			corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	}
	if policy := sc.SELinuxChangePolicy; policy != nil {
		oneOf(c.findings, sp.Child("seLinuxChangePolicy"), *policy,
			corev1.SELinuxChangePolicyRecursive, corev1.SELinuxChangePolicyMountOption)
	}
	if sc.WindowsOptions != nil && ptr.Deref(sc.WindowsOptions.HostProcess, false) {
		c.add(field.Forbidden(sp.Child("windowsOptions", "hostProcess"), "this node runs Linux"))
	}
}

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// sysctls rejects those that would change the host: sysctls of a namespace that the pod shares with it.
func (c *checker) sysctls(p *field.Path, sysctls []corev1.Sysctl) {
	seen := map[string]bool{}
	for i, s := range sysctls {
		np := p.Index(i).Child("name")
		name := sysctl.NormalizeName(s.Name)
		namespace, _, _ := sysctl.GetNamespace(s.Name)
		switch {
		case !c.required(np, s.Name):
		case len(s.Name) > 253 || !sysctlName.MatchString(s.Name):
			c.add(field.Invalid(np, s.Name, "is not a valid sysctl name"))
		case seen[name]:
			c.add(field.Duplicate(np, s.Name))
		case c.pod.Spec.HostNetwork && namespace == sysctl.NetNamespace:
			c.add(field.Invalid(np, s.Name, "may not be set with hostNetwork: true"))
		case c.pod.Spec.HostIPC && namespace == sysctl.IPCNamespace:
			c.add(field.Invalid(np, s.Name, "may not be set with hostIPC: true"))
		default:
			seen[name] = true
		}
	}
}

func (c *checker) containerSecurity(p *field.Path, sc *corev1.SecurityContext) {
	if sc == nil {
		return
	}
	c.id(p.Child("runAsUser"), sc.RunAsUser)
	c.id(p.Child("runAsGroup"), sc.RunAsGroup)
	c.seccomp(p.Child("seccompProfile"), sc.SeccompProfile)
	c.appArmor(p.Child("appArmorProfile"), sc.AppArmorProfile)
	if m := sc.ProcMount; m != nil {
		oneOf(c.findings, p.Child("procMount"), *m, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *m == corev1.UnmaskedProcMount && !podutil.HasUserNamespace(&c.pod.Spec) {
			c.add(field.Invalid(p.Child("procMount"), *m, "needs spec.hostUsers: false"))
		}
	}
	if sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation {
		return
	}
	ep := p.Child("allowPrivilegeEscalation")
	if podutil.Privileged(sc) {
		c.add(field.Invalid(ep, false, "false is not possible with privileged: true"))
	}
	if sc.Capabilities != nil {
		for _, add := range sc.Capabilities.Add {
			if add == "CAP_SYS_ADMIN" {
				c.add(field.Invalid(ep, false, "false is not possible with the capability CAP_SYS_ADMIN"))
			}
		}
	}
}

// id rejects a user or group ID that the kernel does not support.
func (f *findings) id(p *field.Path, id *int64) {
	if id != nil {
		f.between(p, *id, 0, math.MaxInt32)
	}
}

// seccomp rejects a profile without a type or with too many fields: the container must not run unconfined by mistake.
func (f *findings) seccomp(p *field.Path, s *corev1.SeccompProfile) {
	if s == nil {
		return
	}
	oneOf(f, p.Child("type"), s.Type,
		corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	f.localhostProfile(p, s.Type == corev1.SeccompProfileTypeLocalhost, s.LocalhostProfile)
	if s.LocalhostProfile != nil {
		f.below(p.Child("localhostProfile"), *s.LocalhostProfile)
	}
}

func (f *findings) appArmor(p *field.Path, a *corev1.AppArmorProfile) {
	if a == nil {
		return
	}
	oneOf(f, p.Child("type"), a.Type,
		corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	f.localhostProfile(p, a.Type == corev1.AppArmorProfileTypeLocalhost, a.LocalhostProfile)
}

func (f *findings) localhostProfile(p *field.Path, localhost bool, profile *string) {
	lp := p.Child("localhostProfile")
	switch {
	case localhost && (profile == nil || *profile == ""):
		f.add(field.Required(lp, "must name a profile when type is Localhost"))
	case !localhost && profile != nil:
		f.add(field.Invalid(lp, *profile, "may only be set when type is Localhost"))
	}
}

package manifest

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// validate returns what is invalid in a static pod with defaults set. It accepts what the API server accepts, except
// what could never run on this node (a UID that is no file name, a pod for another operating system, an invalid host
// address, a ConfigMap or Secret whose name cannot exist), and also accepts mistakes that do not affect the node, as
// in affinity terms. Each error names the path of the field.
func validate(pod *corev1.Pod) field.ErrorList {
	c := &checker{findings: &findings{checkMeta(&pod.ObjectMeta)}, pod: pod}
	spec := field.NewPath("spec")
	c.volumes(spec.Child("volumes"))
	c.allContainers(spec)
	c.lifetime(spec)
	c.identity(spec)
	c.dns(spec)
	c.podSecurity(spec)
	c.placement(spec)
	c.podResources(spec)
	return c.errs
}

// checker checks one pod.
type checker struct {
	*findings
	pod *corev1.Pod
	// volume has the volumes by name.
	volume map[string]*corev1.Volume
}

// findings are the errors of one pod. Its methods check values that do not depend on the rest of the pod.
type findings struct {
	errs field.ErrorList
}

func (f *findings) add(errs ...*field.Error) { f.errs = append(f.errs, errs...) }

// texts adds an error for each message of a check from apimachinery.
func (f *findings) texts(p *field.Path, value any, msgs []string) {
	for _, m := range msgs {
		f.add(field.Invalid(p, value, m))
	}
}

// oneOf rejects a value that is not listed.
func oneOf[T ~string](f *findings, p *field.Path, value T, listed ...T) {
	if !slices.Contains(listed, value) {
		f.add(field.NotSupported(p, value, listed))
	}
}

// between rejects a number outside [low, high].
func (f *findings) between(p *field.Path, n, low, high int64) {
	if n < low || n > high {
		f.add(field.Invalid(p, n, validation.InclusiveRangeError(int(low), int(high))))
	}
}

func (f *findings) notNegative(p *field.Path, n int64) {
	if n < 0 {
		f.add(field.Invalid(p, n, "must not be negative"))
	}
}

func (f *findings) required(p *field.Path, value string) bool {
	if value == "" {
		f.add(field.Required(p, ""))
	}
	return value != ""
}

// subdomain rejects an optional name that is not a DNS subdomain.
func (f *findings) subdomain(p *field.Path, name string) {
	if name != "" {
		f.texts(p, name, validation.IsDNS1123Subdomain(name))
	}
}

func checkMeta(m *metav1.ObjectMeta) (errs field.ErrorList) {
	p := field.NewPath("metadata")
	for _, msg := range apivalidation.NameIsDNSSubdomain(m.Name, false) {
		errs = append(errs, field.Invalid(p.Child("name"), m.Name, msg))
	}
	for _, msg := range apivalidation.ValidateNamespaceName(m.Namespace, false) {
		errs = append(errs, field.Invalid(p.Child("namespace"), m.Namespace, msg))
	}
	if m.UID != "" && !podutil.ValidUID(m.UID) {
		errs = append(errs, field.Invalid(p.Child("uid"), m.UID, "must be "+podutil.UIDFormat))
	}
	errs = append(errs, metavalidation.ValidateLabels(m.Labels, p.Child("labels"))...)
	return append(errs, apivalidation.ValidateAnnotations(m.Annotations, p.Child("annotations"))...)
}

func (c *checker) lifetime(p *field.Path) {
	s := &c.pod.Spec
	oneOf(c.findings, p.Child("restartPolicy"), s.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	if s.ActiveDeadlineSeconds != nil {
		c.between(p.Child("activeDeadlineSeconds"), *s.ActiveDeadlineSeconds, 1, math.MaxInt32)
	}
	if len(s.EphemeralContainers) > 0 {
		c.add(field.Forbidden(p.Child("ephemeralContainers"), "can only be added to a running pod"))
	}
}

func (c *checker) identity(p *field.Path) {
	s := &c.pod.Spec
	for name, value := range map[string]string{"hostname": s.Hostname, "subdomain": s.Subdomain} {
		if value != "" {
			c.texts(p.Child(name), value, validation.IsDNS1123Label(value))
		}
	}
	if h := s.HostnameOverride; h != nil {
		hp := p.Child("hostnameOverride")
		c.texts(hp, *h, validation.IsDNS1123Subdomain(*h))
		if len(*h) > 64 {
			c.add(field.TooLong(hp, *h, 64))
		}
		if s.HostNetwork || ptr.Deref(s.SetHostnameAsFQDN, false) {
			c.add(field.Forbidden(hp, "may not be used with hostNetwork or setHostnameAsFQDN"))
		}
	}
	c.subdomain(p.Child("nodeName"), s.NodeName)
	c.subdomain(p.Child("serviceAccountName"), s.ServiceAccountName)
	c.subdomain(p.Child("priorityClassName"), s.PriorityClassName)
	if s.RuntimeClassName != nil {
		c.texts(p.Child("runtimeClassName"), *s.RuntimeClassName, validation.IsDNS1123Subdomain(*s.RuntimeClassName))
	}
	for i, a := range s.HostAliases {
		ap := p.Child("hostAliases").Index(i)
		c.address(ap.Child("ip"), a.IP)
		for j, h := range a.Hostnames {
			c.texts(ap.Child("hostnames").Index(j), h, validation.IsDNS1123Subdomain(h))
		}
	}
}

// address accepts what net.ParseIP accepts, as the API does for older fields: leading zeros are allowed.
func (f *findings) address(p *field.Path, ip string) {
	if len(validation.IsValidIPForLegacyField(p, ip, false, nil)) > 0 {
		f.add(field.Invalid(p, ip, "must be an IPv4 or IPv6 address"))
	}
}

const (
	maxNameservers    = 3
	maxSearchDomains  = 32
	maxSearchListText = 2048
)

func (c *checker) dns(p *field.Path) {
	s := &c.pod.Spec
	oneOf(c.findings, p.Child("dnsPolicy"), s.DNSPolicy,
		corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)
	cp := p.Child("dnsConfig")
	if s.DNSPolicy == corev1.DNSNone && (s.DNSConfig == nil || len(s.DNSConfig.Nameservers) == 0) {
		c.add(field.Required(cp.Child("nameservers"), fmt.Sprintf("must name a server when dnsPolicy is %q", corev1.DNSNone)))
	}
	if s.DNSConfig == nil {
		return
	}
	if n := len(s.DNSConfig.Nameservers); n > maxNameservers {
		c.add(field.TooMany(cp.Child("nameservers"), n, maxNameservers))
	}
	for i, ns := range s.DNSConfig.Nameservers {
		c.address(cp.Child("nameservers").Index(i), ns)
	}
	sp := cp.Child("searches")
	if n := len(s.DNSConfig.Searches); n > maxSearchDomains {
		c.add(field.TooMany(sp, n, maxSearchDomains))
	}
	if n := len(strings.Join(s.DNSConfig.Searches, " ")); n > maxSearchListText {
		c.add(field.Invalid(sp, s.DNSConfig.Searches,
			fmt.Sprintf("must not have more than %d characters", maxSearchListText)))
	}
	for i, d := range s.DNSConfig.Searches {
		if d != "." {
			c.texts(sp.Index(i), d, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(d, ".")))
		}
	}
	for i, o := range s.DNSConfig.Options {
		c.required(cp.Child("options").Index(i).Child("name"), o.Name)
	}
}

func (c *checker) placement(p *field.Path) {
	s := &c.pod.Spec
	if s.OS != nil && s.OS.Name != corev1.Linux {
		c.add(field.NotSupported(p.Child("os", "name"), s.OS.Name, []corev1.OSName{corev1.Linux}))
	}
	if len(s.SchedulingGates) > 0 {
		c.add(field.Forbidden(p.Child("schedulingGates"), "a static pod is not scheduled"))
	}
	c.errs = append(c.errs, metavalidation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector"))...)
	for i, t := range s.Tolerations {
		c.toleration(p.Child("tolerations").Index(i), &t)
	}
	for i, g := range s.ReadinessGates {
		gp := p.Child("readinessGates").Index(i).Child("conditionType")
		c.texts(gp, g.ConditionType, validation.IsQualifiedName(string(g.ConditionType)))
	}
}

func (c *checker) toleration(p *field.Path, t *corev1.Toleration) {
	if t.Key != "" {
		c.texts(p.Child("key"), t.Key, validation.IsQualifiedName(t.Key))
	} else if t.Operator != corev1.TolerationOpExists {
		c.add(field.Invalid(p.Child("operator"), t.Operator, "must be Exists when key is empty: that matches all"))
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		c.add(field.Invalid(p.Child("effect"), t.Effect, "must be NoExecute when tolerationSeconds is set"))
	}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
		c.texts(p.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
	case corev1.TolerationOpExists:
		if t.Value != "" {
			c.add(field.Invalid(p.Child("value"), t.Value, "must be empty when operator is Exists"))
		}
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
	default:
		c.add(field.NotSupported(p.Child("operator"), t.Operator,
			[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	oneOf(c.findings, p.Child("effect"), t.Effect,
		"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
}

// hostIP rejects a host address of a port that is no IP address: the runtime would only fail later.
func (f *findings) hostIP(p *field.Path, ip string) {
	if _, err := netip.ParseAddr(ip); ip != "" && err != nil {
		f.add(field.Invalid(p, ip, "must be an IP address"))
	}
}

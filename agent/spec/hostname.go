package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// maxHostname is the longest name that gethostname(2) returns untruncated: 64 bytes with the final NUL.
	maxHostname = 63
	// maxNodename is the kernel's limit for a host name (HOST_NAME_MAX).
	maxNodename = 64
)

// hostname returns the pod's host name, and its domain if spec.subdomain names a headless service.
func hostname(pod *corev1.Pod, clusterDomain string) (host, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil {
		if msgs := validation.IsDNS1123Subdomain(*override); len(msgs) > 0 {
			return "", "", fmt.Errorf("spec.hostnameOverride %q: %s", *override, strings.Join(msgs, "; "))
		}
		host, err = cutHostname(*override)
		return host, "", err
	}
	host = pod.Name
	if name := pod.Spec.Hostname; name != "" {
		if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
			return "", "", fmt.Errorf("spec.hostname %q: %s", name, strings.Join(msgs, "; "))
		}
		host = name
	}
	if host, err = cutHostname(host); err != nil {
		return "", "", err
	}
	if sub := pod.Spec.Subdomain; sub != "" {
		if msgs := validation.IsDNS1123Label(sub); len(msgs) > 0 {
			return "", "", fmt.Errorf("spec.subdomain %q: %s", sub, strings.Join(msgs, "; "))
		}
		domain = sub + "." + pod.Namespace + ".svc." + clusterDomain
	}
	return host, domain, nil
}

// kernelHostname returns the host name that the kernel reports in the sandbox: with the domain if
// spec.setHostnameAsFQDN is set.
func kernelHostname(pod *corev1.Pod, clusterDomain string) (string, error) {
	host, domain, err := hostname(pod, clusterDomain)
	if err != nil {
		return "", err
	}
	if asFQDN := pod.Spec.SetHostnameAsFQDN; domain == "" || asFQDN == nil || !*asFQDN {
		return host, nil
	}
	fqdn := host + "." + domain
	if len(fqdn) > maxNodename {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s has %d characters, "+
			"but a host name can have %d; shorten spec.hostname or spec.subdomain", fqdn, len(fqdn), maxNodename)
	}
	return fqdn, nil
}

// cutHostname truncates a name that is too long. The result does not end in a separator.
func cutHostname(name string) (string, error) {
	if len(name) <= maxHostname {
		return name, nil
	}
	cut := strings.TrimRight(name[:maxHostname], "-.")
	if cut == "" {
		return "", fmt.Errorf("host name %q is empty after truncation to %d characters", name, maxHostname)
	}
	return cut, nil
}

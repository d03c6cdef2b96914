package spec

import (
	"errors"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// seccompProfile returns the container's own profile, else the pod's, else the node's default.
func seccompProfile(pod *corev1.Pod, c *corev1.Container, node *Node) (*runtimeapi.SecurityProfile, error) {
	var profile *corev1.SeccompProfile
	if pod.Spec.SecurityContext != nil {
		profile = pod.Spec.SecurityContext.SeccompProfile
	}
	if c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil {
		profile = c.SecurityContext.SeccompProfile
	}
	if profile == nil {
		profile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		if node.SeccompDefault {
			profile.Type = corev1.SeccompProfileTypeRuntimeDefault
		}
	}
	if profile.Type != corev1.SeccompProfileTypeLocalhost && profile.LocalhostProfile != nil {
		return nil, fmt.Errorf("seccompProfile: localhostProfile can only be set with type Localhost, not %q", profile.Type)
	}
	switch profile.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case corev1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case corev1.SeccompProfileTypeLocalhost:
		file, err := seccompFile(profile.LocalhostProfile, node)
		if err != nil {
			return nil, err
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: file}, nil
	}
	return nil, fmt.Errorf("seccompProfile: unknown type %q", profile.Type)
}

// seccompFile returns the path of a profile on this node. It must be a file below the seccomp directory. In the
// kubelet an empty name once let containers run unconfined (CVE-2023-2431).
func seccompFile(name *string, node *Node) (string, error) {
	if name == nil || *name == "" {
		return "", errors.New("seccompProfile: localhostProfile must be set with type Localhost")
	}
	if err := checkSubPath(*name); err != nil {
		return "", fmt.Errorf("seccompProfile: localhostProfile %q %w", *name, err)
	}
	if path.Clean(*name) == "." || strings.HasSuffix(*name, "/") {
		return "", fmt.Errorf("seccompProfile: localhostProfile %q must name a file", *name)
	}
	return path.Join(node.SeccompDir, *name), nil
}

// apparmorProfile returns the container's own profile, else the one of its annotation, else the pod's; nil if none is
// set. The second result is the profile in the deprecated notation, for runtimes that still read it.
func apparmorProfile(pod *corev1.Pod, c *corev1.Container) (*runtimeapi.SecurityProfile, string, error) {
	profile, err := apparmorSource(pod, c)
	if profile == nil || err != nil {
		return nil, "", err
	}
	if profile.Type != corev1.AppArmorProfileTypeLocalhost && profile.LocalhostProfile != nil {
		return nil, "", fmt.Errorf("appArmorProfile: localhostProfile can only be set with type Localhost, not %q",
			profile.Type)
	}
	switch profile.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
			corev1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case corev1.AppArmorProfileTypeLocalhost:
		name := profile.LocalhostProfile
		if name == nil || *name == "" || strings.TrimSpace(*name) != *name {
			return nil, "", errors.New("appArmorProfile: localhostProfile must name a profile, without blanks around it, " +
				"with type Localhost")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *name},
			corev1.DeprecatedAppArmorBetaProfileNamePrefix + *name, nil
	}
	return nil, "", fmt.Errorf("appArmorProfile: unknown type %q", profile.Type)
}

func apparmorSource(pod *corev1.Pod, c *corev1.Container) (*corev1.AppArmorProfile, error) {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile, nil
	}
	key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
	switch text := pod.Annotations[key]; {
	case text == "":
		if pod.Spec.SecurityContext == nil {
			return nil, nil
		}
		return pod.Spec.SecurityContext.AppArmorProfile, nil
	case text == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}, nil
	case text == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}, nil
	default:
		name, ok := strings.CutPrefix(text, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
		if !ok {
			return nil, fmt.Errorf("annotation %s: %q is not an AppArmor profile", key, text)
		}
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}, nil
	}
}

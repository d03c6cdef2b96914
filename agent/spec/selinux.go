package spec

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// MaxSELinuxContexts is the size up to which ParseSELinuxContexts reads a file.
const MaxSELinuxContexts = 64 << 10

// seLinuxLabel is user:role:type, and a level where the policy has levels. Labels end in mount options, so that there may be
// nothing in them that ends an option.
var (
	seLinuxLabel = regexp.MustCompile(`^([\w.-]+):([\w.-]+):([\w.-]+)(:[\w.:,-]+)?$`)
	seLinuxUser  = regexp.MustCompile(`^[\w.-]+$`)
	seLinuxLevel = regexp.MustCompile(`^[\w.:,-]+$`)
)

// SELinuxPolicy reads the name of the policy from the content of /etc/selinux/config; empty where it names none.
func SELinuxPolicy(config []byte) string {
	for line := range strings.Lines(string(config)) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found && strings.TrimSpace(name) == "SELINUXTYPE" {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

// ParseSELinuxContexts reads a policy's lxc_contexts: the label that it gives to the files of containers.
func ParseSELinuxContexts(content []byte) (string, error) {
	if len(content) > MaxSELinuxContexts {
		return "", fmt.Errorf("it has %d bytes, more than %d", len(content), MaxSELinuxContexts)
	}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.TrimSpace(name) != "file" {
			continue
		}
		label := strings.Trim(strings.TrimSpace(value), `"`)
		if !seLinuxLabel.MatchString(label) {
			return "", fmt.Errorf("%q is no SELinux label", label)
		}
		return label, nil
	}
	return "", errors.New("it has no line file = …")
}

// VolumeLabels are the SELinux labels that the files of a volume must have for the containers that mount it, each label once, in
// order. A container for which no SELinux options are set counts for none. The label of one whose options have no level is empty: the
// runtime makes up a level when the container starts.
func VolumeLabels(n *Node, pod *corev1.Pod, volume string) ([]string, error) {
	all := map[string]bool{}
	for _, c := range podutil.Containers(&pod.Spec) {
		o := effective(pod, c).SELinuxOptions
		mounts := func(m corev1.VolumeMount) bool { return m.Name == volume }
		if o == nil || !slices.ContainsFunc(c.VolumeMounts, mounts) {
			continue
		}
		label, err := n.fileLabel(o)
		if err != nil {
			return nil, fmt.Errorf("container %q: %w", c.Name, err)
		}
		all[label] = true
	}
	return slices.Sorted(maps.Keys(all)), nil
}

// fileLabel is the label of files for a process with these options. A process has a role and a type of its own; of files they are the
// policy's.
func (n *Node) fileLabel(o *corev1.SELinuxOptions) (string, error) {
	if o.Level == "" {
		return "", nil
	}
	parts := seLinuxLabel.FindStringSubmatch(n.SELinuxFileLabel)
	if parts == nil {
		return "", errors.New("the SELinux policy of this node does not say how files of containers are labelled: " +
			"install a policy for containers, such as container-selinux")
	}
	user := parts[1]
	if o.User != "" {
		user = o.User
	}
	if !seLinuxUser.MatchString(user) || !seLinuxLevel.MatchString(o.Level) {
		return "", fmt.Errorf("SELinux user %q or level %q has characters that a label cannot have", user, o.Level)
	}
	return strings.Join([]string{user, parts[2], parts[3], o.Level}, ":"), nil
}

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

// maxSELinuxContexts is the largest size of a file that ParseSELinuxContexts accepts, in bytes.
const maxSELinuxContexts = 64 << 10

// seLinuxLabel matches user:role:type, followed by a level if the policy has levels. Labels become part of mount
// options, so they must not contain characters that end an option.
var (
	seLinuxLabel = regexp.MustCompile(`^([\w.-]+):([\w.-]+):([\w.-]+)(:[\w.:,-]+)?$`)
	seLinuxUser  = regexp.MustCompile(`^[\w.-]+$`)
	seLinuxLevel = regexp.MustCompile(`^[\w.:,-]+$`)
)

// SELinuxPolicy returns the name of the policy in the content of /etc/selinux/config; empty if it names none.
func SELinuxPolicy(config []byte) string {
	for line := range strings.Lines(string(config)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if found && strings.TrimSpace(name) == "SELINUXTYPE" {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

// ParseSELinuxContexts returns the label for the files of containers from the content of a policy's lxc_contexts.
func ParseSELinuxContexts(content []byte) (string, error) {
	if len(content) > maxSELinuxContexts {
		return "", fmt.Errorf("it has %d bytes, more than %d", len(content), maxSELinuxContexts)
	}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.TrimSpace(name) != "file" {
			continue
		}
		label := strings.Trim(strings.TrimSpace(value), `"`)
		if !seLinuxLabel.MatchString(label) {
			return "", fmt.Errorf("%q is not a valid SELinux label", label)
		}
		return label, nil
	}
	return "", errors.New("it has no line file = …")
}

// VolumeLabels returns the SELinux labels that the files of a volume must have for the containers that mount it,
// sorted and each label once. A container without SELinux options adds no label. A container whose options have no
// level adds the empty label: the runtime chooses a level when the container starts.
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

// fileLabel returns the label of files for a process with these options. Role and type of the files come from the
// policy: they differ from those of the process.
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

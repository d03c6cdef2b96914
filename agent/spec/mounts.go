package spec

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Volume is one of the pod's volumes as it was set up on this node. Exactly one of HostPath, Device and Image is set.
type Volume struct {
	// HostPath is the directory or file with the volume's content.
	HostPath string
	// Device is the path of the block device, or of a link to it, of a volume with volumeMode Block.
	Device string
	// Image is the pulled image of an image volume. Its mounts are always read-only.
	Image *runtimeapi.ImageSpec
	// ReadOnly makes all mounts of the volume read-only, also those with readOnly false.
	ReadOnly bool
	// Relabel tells the runtime to set the container's SELinux label on the files.
	Relabel bool
}

// SubPath is a path below a volume. The caller must resolve it, and create it if it is missing, before it creates the
// container.
type SubPath struct {
	// Index is the position in the container's volumeMounts.
	Index  int
	Volume string
	// Path is relative, contains no "..", and its variables are expanded. The caller must resolve it beneath the
	// volume's root.
	Path string
}

// SubPaths lists the sub-paths of the container's mounts. It leaves out those of image volumes, which the runtime
// resolves. An error is a *Reason.
func SubPaths(in *ContainerInput) ([]SubPath, error) {
	has := func(m corev1.VolumeMount) bool { return m.SubPath != "" || m.SubPathExpr != "" }
	if !slices.ContainsFunc(in.Container.VolumeMounts, has) {
		return nil, nil // the environment of a container in a large namespace takes long
	}
	envs, err := variables(in)
	if err != nil {
		return nil, containerError(err)
	}
	lookup := lookupIn(envs)
	var out []SubPath
	for i := range in.Container.VolumeMounts {
		m := &in.Container.VolumeMounts[i]
		sub, err := subPath(m, lookup)
		if err != nil {
			return nil, containerError(err)
		}
		if sub != "" && in.Volumes[m.Name].Image == nil {
			out = append(out, SubPath{Index: i, Volume: m.Name, Path: sub})
		}
	}
	return out, nil
}

// mounts lists the container's mounts: those of device plugins, its volumes, the managed /etc/hosts, and the file for
// its termination message.
func mounts(in *ContainerInput, lookup func(string) (string, bool)) ([]*runtimeapi.Mount, error) {
	c := in.Container
	var out []*runtimeapi.Mount
	for _, m := range in.Devices.Mounts {
		out = append(out, &runtimeapi.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.Readonly})
	}
	ownHosts := false
	for i := range c.VolumeMounts {
		mount, err := volumeMount(in, i, lookup)
		if err != nil {
			return nil, err
		}
		ownHosts = ownHosts || c.VolumeMounts[i].MountPath == etcHosts
		out = append(out, mount)
	}
	if !ownHosts && (in.Pod.Spec.HostNetwork || len(in.PodIPs) > 0) {
		out = append(out, &runtimeapi.Mount{
			ContainerPath:  etcHosts,
			HostPath:       in.Node.hostsPath(in.Pod.UID),
			SelinuxRelabel: in.Node.SELinux,
		})
	}
	if c.TerminationMessagePath != "" {
		target, err := absolute(c.TerminationMessagePath)
		if err != nil {
			return nil, fmt.Errorf("terminationMessagePath: %w", err)
		}
		out = append(out, &runtimeapi.Mount{
			ContainerPath:  target,
			HostPath:       in.Node.TerminationLogPath(in.Pod.UID, c.Name, in.Attempt),
			SelinuxRelabel: in.Node.SELinux,
		})
	}
	// With the ID mappings of the user namespace, files keep their owners inside the container.
	userns, err := userNamespace(in.Pod, in.UserNS)
	if err != nil {
		return nil, err
	}
	for _, m := range out {
		m.UidMappings, m.GidMappings = userns.Uids, userns.Gids
	}
	return out, nil
}

func volumeMount(in *ContainerInput, index int, lookup func(string) (string, bool)) (*runtimeapi.Mount, error) {
	m := &in.Container.VolumeMounts[index]
	volume, ok := in.Volumes[m.Name]
	if !ok || volume.HostPath == "" && volume.Image == nil {
		return nil, fmt.Errorf("cannot find volume %q to mount into container %q", m.Name, in.Container.Name)
	}
	target, err := absolute(m.MountPath)
	if err != nil {
		return nil, fmt.Errorf("mountPath of volume %q: %w", m.Name, err)
	}
	sub, err := subPath(m, lookup)
	if err != nil {
		return nil, err
	}
	propagation, err := propagation(in, m)
	if err != nil {
		return nil, err
	}
	recursive, err := recursiveReadOnly(m, in.RecursiveReadOnly)
	if err != nil {
		return nil, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	mount := &runtimeapi.Mount{
		ContainerPath:     target,
		HostPath:          volume.HostPath,
		Readonly:          m.ReadOnly || volume.ReadOnly || volume.Image != nil,
		RecursiveReadOnly: recursive,
		SelinuxRelabel:    volume.Relabel && in.Node.SELinux,
		Propagation:       propagation,
		Image:             volume.Image,
		MountOptions:      m.BindMountOptions,
	}
	switch {
	case volume.Image != nil && sub != "" && in.NoImageSubPath != "":
		return nil, fmt.Errorf("volume %q: %s", m.Name, in.NoImageSubPath)
	case volume.Image != nil:
		mount.HostPath, mount.ImageSubPath = "", sub
	case sub != "":
		if mount.HostPath = in.SubPaths[index]; mount.HostPath == "" {
			return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", m.Name, in.Container.Name)
		}
	}
	return mount, nil
}

// maxPath is the length of the longest path that the kernel takes, with the NUL byte at its end.
const maxPath = 4096

// subPath returns the mount's sub-path with its variables expanded; empty if it has none.
func subPath(m *corev1.VolumeMount, lookup func(string) (string, bool)) (string, error) {
	sub := m.SubPath
	if m.SubPathExpr != "" {
		missing := map[string]bool{}
		var err error
		sub, err = Expand(m.SubPathExpr, maxPath, func(name string) (string, bool) {
			value, _ := lookup(name)
			if value == "" {
				missing[name] = true
			}
			return value, true
		})
		if err != nil {
			return "", fmt.Errorf("subPathExpr of volume %q: %w", m.Name, err)
		}
		if len(missing) > 0 {
			return "", fmt.Errorf("missing value for %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
		}
	}
	if err := checkSubPath(sub); err != nil {
		return "", err
	}
	return sub, nil
}

// checkSubPath rejects paths that could leave their root. It is the first of two checks: the package that opens the
// path resolves it beneath the root.
func checkSubPath(p string) error {
	switch {
	case path.IsAbs(p):
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", p)
	case slices.Contains(strings.Split(p, "/"), ".."):
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", p)
	case strings.ContainsRune(p, 0):
		return fmt.Errorf("unable to provision SubPath %q: must not contain a NUL byte", p)
	}
	return nil
}

// absolute makes a path within the container absolute.
func absolute(p string) (string, error) {
	switch {
	case p == "":
		return "", errors.New("path is empty")
	case strings.ContainsRune(p, 0):
		return "", fmt.Errorf("path %q contains a NUL byte", p)
	case path.IsAbs(p):
		return p, nil
	}
	return "/" + p, nil
}

func propagation(in *ContainerInput, m *corev1.VolumeMount) (runtimeapi.MountPropagation, error) {
	if m.MountPropagation == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch mode := *m.MountPropagation; mode {
	case corev1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case corev1.MountPropagationBidirectional:
		// Mounts that the container makes appear on the node, so the container must be privileged.
		if !podutil.Privileged(in.Container.SecurityContext) {
			return 0, fmt.Errorf("volume %q: mountPropagation %s needs a privileged container", m.Name, mode)
		}
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	default:
		return 0, fmt.Errorf("invalid MountPropagation mode: %q", mode)
	}
}

// recursiveReadOnly reports whether mounts below this one become read-only too (KEP-3857).
func recursiveReadOnly(m *corev1.VolumeMount, supported bool) (bool, error) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !m.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", m.Name)
	}
	if p := m.MountPropagation; p != nil && *p != corev1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q",
			m.Name, *p)
	}
	switch mode := *m.RecursiveReadOnly; mode {
	case corev1.RecursiveReadOnlyIfPossible:
		return supported, nil
	case corev1.RecursiveReadOnlyEnabled:
		if !supported {
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime",
				m.Name)
		}
		return true, nil
	default:
		return false, fmt.Errorf("unknown recursive read-only mode %q", mode)
	}
}

// devices lists the devices of device plugins, and the volumes that the container uses as raw block devices.
func devices(in *ContainerInput) ([]*runtimeapi.Device, error) {
	out := slices.Clone(in.Devices.Devices)
	for _, d := range in.Container.VolumeDevices {
		if !path.IsAbs(d.DevicePath) {
			return nil, fmt.Errorf("devicePath %q of volume %q must be an absolute path", d.DevicePath, d.Name)
		}
		volume := in.Volumes[d.Name]
		if volume.Device == "" {
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, in.Container.Name)
		}
		permissions := "mrw"
		if volume.ReadOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{ContainerPath: d.DevicePath, HostPath: volume.Device, Permissions: permissions})
	}
	return out, nil
}

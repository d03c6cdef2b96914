package spec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// ContainerInput is the input of Container. Pointers refer to values of the caller, which Container only reads.
type ContainerInput struct {
	Node *Node
	// Pod is the pod with its allocated resources. Container is one of its containers, of any kind.
	Pod       *corev1.Pod
	Container *corev1.Container
	// Attempt numbers the instances of the container from 0. It is the restart count, the number in the name of the log
	// file, and the attempt in the CRI metadata. An agent that takes over the node continues from any of them.
	Attempt uint32
	Image   Image
	// PodIPs are the addresses of the sandbox. They may be empty for a pod on the host network.
	PodIPs  []string
	Objects Objects
	// Volumes are the pod's volumes by name.
	Volumes map[string]Volume
	// SubPaths are the host paths of the mounts that the function SubPaths lists, by index in the container's
	// volumeMounts.
	SubPaths map[int]string
	// TargetID is the ID of the running container whose process namespace an ephemeral container joins: the current
	// instance of its targetContainerName.
	TargetID string
	// UserNS is the pod's user namespace, for both users and groups. It is required if spec.hostUsers is false.
	UserNS []*runtimeapi.IDMapping
	// ExtraGroups are the supplemental groups from annotations of the pod's persistent volumes.
	ExtraGroups []int64
	// RecursiveReadOnly: the pod's runtime handler supports recursive read-only mounts.
	RecursiveReadOnly bool
	// NoImageSubPath is why the runtime cannot mount a subPath of an image volume; empty if it can.
	NoImageSubPath string
	Devices        Devices
	// CPUs and MemoryNodes are the CPUs and NUMA nodes that the container may use, as lists such as 0-3,8. Empty means
	// all.
	CPUs, MemoryNodes string

	// ordinary bounds the environment, the command and the arguments as those of a container that is not Large.
	ordinary bool
}

// limit bounds the environment, the command and the arguments, each on its own.
func (in *ContainerInput) limit() int {
	if in.ordinary {
		return max(ordinaryArguments, podArguments/podutil.Count(&in.Pod.Spec))
	}
	return maxArguments
}

// Large reports whether the environment, the command or the arguments of a container are so large that the containers
// of its pod must not be created side by side. What Container refuses may count as large.
func Large(in *ContainerInput) bool {
	ordinary := *in
	ordinary.ordinary = true
	envs, err := variables(&ordinary)
	if err != nil {
		return true
	}
	_, _, err = commandLine(&ordinary, lookupIn(envs))
	return err != nil
}

// Image is what the runtime reports about a container's image.
type Image struct {
	// Ref is the reference that the runtime returned for the image, normally its ID.
	Ref string
	// UID or Username is the user that the image specifies. If both are unset, the user is root. The caller must set
	// them for every instance, so that each one runs as the same user.
	UID      *int64
	Username string
}

// Devices holds what device plugins and resource claims add to a container.
type Devices struct {
	Devices     []*runtimeapi.Device
	CDI         []string
	Mounts      []*runtimeapi.Mount
	Envs        []*runtimeapi.KeyValue
	Annotations map[string]string
}

// Container returns the CRI configuration of one container instance. An error is a *Reason.
func Container(in *ContainerInput) (*runtimeapi.ContainerConfig, error) {
	config, err := container(in)
	if err != nil {
		return nil, containerError(err)
	}
	return config, nil
}

func container(in *ContainerInput) (*runtimeapi.ContainerConfig, error) {
	if err := podutil.CheckIdentity(in.Pod); err != nil {
		return nil, err
	}
	if err := checkContainerName(in.Container.Name); err != nil {
		return nil, err
	}
	envs, err := variables(in)
	if err != nil {
		return nil, err
	}
	config := plainConfig(in, envs)
	lookup := lookupIn(envs)
	if config.Command, config.Args, err = commandLine(in, lookup); err != nil {
		return nil, err
	}
	if config.Annotations, err = containerAnnotations(in); err != nil {
		return nil, err
	}
	if config.Devices, err = devices(in); err != nil {
		return nil, err
	}
	if config.Mounts, err = mounts(in, lookup); err != nil {
		return nil, err
	}
	if config.StopSignal, err = podutil.StopSignal(in.Container); err != nil {
		return nil, err
	}
	if config.Linux.SecurityContext, err = containerSecurity(in); err != nil {
		return nil, err
	}
	return config, nil
}

// plainConfig returns the part of the configuration that needs no checks.
func plainConfig(in *ContainerInput, envs []*runtimeapi.KeyValue) *runtimeapi.ContainerConfig {
	c := in.Container
	resources := ContainerResources(in.Pod, in.Container, in.Node)
	resources.CpusetCpus, resources.CpusetMems = in.CPUs, in.MemoryNodes
	return &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:      &runtimeapi.ImageSpec{Image: in.Image.Ref, UserSpecifiedImage: c.Image},
		WorkingDir: c.WorkingDir,
		Envs:       envs,
		CDIDevices: cdiDevices(in.Devices.CDI),
		Labels:     containerLabels(in.Pod, c),
		LogPath:    LogPath(c.Name, in.Attempt),
		Stdin:      c.Stdin,
		StdinOnce:  c.StdinOnce,
		Tty:        c.TTY,
		Linux:      &runtimeapi.LinuxContainerConfig{Resources: resources},
	}
}

// podIPs returns the addresses of the pod. On the host network they are the addresses of the node, or those in the
// status of the pod before a restarted agent knows the node's.
func (in *ContainerInput) podIPs() []string {
	if !in.Pod.Spec.HostNetwork || len(in.PodIPs) > 0 {
		return in.PodIPs
	}
	ips := in.Node.HostIPs
	if len(ips) == 0 {
		for _, shown := range in.Pod.Status.PodIPs {
			ips = append(ips, shown.IP)
		}
	}
	return ips
}

// commandLine returns the command and the arguments of the container.
func commandLine(in *ContainerInput, lookup func(string) (string, bool)) (command, args []string, err error) {
	if command, err = expandAll(in.Container.Command, in.limit(), lookup); err != nil {
		return nil, nil, fmt.Errorf("command: %w", err)
	}
	if args, err = expandAll(in.Container.Args, in.limit(), lookup); err != nil {
		return nil, nil, fmt.Errorf("args: %w", err)
	}
	return command, args, nil
}

// expandAll expands words that may have so many bytes together.
func expandAll(words []string, left int, lookup func(string) (string, bool)) (out []string, err error) {
	for _, word := range words {
		if word, err = Expand(word, left, lookup); err != nil {
			return nil, err
		}
		left -= len(word)
		out = append(out, word)
	}
	return out, nil
}

// lookupIn returns a function that finds variables by name. If a name occurs twice, the last value is used, as in the
// process.
func lookupIn(envs []*runtimeapi.KeyValue) func(string) (string, bool) {
	values := make(map[string]string, len(envs))
	for _, e := range envs {
		values[e.Key] = string(e.Value)
	}
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}

func cdiDevices(names []string) []*runtimeapi.CDIDevice {
	var out []*runtimeapi.CDIDevice
	for _, name := range names {
		out = append(out, &runtimeapi.CDIDevice{Name: name})
	}
	return out
}

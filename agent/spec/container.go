package spec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// ContainerInput is what Container needs to know. Pointers are to the caller's values and are only read.
type ContainerInput struct {
	Node *Node
	// Pod is the pod with the resources that were granted to it. Container is one of its containers, of any kind.
	Pod       *corev1.Pod
	Container *corev1.Container
	// Attempt numbers the instances of the container from 0. It is the restart count, the number in the log's name and the
	// attempt of the CRI metadata at once: an agent that takes over counts on from any of them.
	Attempt uint32
	Image   Image
	// PodIPs are the addresses of the sandbox; on the host's network they may be left out.
	PodIPs  []string
	Objects Objects
	// Volumes are the pod's volumes by name.
	Volumes map[string]Volume
	// SubPaths are the host paths of the mounts that SubPaths lists, by index in the container's volumeMounts.
	SubPaths map[int]string
	// TargetID is the running container whose process namespace an ephemeral container joins: the instance of its
	// targetContainerName.
	TargetID string
	// UserNS is the pod's user namespace. It is needed when spec.hostUsers is false.
	UserNS []IDMapping
	// ExtraGroups are the groups that annotations of the pod's persistent volumes demand.
	ExtraGroups []int64
	// RecursiveReadOnly tells that the pod's runtime handler can mount read-only recursively.
	RecursiveReadOnly bool
	Devices           Devices
	CPU               CPUPlacement
}

// Image is what the runtime knows of a container's image.
type Image struct {
	// Ref is the image as the runtime resolved it, normally its ID.
	Ref string
	// UID or else Username is the user the image names. Neither means root. Look it up each time a container is made: the
	// user must be the same in every instance.
	UID      *int64
	Username string
}

// Devices is what device plugins and resource claims add to a container.
type Devices struct {
	Devices     []*runtimeapi.Device
	CDI         []string
	Mounts      []DeviceMount
	Envs        []*runtimeapi.KeyValue
	Annotations map[string]string
}

// DeviceMount is a mount a device plugin asks for.
type DeviceMount struct {
	HostPath      string
	ContainerPath string
	ReadOnly      bool
}

// CPUPlacement is what the CPU and memory managers decided for a container.
type CPUPlacement struct {
	// Exclusive tells that the container owns its CPUs, so that its quota would only slow it down.
	Exclusive bool
	// CPUs and MemoryNodes are cpuset lists such as 0-3,8; empty means all.
	CPUs        string
	MemoryNodes string
}

// Container writes the CRI configuration of one container instance. A failure is a *Reason.
func Container(in *ContainerInput) (*runtimeapi.ContainerConfig, error) {
	config, err := container(in)
	if err != nil {
		return nil, containerError(err)
	}
	return config, nil
}

func container(in *ContainerInput) (*runtimeapi.ContainerConfig, error) {
	if err := checkPod(in.Pod); err != nil {
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
	if config.Annotations, err = containerAnnotations(in); err != nil {
		return nil, err
	}
	if config.Devices, err = devices(in); err != nil {
		return nil, err
	}
	if config.Mounts, err = mounts(in, envs); err != nil {
		return nil, err
	}
	if config.StopSignal, err = stopSignal(in.Container); err != nil {
		return nil, err
	}
	if config.Linux.SecurityContext, err = containerSecurity(in); err != nil {
		return nil, err
	}
	return config, nil
}

// plainConfig is the part of the configuration that needs no checks.
func plainConfig(in *ContainerInput, envs []*runtimeapi.KeyValue) *runtimeapi.ContainerConfig {
	c := in.Container
	lookup := lookupIn(envs)
	return &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Attempt},
		Image:      &runtimeapi.ImageSpec{Image: in.Image.Ref, UserSpecifiedImage: c.Image},
		Command:    expandAll(c.Command, lookup),
		Args:       expandAll(c.Args, lookup),
		WorkingDir: c.WorkingDir,
		Envs:       envs,
		CDIDevices: cdiDevices(in.Devices.CDI),
		Labels:     containerLabels(in.Pod, c),
		LogPath:    LogPath(c.Name, in.Attempt),
		Stdin:      c.Stdin,
		StdinOnce:  c.StdinOnce,
		Tty:        c.TTY,
		Linux:      &runtimeapi.LinuxContainerConfig{Resources: containerResources(in)},
	}
}

func containerResources(in *ContainerInput) *runtimeapi.LinuxContainerResources {
	r := ContainerResources(in.Pod, in.Container, in.Node, in.CPU.Exclusive)
	r.CpusetCpus = in.CPU.CPUs
	r.CpusetMems = in.CPU.MemoryNodes
	return r
}

// podIPs are the addresses the container shares: on the host's network, the node's.
func (in *ContainerInput) podIPs() []string {
	if in.Pod.Spec.HostNetwork && len(in.PodIPs) == 0 {
		return in.Node.HostIPs
	}
	return in.PodIPs
}

// target returns the container whose processes an ephemeral container shares; empty for all others.
func (in *ContainerInput) target() (string, error) {
	switch target := podutil.Target(&in.Pod.Spec, in.Container.Name); {
	case target == "":
		return "", nil
	case in.TargetID == "":
		return "", fmt.Errorf("unable to find target container %v", target)
	}
	return in.TargetID, nil
}

func expandAll(words []string, lookup func(string) (string, bool)) []string {
	var out []string
	for _, word := range words {
		out = append(out, Expand(word, lookup))
	}
	return out
}

// lookupIn finds variables by name. Of several with one name the last counts, as it does for the process.
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

// stopSignal returns the signal lifecycle.stopSignal names, RUNTIME_DEFAULT where it names none. The API writes the
// real-time signals as SIGRTMIN+2 and SIGRTMAX-2, the CRI as SIGRTMINPLUS2 and SIGRTMAXMINUS2.
func stopSignal(c *corev1.Container) (runtimeapi.Signal, error) {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return runtimeapi.Signal_RUNTIME_DEFAULT, nil
	}
	name := string(*c.Lifecycle.StopSignal)
	value, ok := runtimeapi.Signal_value[strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)]
	if !ok || !strings.HasPrefix(name, "SIG") || strings.Contains(name, "PLUS") || strings.Contains(name, "MINUS") {
		return 0, fmt.Errorf("lifecycle.stopSignal %q is not a signal known here", name)
	}
	return runtimeapi.Signal(value), nil
}

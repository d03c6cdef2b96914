package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/nodelet/nodelet/kube/poddir"
)

// facts is the input of a status, in addition to the object's old status.
type facts struct {
	machine      Machine
	addresses    []corev1.NodeAddress // nil: unknown now, keep the object's list
	capacity     corev1.ResourceList  // the machine's own resources
	allocatable  corev1.ResourceList
	images       []corev1.ContainerImage   // nil: not known yet, keep the object's list
	volumesInUse []corev1.UniqueVolumeName // nil: not known yet, keep the object's list
	health       health
	keepReady    bool
	atStart      bool // the agent has not updated the object yet
	emptyRoot    bool // no status was sent yet, and no agent has run pods in the root directory
}

// status returns the status that the object should have, and the events about its changes. Parts that other components
// own (attached volumes, conditions of other types, extended resources) stay as they are.
func (c *Config) status(old *corev1.Node, f facts, now time.Time) (corev1.NodeStatus, []nodeEvent) {
	s := old.Status // fields are replaced below, what they point to is never changed
	if f.emptyRoot || isOther(s.NodeInfo, f.machine) {
		s.Capacity = withoutExtended(s.Capacity)
	}
	s.Capacity = overlay(s.Capacity, f.capacity)
	s.Allocatable = overlay(s.Capacity, f.allocatable) // others set the capacity of an extended resource only
	if f.addresses != nil && !(c.ExternalCloud && len(s.Addresses) > 0) {
		s.Addresses = f.addresses
	}
	s.DaemonEndpoints.KubeletEndpoint.Port = c.KubeletPort
	s.DeclaredFeatures = c.declared(f.health, s.DeclaredFeatures)
	if f.images != nil {
		s.Images = f.images
	}
	if f.volumesInUse != nil {
		s.VolumesInUse = f.volumesInUse
	}
	s.NodeInfo = c.nodeInfo(s.NodeInfo, f)
	if !f.health.answered.IsZero() {
		s.RuntimeHandlers = f.health.runtime.Handlers
		s.Features = cmp.Or(f.health.runtime.Features, s.Features)
	}
	own, events := conditions(c.Name, old.Status.Conditions, f.health, f.keepReady, now)
	s.Conditions = mergeConditions(slices.Clone(s.Conditions), own)
	return s, append(rebooted(c.Name, old, f.machine), events...)
}

// bindMountOptions is a feature that the runtime must have too.
const bindMountOptions = "VolumeBindMountOptions"

// declared returns the features that the node declares with the runtime. Until that has answered, it is the one that
// declared those before.
func (c *Config) declared(h health, before []string) []string {
	if h.runtime.MountOptions || h.answered.IsZero() && slices.Contains(before, bindMountOptions) {
		return c.DeclaredFeatures
	}
	return slices.DeleteFunc(slices.Clone(c.DeclaredFeatures), func(name string) bool { return name == bindMountOptions })
}

func (c *Config) nodeInfo(old corev1.NodeSystemInfo, f facts) corev1.NodeSystemInfo {
	m := f.machine
	info := corev1.NodeSystemInfo{
		MachineID:               m.MachineID,
		SystemUUID:              m.SystemUUID,
		BootID:                  m.BootID,
		KernelVersion:           m.Kernel,
		OSImage:                 m.OSImage,
		OperatingSystem:         runtime.GOOS,
		Architecture:            runtime.GOARCH,
		KubeletVersion:          c.KubeletVersion,
		ContainerRuntimeVersion: old.ContainerRuntimeVersion,
		RunningInUserNamespace:  old.RunningInUserNamespace,
	}
	if f.atStart && c.ShowUserNamespace { // only then, because an older API server drops it each time
		info.RunningInUserNamespace = &m.UserNamespace
	}
	if r := f.health.runtime; r.Name != "" {
		info.ContainerRuntimeVersion = r.Name + "://" + plainVersion(r.Version)
	}
	if m.Swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: &m.Swap}
	}
	return info
}

// mergeConditions replaces the conditions of the types in own, and appends those of new types.
func mergeConditions(all, own []corev1.NodeCondition) []corev1.NodeCondition {
	for _, c := range own {
		if before := find(all, c.Type); before != nil {
			*before = c
		} else {
			all = append(all, c)
		}
	}
	return all
}

// isOther reports whether the Node object is of another machine or installation with the same name. Which
// devices this one has is unknown until their plugins register.
func isOther(old corev1.NodeSystemInfo, m Machine) bool {
	return old.MachineID != "" && m.MachineID != "" && old.MachineID != m.MachineID
}

// emptyRoot reports whether the root directory has no directory of a pod. Then the machine was installed again, or the
// directory was emptied as by kubeadm reset, and a Node object that exists is of the earlier installation. The kubelet
// looks for its device checkpoint instead: without device plugins there is none, and each restart of the kubelet takes
// away the resources that an administrator has added to the object.
func emptyRoot(dir string) bool {
	pods, err := os.ReadDir(filepath.Join(dir, poddir.Pods))
	return len(pods) == 0 && (err == nil || errors.Is(err, os.ErrNotExist))
}

func rebooted(name string, old *corev1.Node, m Machine) []nodeEvent {
	if before := old.Status.NodeInfo.BootID; before == "" || before == m.BootID {
		return nil
	}
	message := fmt.Sprintf("Node %s has been rebooted, boot id: %s", name, m.BootID)
	return []nodeEvent{{corev1.EventTypeWarning, "Rebooted", message}}
}

// sameStatus reports whether a and b are equal without the times of heartbeats.
func sameStatus(a, b corev1.NodeStatus) bool {
	return equality.Semantic.DeepEqual(withoutHeartbeats(a), withoutHeartbeats(b))
}

func withoutHeartbeats(s corev1.NodeStatus) corev1.NodeStatus {
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		s.Conditions[i].LastHeartbeatTime.Reset()
	}
	sort.Slice(s.Conditions, func(i, j int) bool { return s.Conditions[i].Type < s.Conditions[j].Type })
	return s
}

// plainVersion returns a version as the kubelet writes it: "2.4.2" for "v2.4.2", "1.6.20" for Debian's "1.6.20~ds1".
func plainVersion(text string) string {
	v, err := version.ParseSemantic(text)
	if err != nil {
		v, err = version.ParseGeneric(text)
	}
	if err != nil {
		return text
	}
	return v.String()
}

package node

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
)

// Settings returns what a Reporter needs of the configuration. The caller adds the functions and the log.
func Settings(c *config.Config) Config {
	k, reserved := &c.Kubelet, c.Reserved()
	out := Config{
		Name: c.Node.Name,
		Registration: Registration{
			Register:      *k.RegisterNode,
			Labels:        c.Node.Labels,
			Taints:        k.RegisterWithTaints,
			ProviderID:    k.ProviderID,
			ExternalCloud: c.Node.ExternalCloud,
			AttachDetach:  *k.EnableControllerAttachDetach,
		},
		IPs:              c.Node.IPs,
		KubeletPort:      int32(c.Server().Port()),
		LocalStorage:     *k.LocalStorageCapacityIsolation,
		RootDir:          c.Paths.Root,
		DeclaredFeatures: declaredFeatures(c),

		ShowUserNamespace: c.Gate("KubeletInUserNamespace"),

		MaxPods:        int(k.MaxPods),
		PodsPerCore:    int(k.PodsPerCore),
		MaxImages:      int(*k.NodeStatusMaxImages),
		Reserved:       []corev1.ResourceList{reserved.Kube, reserved.System},
		KubeletVersion: config.KubeletVersion(),
		UserAgent:      "nodelet-heartbeat/" + config.KubeletVersion(),
		Intervals: Intervals{
			StatusInterval: k.NodeStatusUpdateFrequency.Duration,
			ReportInterval: k.NodeStatusReportFrequency.Duration,
			LeaseDuration:  time.Duration(k.NodeLeaseDurationSeconds) * time.Second,
		},
	}
	of := map[string]corev1.ResourceName{
		"memory.available": corev1.ResourceMemory,
		"nodefs.available": corev1.ResourceEphemeralStorage,
	}
	for _, t := range c.HardThresholds() {
		if resource, counts := of[t.Signal]; counts {
			out.EvictionHard = append(out.EvictionHard, EvictionThreshold{resource, t.Value.Quantity, t.Value.Percentage})
		}
	}
	return out
}

// declaredFeatures are the features of which the scheduler and the API server must know before they rely on them
// (node.status.declaredFeatures, KEP-5328), sorted. Each is declared if the gate of its name is on.
func declaredFeatures(c *config.Config) []string {
	known := []string{
		"ExtendWebSocketsToKubelet",
		"InPlacePodLevelResourcesVerticalScaling",
		"InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
		bindMountOptions,
	}
	return slices.DeleteFunc(known, func(name string) bool { return !c.Gate(name) })
}

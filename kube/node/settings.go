package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/config"
)

// Settings returns what a Reporter needs of the configuration. The caller adds the functions and the log.
func Settings(c *config.Config) Config {
	out := Config{
		Name: c.Node.Name,
		Registration: Registration{
			Register:      c.Node.Register,
			Labels:        c.Node.Labels,
			Taints:        c.Node.Taints,
			ProviderID:    c.Node.ProviderID,
			ExternalCloud: c.Node.ExternalCloud,
			AttachDetach:  c.Node.ControllerAttachDetach,
		},
		IPs:              c.Node.IPs,
		KubeletPort:      int32(c.Server.Port),
		LocalStorage:     c.Node.LocalStorageIsolation,
		RootDir:          c.Paths.Root,
		DeclaredFeatures: declaredFeatures(c),
		MaxPods:          c.Node.MaxPods,
		PodsPerCore:      c.Node.PodsPerCore,
		MaxImages:        c.Node.MaxImages,
		Reserved:         []corev1.ResourceList{c.Reserved.Kube, c.Reserved.System},
		KubeletVersion:   config.KubeletVersion(),
		UserAgent:        "nodelet-heartbeat/" + config.KubeletVersion(),
		Intervals: Intervals{
			StatusInterval: c.Node.StatusInterval,
			ReportInterval: c.Node.ReportInterval,
			LeaseDuration:  c.Node.LeaseDuration,
		},
	}
	for _, t := range c.Eviction.Thresholds {
		if h, counts := holdBack(t); counts {
			out.HoldBacks = append(out.HoldBacks, h)
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
	}
	return slices.DeleteFunc(known, func(name string) bool { return !c.Gate(name) })
}

// holdBack returns what a hard eviction threshold withholds from the pods, and whether it does.
func holdBack(t config.Threshold) (HoldBack, bool) {
	of := map[string]corev1.ResourceName{
		"memory.available": corev1.ResourceMemory,
		"nodefs.available": corev1.ResourceEphemeralStorage,
	}
	resource, counts := of[t.Signal]
	if !counts || t.GracePeriod > 0 {
		return HoldBack{}, false
	}
	return HoldBack{Resource: resource, Quantity: t.Quantity, Percentage: t.Percentage}, true
}

// PodCIDRs returns the ranges of a Node object. Old control planes set PodCIDR only.
func PodCIDRs(o *corev1.Node) []string {
	if len(o.Spec.PodCIDRs) == 0 && o.Spec.PodCIDR != "" {
		return []string{o.Spec.PodCIDR}
	}
	return o.Spec.PodCIDRs
}

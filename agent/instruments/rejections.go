package instruments

import (
	"slices"
	"strings"
)

// rejections are the reasons that kubelet_admission_rejections_total names, as far as this agent has them.
var rejections = []string{
	"AppArmor", "Evicted", "NodeShutdown", "OutOfcpu", "OutOfephemeral-storage", "OutOfmemory", "OutOfpods",
	"PodFeatureUnsupported", "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch",
	"SupplementalGroupsPolicyNotSupported", "SysctlForbidden", "TopologyAffinityError", "UnexpectedAdmissionError",
	"VolumeAttachmentLimitExceeded",
}

// rejection returns the label for a reason. The kubelet puts all others together, so that their number is bounded.
func rejection(reason string) string {
	switch {
	case slices.Contains(rejections, reason):
		return reason
	case strings.HasPrefix(reason, "OutOf"):
		return "OutOfExtendedResources"
	}
	return "Other"
}

package reference

import (
	"fmt"
	"strings"

	"github.com/nodelet/nodelet/config"
)

// Gates is docs/reference/gates.md.
func Gates() string {
	var b strings.Builder
	b.WriteString("# Reference of the feature gates\n" + generated +
		"The feature gates that the kubelet " + config.KubernetesVersion + " reads, and what nodelet does with them:\n" +
		"- **acts**: as in the kubelet. nodelet follows the setting, or behaves as with the value to which it is " +
		"locked.\n" +
		"- **acts differently**: nodelet behaves as with the gate on, whatever the setting.\n" +
		"- **no effect**: nodelet behaves as with the gate off, whatever the setting.\n\n" +
		"A setting that nodelet does not follow causes a warning, also if it is the default. All other gates of\n" +
		"Kubernetes are accepted: they are about other components.\n\n" +
		"| gate | stage | default | support | note |\n|---|---|---|---|---|\n")
	for _, g := range config.Gates() {
		standard := fmt.Sprint(g.Default)
		if g.Locked {
			standard += ", locked"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", g.Name, g.Stage, standard, g.Support, cell(g.Note))
	}
	return b.String()
}

// Metrics is docs/reference/metrics.md. differences is the list of families with which the test of the metrics compares
// nodelet and the kubelet: lines "side endpoint pattern: reason".
func Metrics(differences string) string {
	var b strings.Builder
	b.WriteString("# Reference of the metrics\n" + generated +
		"nodelet exposes the families of the kubelet with the same names, types and labels, except for these. A family\n" +
		"that only the kubelet has is missing in nodelet; one that only nodelet has is additional.\n\n" +
		"| only in | endpoint | families | reason |\n|---|---|---|---|\n")
	for line := range strings.Lines(differences) {
		head, reason, found := strings.Cut(strings.TrimSpace(line), ": ")
		fields := strings.Fields(head)
		if !found || strings.HasPrefix(line, "#") || len(fields) != 3 {
			continue
		}
		fmt.Fprintf(&b, "| %s | `%s` | `%s` | %s |\n", fields[0], fields[1], fields[2], cell(reason))
	}
	b.WriteString("\nSome labels of the kubelet's families have fewer values in nodelet:\n\n" +
		"- `kubelet_pod_worker_duration_seconds` has no `operation_type` update: a changed pod counts as sync.\n" +
		"- `storage_operation_duration_seconds` has no `operation_name` unmount_device or unmap_device: " +
		"`csi_operations_seconds` has the calls of NodeUnstageVolume. It has no unmap_volume for local devices: " +
		"they count as volume_unmount.\n" +
		"- `container_fs_inodes_free`, `container_fs_inodes_total`, `container_fs_limit_bytes` and " +
		"`container_fs_usage_bytes` have no containers, only `id=\"/\"`. With CRI-O the kubelet measures the writable " +
		"layer and the log of each container for them: `/stats/summary` has both (`rootfs`, `logs`).\n")
	return b.String()
}

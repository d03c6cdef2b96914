package volumes

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// SELinux says which labels the containers of a pod need on a volume.
type SELinux struct {
	// Enabled: the node has SELinux.
	Enabled bool
	// EveryMode: volumes of every access mode are mounted with a label (feature gate SELinuxMount), not only those of
	// ReadWriteOncePod.
	EveryMode bool
	// Labels returns the labels, each once. An empty one is chosen by the runtime. Called only if Enabled.
	Labels func() ([]string, error)
}

// SELinuxResult is the outcome for a volume whose driver can mount it with an SELinux label.
type SELinuxResult string

// Outcomes.
const (
	// SELinuxMounted: it is mounted with the label of its pod.
	SELinuxMounted SELinuxResult = "mounted"
	// SELinuxUnknown: the label that a container needs cannot be computed.
	SELinuxUnknown SELinuxResult = "unknown"
	// SELinuxMixed: containers of the pod need different labels.
	SELinuxMixed SELinuxResult = "mixed"
	// SELinuxConflict: other pods use the volume with another label.
	SELinuxConflict SELinuxResult = "conflict"
)

// seLinuxLabel returns the label that the volume is mounted with for the pod (KEP-1710), so that the runtime need not
// relabel its files one by one; empty if it is mounted without. Conflicting labels keep the pod from running only if
// volumes of this access mode are mounted with a label.
func (d *driven) seLinuxLabel() (string, error) {
	if !d.SELinux.Enabled || !*d.driver.Spec.SELinuxMount || relabels(d.Pod) {
		return "", nil
	}
	labels, err := d.SELinux.Labels()
	result := SELinuxUnknown
	if len(labels) > 1 {
		result, err = SELinuxMixed, fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
	}
	applies := d.SELinux.EveryMode || podfs.OnePod(d.pv)
	if err != nil {
		d.cfg.Metrics.SELinux(result, d.driver.Name, highestMode(d.pv), applies)
	}
	switch {
	case !applies:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("volume %q: %w", d.Volume.Name, err)
	case len(labels) == 0:
		return "", nil
	}
	return labels[0], nil
}

// mayRelabel reports whether the runtime may relabel the files of the published volume one by one. Where the file
// system refuses that, such as NFS without labels, no container would start.
func (d *driven) mayRelabel(p csi.Published) (bool, error) {
	if v := d.volume; p.Labelled || v.ReadOnly || v.Block {
		return false, nil
	}
	if !d.SELinux.Enabled {
		return true, nil
	}
	return mounts.KeepsLabels(p.Path)
}

// countSELinux counts the outcome for a volume with a label.
func (d *driven) countSELinux(p csi.Published, err error) {
	if _, ok := errors.AsType[*csi.LabelError](err); ok {
		d.cfg.Metrics.SELinux(SELinuxConflict, d.volume.Driver, highestMode(d.pv), true)
	} else if p.Changed && p.Labelled {
		d.cfg.Metrics.SELinux(SELinuxMounted, d.volume.Driver, highestMode(d.pv), true)
	}
}

// relabels reports whether the pod asks for its volumes to be relabelled file by file, so that containers with
// different labels can share them.
func relabels(pod *corev1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive
}

// highestMode returns the short name of the access mode that lets the most pods use a volume.
func highestMode(pv *corev1.PersistentVolume) string {
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteMany, "RWX"},
		{corev1.ReadOnlyMany, "ROX"},
		{corev1.ReadWriteOnce, "RWO"},
		{corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(pv.Spec.AccessModes, m.mode) {
			return m.short
		}
	}
	return ""
}

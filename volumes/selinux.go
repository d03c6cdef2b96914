package volumes

import (
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
	// SELinuxAdmitted: its first pod wants a label, with which it is or could be mounted.
	SELinuxAdmitted SELinuxResult = "admitted"
	// SELinuxUnknown: the label that a container needs cannot be computed.
	SELinuxUnknown SELinuxResult = "unknown"
	// SELinuxMixed: containers of the pod need different labels.
	SELinuxMixed SELinuxResult = "mixed"
	// SELinuxConflict: other pods use the volume with another label.
	SELinuxConflict SELinuxResult = "conflict"
)

// seLinux returns the label that the volume is mounted with for the pod (KEP-1710), so that the runtime need not
// relabel its files one by one; none if it is mounted without. Conflicting labels keep the pod from running only if
// volumes of this access mode are mounted with a label.
func (d *driven) seLinux() (csi.SELinux, error) {
	if !d.SELinux.Enabled || !*d.driver.Spec.SELinuxMount {
		return csi.SELinux{}, nil
	}
	label, applies := "", d.SELinux.EveryMode || podfs.OnePod(d.pv)
	if !relabels(d.Pod) {
		var result SELinuxResult
		var err error
		if label, result, err = d.wantedLabel(); err != nil {
			d.countSELinux(result, applies)
			if !applies {
				err = nil
			}
			return csi.SELinux{}, err
		}
	}
	out := csi.SELinux{Wanted: &label}
	if applies {
		out.Mount = label
	}
	out.Begun = func(first, conflict bool) {
		switch {
		case first && label != "":
			d.countSELinux(SELinuxAdmitted, applies)
		case conflict:
			d.countSELinux(SELinuxConflict, applies)
		}
	}
	return out, nil
}

// wantedLabel returns the one label that the containers of the pod need on the volume, empty if the runtime chooses it.
// An error has a result to count.
func (d *driven) wantedLabel() (label string, result SELinuxResult, err error) {
	labels, err := d.SELinux.Labels()
	switch {
	case len(labels) > 1:
		result, err = SELinuxMixed, fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
	case err != nil:
		result = SELinuxUnknown
	case len(labels) == 1:
		label = labels[0]
	}
	if err != nil {
		err = fmt.Errorf("volume %q: %w", d.Volume.Name, err)
	}
	return label, result, err
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

func (d *driven) countSELinux(result SELinuxResult, applies bool) {
	d.cfg.Metrics.SELinux(result, d.driver.Name, highestMode(d.pv), applies)
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

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/csi"
)

// SELinuxVerdict is what became of a volume whose driver can mount it with an SELinux label.
type SELinuxVerdict string

const (
	// SELinuxMounted: it is mounted with the label of its pod.
	SELinuxMounted SELinuxVerdict = "mounted"
	// SELinuxUnknown: the label that a container needs cannot be known.
	SELinuxUnknown SELinuxVerdict = "unknown"
	// SELinuxMixed: containers of the pod need different labels.
	SELinuxMixed SELinuxVerdict = "mixed"
	// SELinuxTaken: other pods use it with another label.
	SELinuxTaken SELinuxVerdict = "taken"
)

// seLinuxLabel is the label that a volume is mounted with for the pod (KEP-1710), so that the runtime need not relabel its files one by
// one; empty where it is not. What stands in the way keeps the pod from running only where the access mode lets volumes be mounted so.
func (t *task) seLinuxLabel(volume string, pv *corev1.PersistentVolume, driver *storagev1.CSIDriver) (string, error) {
	node := t.hands.Node()
	if !node.SELinux || !*driver.Spec.SELinuxMount || relabels(t.pod) {
		return "", nil
	}
	labels, err := spec.VolumeLabels(node, t.pod, volume)
	verdict := SELinuxUnknown
	if len(labels) > 1 {
		verdict, err = SELinuxMixed, fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
	}
	applies := node.SELinuxMount || onlyOnePod(pv)
	if err != nil {
		t.hands.meter().SELinux(verdict, driver.Name, highestMode(pv), applies)
	}
	switch {
	case !applies:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("volume %q: %w", volume, err)
	case len(labels) == 0:
		return "", nil
	}
	return labels[0], nil
}

// seLinuxDone counts what became of a volume with a label.
func (t *task) seLinuxDone(p csi.Published, err error, v *csi.Volume, pv *corev1.PersistentVolume) {
	switch taken := (*csi.LabelError)(nil); {
	case errors.As(err, &taken):
		t.hands.meter().SELinux(SELinuxTaken, v.Driver, highestMode(pv), true)
	case p.Changed && p.Labelled:
		t.hands.meter().SELinux(SELinuxMounted, v.Driver, highestMode(pv), true)
	}
}

// relabels: the pod wants its volumes relabelled file by file, which lets containers with different labels share them.
func relabels(pod *corev1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive
}

func onlyOnePod(pv *corev1.PersistentVolume) bool {
	return slices.Equal(pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod})
}

// highestMode is the access mode that lets most use a volume, in short.
func highestMode(pv *corev1.PersistentVolume) string {
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{{corev1.ReadWriteMany, "RWX"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteOnce, "RWO"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(pv.Spec.AccessModes, m.mode) {
			return m.short
		}
	}
	return ""
}

package csi

import (
	"context"
	"crypto/sha256"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// Volume is one volume as the API describes it, for one pod. All calls need what identifies it: Driver, Handle, Name,
// Directory, Block and Ephemeral. Besides,
//   - Has needs Unstarted;
//   - Use needs AccessMode, Attachable and Attachment.APIName, and SELinux unless Begun;
//   - Keep needs what Has and Use need;
//   - Publish needs Republish too, and all of it if it has to call the driver.
type Volume struct {
	Driver, Handle string
	// Name is the PersistentVolume's, or that of the pod's volume for an inline one: the name of its directories.
	Name string
	// Directory is where an in-tree driver stages the volume, below the plugin's own directory; two names deep. Volumes
	// of CSI drivers have none.
	Directory string
	// Block: the pod gets the device itself, not a file system.
	Block bool
	// Ephemeral: an inline volume, which exists as long as its pod and is never staged.
	Ephemeral bool
	// Attachable: the controller manager attaches it, and must not detach it while it is in use here.
	Attachable   bool
	FSType       string
	MountOptions []string
	AccessMode   corev1.PersistentVolumeAccessMode
	ReadOnly     bool
	SELinux      SELinux
	// Attributes are the volume context; PublishAttributes are added to them for NodePublishVolume alone.
	Attributes, PublishAttributes map[string]string
	Attachment                    Attachment
	Secrets                       Secrets
	// FSGroup is for drivers that set the group themselves (VOLUME_MOUNT_GROUP).
	FSGroup *int64
	// Unstarted: the pod has had no container yet. Then a kubelet may not have ended its work on the volume.
	Unstarted bool
	// Republish calls NodePublishVolume even if the volume is published (requiresRepublish of its CSIDriver).
	Republish bool
	// Prepare prepares a volume for containers after each NodePublishVolume; path is where it is published. Nil: nothing
	// to do. It is not called for drivers that set FSGroup themselves.
	Prepare func(ctx context.Context, path string) error
}

// SELinux says which SELinux label a pod wants on a volume.
type SELinux struct {
	// Mount is the label that the mount gives to the files of the volume. The first use decides: as long as the volume is
	// in use it keeps its label.
	Mount string
	// Wanted is what Mount would be if volumes of every access mode were mounted with a label. Nil: not known, or the
	// driver cannot do that.
	Wanted *string
	// Begun, unless nil, is called when the pod has begun to use the volume, and once by a restarted agent. first: it has
	// not been called for another pod that uses the volume. conflict: the first one wants another label.
	Begun func(first, conflict bool)
}

// Secrets are those for calls to the driver of a volume. They are never logged and never written to disk.
type Secrets struct {
	// Stage returns those for NodeStageVolume. It is called before that alone. Nil: none.
	Stage   func(ctx context.Context) (map[string]string, error)
	Publish map[string]string
}

// Attachment is the attachment of a volume to the node.
type Attachment struct {
	// APIName is the volume's name in volumesInUse and volumesAttached of the Node's status. Empty: the UniqueName of
	// driver and handle.
	APIName corev1.UniqueVolumeName
	// UID is that of the VolumeAttachment: another one means that the volume was detached meanwhile. Empty: it is not
	// known, or no attachment is needed.
	UID types.UID
	// Context is what the controller's attach call returned: the publish context of the calls to the driver.
	Context map[string]string
}

// Published is a volume that a pod can use.
type Published struct {
	Path string // the directory, or the device of a block volume
	// Expands: the driver can grow the volume on the node.
	Expands bool
	// Labelled: its mount gives the files their SELinux label.
	Labelled bool
}

// LabelError is the error for a volume that other pods use with another SELinux label.
type LabelError struct{ Volume, Has, Wanted string }

func (e *LabelError) Error() string {
	return fmt.Sprintf("conflicting SELinux labels of volume %s: %q and %q", e.Volume, e.Has, e.Wanted)
}

// key identifies a volume on the node: the handle is the driver's own name for it.
type key struct{ driver, handle string }

func (k key) String() string { return k.driver + "^" + k.handle }

func (v *Volume) key() key { return key{v.Driver, v.Handle} }

func (v *Volume) stageSecrets(ctx context.Context) (map[string]string, error) {
	if v.Secrets.Stage == nil {
		return nil, nil
	}
	return v.Secrets.Stage(ctx)
}

// UniqueName is the volume's name in volumesInUse and volumesAttached of the Node's status.
func UniqueName(driver, handle string) corev1.UniqueVolumeName {
	if inTree(driver) {
		return corev1.UniqueVolumeName(driver + "/" + handle)
	}
	return corev1.UniqueVolumeName(pluginname.CSI + "/" + driver + "^" + handle)
}

// InlineHandle is the handle of a pod's inline volume, the same after a restart of the agent.
func InlineHandle(pod types.UID, volume string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod)+volume)))
}

// check returns an error for names that cannot be used in paths and calls.
func (v *Volume) check(pod types.UID) error {
	if err := poddir.CheckName("pod UID", string(pod)); err != nil {
		return err
	}
	if err := poddir.CheckName("volume", v.Name); err != nil {
		return err
	}
	if err := checkDriver(v.Driver); err != nil {
		return err
	}
	if v.Handle == "" {
		return fmt.Errorf("volume %q has no volume handle", v.Name)
	}
	if inTree(v.Driver) {
		return checkPath(v.Directory)
	}
	return nil
}

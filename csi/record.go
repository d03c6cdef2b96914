package csi

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// state is the progress of a call. It becomes intent before the call is made, and done after the call succeeded.
type state string

const (
	// none: nothing was asked for, or it was undone.
	none state = ""
	// intent: a call was in progress; its result is not known.
	intent state = "intent"
	// done: the call succeeded, if this is still the same boot.
	done state = "done"
)

// record is the state of a volume. It holds no secret.
type record struct {
	Driver     string `json:"driver"`
	Handle     string `json:"handle"`
	Block      bool   `json:"block,omitempty"`
	Attachable bool   `json:"attachable,omitempty"`
	// APINames are the volume's names in the Node's status. None: the UniqueName of driver and handle.
	APINames []corev1.UniqueVolumeName `json:"apiNames,omitempty"`
	// OnePod: no second pod may use it (ReadWriteOncePod).
	OnePod bool `json:"onePod,omitempty"`
	// SELinux is the label that the volume is mounted with, for all that use it.
	SELinux string `json:"selinux,omitempty"`
	// Size is the size in bytes that the volume has on this node; 0: not known.
	Size int64 `json:"size,omitempty"`
	// Attachment identifies the attachment with which the volume was staged; empty: not known.
	Attachment types.UID `json:"attachment,omitempty"`
	// Staging is the path that the volume is staged at, below the root directory.
	Staging string `json:"staging"`
	Stage   state  `json:"stage,omitempty"`
	// StageMounted: the driver mounted something there, so the kernel knows whether it still is mounted.
	StageMounted bool `json:"stageMounted,omitempty"`
	// Boot is the boot in which Stage and Uses were valid: mounts do not survive it.
	Boot string `json:"boot"`
	// Uses are the pods' uses, by useID.
	Uses map[string]*use `json:"uses,omitempty"`
}

// use is one pod's right to a volume. Two PersistentVolumes may name one handle, so a pod may have several.
type use struct {
	Pod  types.UID `json:"pod"`
	Name string    `json:"name"`
	// Target is the path that the volume is published at, below the root directory.
	Target  string `json:"target"`
	Publish state  `json:"publish,omitempty"`
	// Mounted: there was a mount at the target, so the kernel knows whether it still is there.
	Mounted bool `json:"mounted,omitempty"`
	// Found: only the mount of a kubelet says that it is published. The kubelet may have been interrupted before it had
	// prepared the volume.
	Found bool `json:"found,omitempty"`
}

func (r *record) key() key { return key{r.Driver, r.Handle} }

func useID(pod types.UID, name string) string { return string(pod) + "/" + name }

// named reports whether the names of a volume in the API are known.
func (r *record) named(v *Volume) bool {
	return v.Attachment.APIName == "" || slices.Contains(r.APINames, v.Attachment.APIName)
}

// name adds the name of a volume in the API.
func (r *record) name(v *Volume) {
	if !r.named(v) {
		r.APINames = append(slices.Clip(r.APINames), v.Attachment.APIName)
	}
}

// empty reports whether the volume is neither used nor staged.
func (r *record) empty() bool { return len(r.Uses) == 0 && r.Stage == none }

// over reports whether nothing is left of the volume. The files about a block volume stay until it is taken down, also
// if its driver does not stage.
func (r *record) over() bool { return r.empty() && !r.Block }

// attachedAgain reports whether the volume was detached from this node and attached again since it was staged in the
// current boot.
func (r *record) attachedAgain(v *Volume, boot string) bool {
	return r.Stage != none && r.Boot == boot &&
		r.Attachment != "" && v.Attachment.UID != "" && r.Attachment != v.Attachment.UID
}

func (r *record) clone() *record {
	c := *r
	c.Uses = make(map[string]*use, len(r.Uses))
	for id, u := range r.Uses {
		copied := *u
		c.Uses[id] = &copied
	}
	return &c
}

func (r *record) usedByOther(pod types.UID) bool {
	for _, u := range r.Uses {
		if u.Pod != pod {
			return true
		}
	}
	return false
}

package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// attachTimeout is how long a step waits for an attachment before it fails with what it waits for.
const attachTimeout = 15 * time.Second

// NodeSeen wakes those who wait for a change of the Node object.
func (s *Storage) NodeSeen(*corev1.Node) {
	s.mu.Lock()
	close(s.seen)
	s.seen = make(chan struct{})
	pods := s.waiting.TakeIf(s.isAttached)
	s.mu.Unlock()
	if len(pods) > 0 {
		s.cfg.Wake(pods)
	}
}

func (s *Storage) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// isAttached reports whether the controller manager has attached the volume and knows that it is in use, so that it
// does not detach it. The Node is read after that it is in use: an older version may show a volume as attached that was
// detached meanwhile.
func (s *Storage) isAttached(name corev1.UniqueVolumeName) bool {
	return s.cfg.InUse(name) && slices.ContainsFunc(s.cfg.Node().Status.VolumesAttached,
		func(a corev1.AttachedVolume) bool { return a.Name == name })
}

// Attachment is a volume's attachment to this node. A volume that was detached and attached again has another UID.
type Attachment struct {
	UID types.UID
	// Context is the publish context.
	Context map[string]string
}

// Attached waits until a volume is attached to this node, and returns how. name is the volume's name in
// the Node's status; it must already be in use. After a while the wait ends with an error that says what is missing;
// the pod is woken when the volume is attached.
func (s *Storage) Attached(ctx context.Context, pod types.UID, name corev1.UniqueVolumeName, driver, handle string) (
	Attachment, error) {
	shown, err := s.shown(ctx, pod, name)
	if err != nil {
		return Attachment{}, err
	}
	return s.attachment(ctx, driver, handle, shown)
}

// AttachedInTree does the same for a volume of an in-tree driver. It has no VolumeAttachment: the controller manager
// lists it in the Node's status when no other node has it.
func (s *Storage) AttachedInTree(ctx context.Context, pod types.UID, name corev1.UniqueVolumeName) error {
	if !s.cfg.ControllerAttaches {
		return nil
	}
	shown, err := s.shown(ctx, pod, name)
	if err == nil && !shown {
		err = fmt.Errorf("volume %s is not attached to this node: the attach/detach controller has not added it "+
			"to volumesAttached of the Node's status yet, perhaps because another node has it", name)
	}
	return err
}

// shown waits a while until the Node's status shows a volume as attached. It reports whether it does; if not, the pod
// is woken later.
func (s *Storage) shown(ctx context.Context, pod types.UID, name corev1.UniqueVolumeName) (bool, error) {
	timeout := time.NewTimer(attachTimeout)
	defer timeout.Stop()
	for late := false; ; {
		s.mu.Lock()
		seen, attached := s.seen, s.isAttached(name)
		if late && !attached {
			s.waiting.Add(name, pod)
		}
		s.mu.Unlock()
		if attached || late {
			return attached, nil
		}
		select {
		case <-seen:
		case <-timeout.C:
			late = true
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// attachment reads the VolumeAttachment of a volume. If the volume is not attached, or not shown as attached in the
// Node's status, it returns an error that says what the attachment waits for.
func (s *Storage) attachment(ctx context.Context, driver, handle string, shown bool) (Attachment, error) {
	va, name := &storagev1.VolumeAttachment{}, pluginname.Attachment(driver, handle, s.cfg.NodeName)
	err := s.get(ctx, s.cfg.Storage, "volumeattachments", "", name, va)
	switch {
	case !shown && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		return Attachment{}, fmt.Errorf("volume %s of CSI driver %s is not attached to this node: the attach/detach "+
			"controller has not requested it yet (there is no VolumeAttachment %s)", handle, driver, name)
	case err != nil:
		return Attachment{}, fmt.Errorf("volume %s has GET error for volume attachment %s: %w", handle, name, err)
	case va.DeletionTimestamp != nil:
		return Attachment{}, detaching(va, handle)
	case !va.Status.Attached:
		return Attachment{}, unattached(va, handle)
	case !shown:
		return Attachment{}, fmt.Errorf("volume %s is attached, but the Node's status does not show it "+
			"in volumesInUse and volumesAttached yet", handle)
	}
	return Attachment{va.UID, va.Status.AttachmentMetadata}, nil
}

// detaching returns an error for a volume that is still being detached, with the last failure of that.
func detaching(va *storagev1.VolumeAttachment, handle string) error {
	why := "waiting for the external-attacher of CSI driver " + va.Spec.Attacher
	if e := va.Status.DetachError; e != nil {
		why = va.Spec.Attacher + " failed: " + e.Message
	}
	return fmt.Errorf("volume %s has to be detached from this node before it can be attached again: %s "+
		"(VolumeAttachment %s)", handle, why, va.Name)
}

// LimitError is the error for a volume that cannot be attached because the node has as many as its driver allows.
type LimitError struct {
	// Lasting: the driver has refused for longer than the kubelet waits for a volume.
	Lasting bool
	text    string
}

func (e *LimitError) Error() string { return e.text }

// lastingAfter is how long a driver must refuse to attach a volume until that counts as lasting: the time that the
// kubelet waits for a pod's volumes.
const lastingAfter = 2*time.Minute + 3*time.Second

func unattached(va *storagev1.VolumeAttachment, handle string) error {
	if e := va.Status.AttachError; e != nil {
		text := fmt.Sprintf("volume %s is not attached to this node, %s failed: %s", handle, va.Spec.Attacher, e.Message)
		if e.ErrorCode != nil && *e.ErrorCode == int32(codes.ResourceExhausted) {
			return &LimitError{Lasting: e.Time.Sub(va.CreationTimestamp.Time) >= lastingAfter, text: text}
		}
		return errors.New(text)
	}
	return fmt.Errorf("volume %s is not attached to this node yet: waiting for the external-attacher of CSI driver %s "+
		"(VolumeAttachment %s)", handle, va.Spec.Attacher, va.Name)
}

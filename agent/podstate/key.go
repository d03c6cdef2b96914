package podstate

import (
	"cmp"
	"time"
)

// Kind is what a step does.
type Kind uint8

// The kinds of steps. EnsureImage has two: one for a container and one for an image volume.
const (
	KindPrepare Kind = iota
	KindPrepareClaims
	KindMount
	KindCreateSandbox
	KindEnsureImage
	KindEnsureVolumeImage
	KindCreateContainer
	KindStartContainer
	KindPostStart
	KindPreStop
	KindStopContainer
	KindRemoveContainer
	KindMarkReset
	KindStopSandbox
	KindRemoveSandbox
	KindResize
	KindResizePod
	KindUnmount
	KindUnprepareClaims
	KindRemoveCgroup
	KindRemoveDir
)

// Key identifies what a step acts on. Two steps with the same key never run at the same time, except for a stricter
// stop (see Overtakes). Keys are comparable.
type Key struct {
	Kind Kind
	// Target is the ID of a sandbox or container, or the name of a volume or container; empty if a pod has only one key
	// of this kind.
	Target string
}

// Compare orders keys by kind, then by target.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Target, other.Target))
}

func (Prepare) Key() Key           { return Key{Kind: KindPrepare} }
func (PrepareClaims) Key() Key     { return Key{Kind: KindPrepareClaims} }
func (s Mount) Key() Key           { return Key{KindMount, s.Volume} }
func (CreateSandbox) Key() Key     { return Key{Kind: KindCreateSandbox} }
func (s CreateContainer) Key() Key { return Key{KindCreateContainer, s.Name} }
func (s StartContainer) Key() Key  { return Key{KindStartContainer, s.ID} }
func (s PostStart) Key() Key       { return Key{KindPostStart, s.ID} }
func (s PreStop) Key() Key         { return Key{KindPreStop, s.ID} }
func (s StopContainer) Key() Key   { return Key{KindStopContainer, s.ID} }
func (s RemoveContainer) Key() Key { return Key{KindRemoveContainer, s.ID} }
func (MarkReset) Key() Key         { return Key{Kind: KindMarkReset} }
func (s StopSandbox) Key() Key     { return Key{KindStopSandbox, s.ID} }
func (s RemoveSandbox) Key() Key   { return Key{KindRemoveSandbox, s.ID} }
func (s Resize) Key() Key          { return Key{KindResize, s.ID} }
func (ResizePod) Key() Key         { return Key{Kind: KindResizePod} }
func (s Unmount) Key() Key         { return Key{KindUnmount, s.Volume} }
func (UnprepareClaims) Key() Key   { return Key{Kind: KindUnprepareClaims} }
func (RemoveCgroup) Key() Key      { return Key{Kind: KindRemoveCgroup} }
func (RemoveDir) Key() Key         { return Key{Kind: KindRemoveDir} }

func (s EnsureImage) Key() Key {
	if s.Volume != "" {
		return Key{KindEnsureVolumeImage, s.Volume}
	}
	return Key{KindEnsureImage, s.Container}
}

// SameStep reports whether a and b are the same action. They may differ in what can change between two plans for it:
// deadline, back-off, KeepLog and LowersMemory.
func SameStep(a, b Step) bool { return essence(a) == essence(b) }

// essence returns the step without what SameStep passes over.
func essence(step Step) Step {
	switch s := step.(type) {
	case CreateContainer:
		s.Backoff = 0
		return s
	case PreStop:
		s.Deadline = time.Time{}
		return s
	case StopContainer:
		s.Deadline = time.Time{}
		return s
	case RemoveContainer:
		s.KeepLog = false
		return s
	case Resize:
		s.LowersMemory = false
		return s
	case ResizePod:
		s.LowersMemory = false
		return s
	}
	return step
}

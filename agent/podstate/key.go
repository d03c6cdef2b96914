package podstate

import (
	"cmp"
	"time"
)

// Kind is what a step does.
type Kind uint8

// The kinds of steps. EnsureImage has two, for what needs the image.
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
	KindStopContainer
	KindRemoveContainer
	KindNoteReset
	KindStopSandbox
	KindRemoveSandbox
	KindResize
	KindResizePod
	KindUnmount
	KindUnprepareClaims
	KindRemoveCgroup
	KindRemoveDir
)

var kindNames = [...]string{
	KindPrepare:           "prepare",
	KindPrepareClaims:     "prepare claims",
	KindMount:             "mount",
	KindCreateSandbox:     "create sandbox",
	KindEnsureImage:       "image",
	KindEnsureVolumeImage: "image volume",
	KindCreateContainer:   "create",
	KindStartContainer:    "start",
	KindPostStart:         "poststart",
	KindStopContainer:     "stop",
	KindRemoveContainer:   "remove",
	KindNoteReset:         "note reset",
	KindStopSandbox:       "stop",
	KindRemoveSandbox:     "remove",
	KindResize:            "resize",
	KindResizePod:         "resize pod",
	KindUnmount:           "unmount",
	KindUnprepareClaims:   "unprepare claims",
	KindRemoveCgroup:      "remove cgroup",
	KindRemoveDir:         "remove dir",
}

func (k Kind) String() string { return kindNames[k] }

// Key identifies what a step acts on, so that two steps with one key never run at the same time, but for a
// stricter stop (Overtakes). Keys are comparable.
type Key struct {
	Kind Kind
	// ID is the ID of a sandbox or container, or the name of a volume or container; empty where the pod has
	// one of the kind.
	ID string
}

func (k Key) String() string {
	if k.ID == "" {
		return k.Kind.String()
	}
	return k.Kind.String() + " " + k.ID
}

// Compare orders keys as they read.
func (k Key) Compare(other Key) int { return cmp.Compare(k.String(), other.String()) }

func (Prepare) Key() Key           { return Key{Kind: KindPrepare} }
func (PrepareClaims) Key() Key     { return Key{Kind: KindPrepareClaims} }
func (s Mount) Key() Key           { return Key{KindMount, s.Volume} }
func (CreateSandbox) Key() Key     { return Key{Kind: KindCreateSandbox} }
func (s CreateContainer) Key() Key { return Key{KindCreateContainer, s.Name} }
func (s StartContainer) Key() Key  { return Key{KindStartContainer, s.ID} }
func (s PostStart) Key() Key       { return Key{KindPostStart, s.ID} }
func (s StopContainer) Key() Key   { return Key{KindStopContainer, s.ID} }
func (s RemoveContainer) Key() Key { return Key{KindRemoveContainer, s.ID} }
func (NoteReset) Key() Key         { return Key{Kind: KindNoteReset} }
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

// Identity returns the step without what may differ between two plans that want the same: deadlines,
// back-offs and what the step notes of its cause. Two steps with the same identity are the same step.
func Identity(step Step) Step {
	switch s := step.(type) {
	case CreateContainer:
		s.Backoff = 0
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

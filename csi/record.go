package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// state is how far a call has come. It is raised to intent before the call is made, and to done after it succeeded.
type state string

const (
	// none: nothing has been asked for, or it has been taken back.
	none state = ""
	// intent: a call was under way; what it came to is not known.
	intent state = "intent"
	// done: it is there, if this is still the same boot.
	done state = "done"
)

// record is what is known of a volume. It holds no secret.
type record struct {
	Driver     string `json:"driver"`
	Handle     string `json:"handle"`
	Block      bool   `json:"block,omitempty"`
	Attachable bool   `json:"attachable,omitempty"`
	// OnePod: no second pod may use it (ReadWriteOncePod).
	OnePod bool `json:"onePod,omitempty"`
	// SELinux is the label that the volume is mounted with, for all that use it.
	SELinux string `json:"selinux,omitempty"`
	// Staging is the path that the volume is staged at, below the root directory.
	Staging string `json:"staging"`
	Stage   state  `json:"stage,omitempty"`
	// StageMounted: the driver mounted something there, so the mount table tells whether it still is.
	StageMounted bool `json:"stageMounted,omitempty"`
	// Boot is the boot that Stage and Uses speak of: mounts do not survive it.
	Boot string `json:"boot"`
	// Uses are the claims, by useID.
	Uses map[string]*use `json:"uses,omitempty"`
}

// use is a claim of one pod on a volume. Two PersistentVolumes may name one handle, so a pod may have several.
type use struct {
	Pod  types.UID `json:"pod"`
	Name string    `json:"name"`
	// Target is the path that the volume is published at, below the root directory.
	Target  string `json:"target"`
	Publish state  `json:"publish,omitempty"`
	// Mounted: there is a mount at the target, so the mount table tells whether it still is.
	Mounted bool `json:"mounted,omitempty"`
}

// volume is a record in use. CSI.mu guards rec; it is replaced, never written through.
type volume struct {
	rec *record
	// fresh: staged in this life of the agent.
	fresh bool
	// lines of the journal that this life has written; the volume's lock guards it.
	lines int
}

func (r *record) key() key { return key{r.Driver, r.Handle} }

func useID(pod types.UID, name string) string { return string(pod) + "/" + name }

func (r *record) empty() bool { return len(r.Uses) == 0 && r.Stage == none }

func (r *record) clone() *record {
	c := *r
	c.Uses = make(map[string]*use, len(r.Uses))
	for id, u := range r.Uses {
		copied := *u
		c.Uses[id] = &copied
	}
	return &c
}

// look gives a volume's record, nil where there is none. The caller must not change it.
func (c *CSI) look(k key) *record {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.volumes[k]; v != nil {
		return v.rec
	}
	return nil
}

// update changes a record: first on disk, if it must survive anything, then in memory. The caller holds the volume's lock. A record
// that says nothing any more goes.
func (c *CSI) update(k key, must keep, change func(*record)) error {
	c.mu.Lock()
	v := c.volumes[k]
	c.mu.Unlock()
	if v == nil {
		v = &volume{rec: &record{Driver: k.driver, Handle: k.handle, Boot: c.cfg.BootID}}
	}
	old, next := v.rec, v.rec.clone()
	change(next)
	if err := c.write(v, next, must); err != nil {
		return err
	}
	c.mu.Lock()
	v.rec, c.volumes[k] = next, v
	if next.empty() {
		delete(c.volumes, k)
	}
	c.mu.Unlock()
	if inUse(old) != inUse(next) && c.cfg.Changed != nil {
		c.telling.Lock() // the last word must be the newest
		defer c.telling.Unlock()
		c.cfg.Changed()
	}
	return nil
}

// write puts a record on disk. Of the changes that a power cut may take the disk may miss more: it says too much then, and asking
// a driver twice does no harm. So a full disk keeps no pod from its end.
func (c *CSI) write(v *volume, next *record, must keep) (err error) {
	if next.empty() {
		return c.files.forget(next.key())
	}
	if must == inMemory {
		return nil
	}
	v.lines, err = c.files.note(next, v.lines, must)
	if err != nil && must == overCrash {
		c.log.Warn("a change of a CSI volume is not on disk: after a crash its driver would be asked again", "volume", next.key(), "err", err)
		return nil
	}
	return err
}

func inUse(r *record) bool { return r.Attachable && !r.empty() }

// InUse names the attachable volumes that are, or may be, in use here: for volumesInUse of the Node's status. Sorted.
func (c *CSI) InUse() []corev1.UniqueVolumeName {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := []corev1.UniqueVolumeName{}
	for k, v := range c.volumes {
		if inUse(v.rec) {
			names = append(names, UniqueName(k.driver, k.handle))
		}
	}
	slices.Sort(names)
	return names
}

// Pods are the pods that have a claim, also those that exist no longer.
func (c *CSI) Pods() []types.UID {
	found := map[types.UID]bool{}
	c.eachUse(func(_ key, u *use) { found[u.Pod] = true })
	return slices.Sorted(maps.Keys(found))
}

// Used are the names of the volumes that a pod has a claim on, sorted.
func (c *CSI) Used(pod types.UID) []string {
	var names []string
	c.eachUse(func(_ key, u *use) {
		if u.Pod == pod {
			names = append(names, u.Name)
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// find is the volume that a pod uses by a name.
func (c *CSI) find(pod types.UID, name string) (k key, found bool) {
	c.eachUse(func(at key, u *use) {
		if u.Pod == pod && u.Name == name {
			k, found = at, true
		}
	})
	return k, found
}

func (c *CSI) eachUse(do func(key, *use)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range c.volumes {
		for _, u := range v.rec.Uses {
			do(k, u)
		}
	}
}

// Claim notes that a pod is going to use a volume. From now on it counts as in use, and nobody unstages it. Unpublish
// takes the claim back. It is on the disk with the first call to the driver that is made for it. A claim that is there hears
// whether the volume is still one to be attached.
func (c *CSI) Claim(ctx context.Context, pod types.UID, v *Volume) error {
	if err := v.check(pod); err != nil {
		return err
	}
	unlock, err := c.locks.Lock(ctx, v.key().String())
	if err != nil {
		return err
	}
	defer unlock()
	rec, id := c.look(v.key()), useID(pod, v.Name)
	if rec != nil && rec.Uses[id] != nil {
		return c.attachable(v)
	}
	onePod := v.AccessMode == corev1.ReadWriteOncePod
	if rec != nil && (onePod || rec.OnePod) && rec.usedByOther(pod) {
		return fmt.Errorf("volume %q uses the ReadWriteOncePod access mode and is already in use by another pod on this node", v.Name)
	}
	stage, err := c.labelled(ctx, rec, v)
	if err != nil {
		return err
	}
	return c.update(v.key(), inMemory, func(r *record) {
		r.Block, r.Attachable, r.OnePod = v.Block, v.Attachable, onePod
		r.SELinux, r.Stage = v.SELinuxLabel, stage
		if r.Staging == "" || len(r.Uses) == 0 && stage == none { // it may be another PersistentVolume's by now
			r.Staging = layoutOf(v.Driver).staging(v)
		}
		r.Uses[id] = &use{Pod: pod, Name: v.Name, Target: layoutOf(v.Driver).target(pod, v, r.Staging)}
	})
}

// attachable notes the newest word on whether a volume in use is one to be attached: its driver may have been declared anew, and
// the controller manager detaches nothing that is in volumesInUse. The caller holds the volume's lock.
func (c *CSI) attachable(v *Volume) error {
	if c.look(v.key()).Attachable == v.Attachable {
		return nil
	}
	return c.update(v.key(), overCrash, func(r *record) { r.Attachable = v.Attachable })
}

// labelled makes sure that a new claim gets the volume with its SELinux label and volumeMode, and says how far it is staged then. The
// label is an option of the mount: a volume that has another one is staged anew, unless it is in use. The caller holds the volume's lock.
func (c *CSI) labelled(ctx context.Context, rec *record, v *Volume) (state, error) {
	switch {
	case rec == nil:
		return none, nil
	case rec.SELinux == v.SELinuxLabel && rec.Block == v.Block:
		return rec.Stage, nil
	case len(rec.Uses) > 0 && rec.Block != v.Block:
		return none, fmt.Errorf("volume %q is in use with another volumeMode on this node", v.Name)
	case len(rec.Uses) > 0:
		return none, &LabelError{v.Name, rec.SELinux, v.SELinuxLabel}
	}
	if err := c.takeDown(ctx, rec); err != nil {
		return none, fmt.Errorf("waiting for unmount of volume %q, because it is mounted with another SELinux label or volumeMode: %w", v.Name, err)
	}
	return none, nil
}

func (r *record) usedByOther(pod types.UID) bool {
	for _, u := range r.Uses {
		if u.Pod != pod {
			return true
		}
	}
	return false
}

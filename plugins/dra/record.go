package dra

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/boundedfile"
	"github.com/nodelet/nodelet/plugins/dra/checkpoint"
)

const (
	// fileName is the kubelet's name. A damaged file is kept beside it for the administrator.
	fileName    = "dra_manager_state"
	damagedName = fileName + ".damaged"
)

// load reads the checkpoint. A damaged one is moved aside: running pods have their claims prepared again, which records
// them. A file that cannot be read just now is an error: its claims may still be in use.
func (d *DRA) load() error {
	text, err := boundedfile.Read(d.path, checkpoint.MaxSize)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, boundedfile.ErrTooLarge):
		return d.setAside(err)
	case err != nil:
		return fmt.Errorf("read which resource claims are prepared (move the file away to start without it): %w", err)
	}
	claims, err := checkpoint.Unmarshal(text)
	if err != nil {
		return d.setAside(err)
	}
	for _, c := range claims {
		if c.PodUIDs == nil {
			c.PodUIDs = map[string]struct{}{}
		}
		if c.DriverState == nil {
			c.DriverState = map[string]checkpoint.DriverState{}
		}
		d.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.ClaimName}] = &claim{Claim: c}
	}
	return nil
}

// setAside moves a damaged checkpoint away.
func (d *DRA) setAside(damage error) error {
	aside := filepath.Join(d.cfg.Root, damagedName)
	d.log.Error("checkpoint of prepared resource claims is damaged, moving it aside; claims of running pods are prepared "+
		"again, those of pods that have gone stay prepared until their drivers restart",
		"file", d.path, "movedTo", aside, "err", damage)
	if err := os.Rename(d.path, aside); err != nil {
		return fmt.Errorf("move the damaged checkpoint of resource claims aside: %w", err)
	}
	return nil
}

// save writes the file and syncs it to the disk.
func (d *DRA) save() error {
	d.saving.Lock()
	defer d.saving.Unlock()
	text, err := d.marshal()
	if err == nil {
		err = atomicfile.WriteSynced(d.path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("checkpoint ResourceClaim state: %w", err)
	}
	return nil
}

func (d *DRA) marshal() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []checkpoint.Claim{}
	for _, c := range slices.SortedFunc(maps.Values(d.claims), func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ClaimName, b.ClaimName))
	}) {
		all = append(all, c.Claim)
	}
	return checkpoint.Marshal(all)
}

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
	// fileName is the kubelet's; a file that cannot be read is kept beside it, for people.
	fileName    = "dra_manager_state"
	damagedName = fileName + ".damaged"
)

// load reads the file. One that cannot be read is set aside: pods that run have their claims prepared once more, which notes them anew.
func (d *DRA) load() {
	claims, err := read(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		aside := filepath.Join(d.cfg.Root, damagedName)
		d.log.Error("cannot read which resource claims are prepared; claims of pods that are here are prepared once more, those of pods "+
			"that have gone meanwhile stay prepared until their drivers are restarted", "file", d.path, "kept", aside,
			"err", errors.Join(err, os.Rename(d.path, aside)))
		return
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
}

func read(path string) ([]checkpoint.Claim, error) {
	text, err := boundedfile.Read(path, checkpoint.MaxSize)
	if err != nil {
		return nil, err
	}
	return checkpoint.Unmarshal(text)
}

// save writes the file, surely on the disk.
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

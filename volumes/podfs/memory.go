package podfs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// maxInMemory bounds what the agent writes into the volumes of one pod that are in memory. The kernel counts it as
// memory of the agent, which it can only free by killing the agent.
const maxInMemory = 32 << 20

// entryMemory is about what the kernel needs for a file, directory or link in a tmpfs beside its content.
const entryMemory = 1 << 10

const (
	// littleMemory is what a pod may always have in memory. Most pods have less.
	littleMemory = 2 << 20
	// memoryShare is the part of the agent's memory that the pods with more than littleMemory may have together.
	memoryShare = 4
	// updateShare is how much more an update may have, as a part of that: what runs must not suffer from new pods.
	updateShare = 4
)

// checkMemory returns an error if the volumes of a pod that are in memory would have too much if one of them had so
// much. Content that is being written for other pods does not count yet.
func (v *FS) checkMemory(pod *os.File, uid types.UID, on OnDisk, want int64) error {
	before, used, err := inMemory(pod, on)
	if err != nil {
		return err
	}
	used += want
	size := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	const advice = "use a configMap volume, which is on disk, or an image or a PersistentVolumeClaim"
	switch {
	case used > maxInMemory:
		return fmt.Errorf("the secret, projected and downwardAPI volumes of the pod would have %s with it, in memory, "+
			"and may have %s: "+advice, size(used), size(maxInMemory))
	case used <= littleMemory, want <= before: // such as a new token in the place of an old one
		return nil
	}
	all := v.memory
	if before > entryMemory { // there is more than the volume's directory
		all += v.memory / updateShare
	}
	others, err := v.inMemoryOfOthers(uid)
	if err != nil || used+others <= all {
		return err
	}
	return fmt.Errorf("the secret, projected and downwardAPI volumes of the pod would have %s with it, in memory. "+
		"Other pods with more than %s have %s, and all these pods may have %s: "+advice,
		size(used), size(littleMemory), size(others), size(all))
}

// inMemory returns what one volume of a pod has in memory, and what the others have.
func inMemory(pod *os.File, one OnDisk) (own, others int64, err error) {
	for _, plugin := range pluginname.InMemory {
		err := eachDir(pod, filepath.Dir(OnDisk{plugin, "name"}.path()), func(_, volume *os.File, name string) error {
			used, err := usedMemory(volume)
			if one == (OnDisk{plugin, name}) {
				own = used
			} else {
				others += used
			}
			return err
		})
		if err != nil {
			return 0, 0, err
		}
	}
	return own, others, nil
}

// inMemoryOfOthers returns what the volumes of other pods have in memory, of those that have more than littleMemory.
func (v *FS) inMemoryOfOthers(uid types.UID) (sum int64, err error) {
	pods, err := v.Pods()
	if err != nil {
		return 0, err
	}
	for _, other := range pods {
		if other == uid {
			continue
		}
		// An error is that of the other pod, whose volumes may be unmounted at this moment.
		_ = v.inPod(other, func(pod *os.File) error {
			_, used, err := inMemory(pod, OnDisk{})
			if used > littleMemory {
				sum += used
			}
			return err
		})
	}
	return sum, nil
}

// checkMade returns an error if a projected volume may not even have the files that are made already, and its mount
// points. With a token requested for it, each retry would request another one.
func (c *content) checkMade() error {
	pod, err := c.makePod(c.Pod.UID)
	if err != nil {
		return err
	}
	defer pod.Close()
	size := c.made.size() + sizeOfMountPoints(c.nested)
	return c.checkMemory(pod, c.Pod.UID, OnDisk{Plugin: pluginname.Projected, Name: c.Volume.Name}, size)
}

// usedMemory returns what a volume has in memory: nothing if no tmpfs is mounted on it.
func usedMemory(volume *os.File) (int64, error) {
	var sfs unix.Statfs_t
	if err := unix.Fstatfs(int(volume.Fd()), &sfs); err != nil {
		return 0, pathError("statfs", volume, "", err)
	}
	if sfs.Type != unix.TMPFS_MAGIC {
		return 0, nil
	}
	return int64(sfs.Blocks-sfs.Bfree)*sfs.Bsize + int64(sfs.Files-sfs.Ffree)*entryMemory, nil
}

// size returns what a volume with these files has, in memory or on the disk.
func (p payload) size() int64 {
	page := os.Getpagesize()
	entries, pages := 3, 0 // the volume's directory, that of the files, and the link to that
	seen := map[string]bool{}
	for path, f := range p {
		pages += (len(f.data) + page - 1) / page
		for ; path != "." && !seen[path]; path = filepath.Dir(path) {
			seen[path] = true
			entries++
			if filepath.Dir(path) == "." {
				entries++ // the link to it
			}
		}
	}
	return int64(pages)*int64(page) + int64(entries)*entryMemory
}

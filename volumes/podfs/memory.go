package podfs

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// maxInMemory bounds what the agent writes into the volumes of one pod that are in memory. The kernel counts it as
// memory of the agent, which it can only free by killing the agent.
const maxInMemory = 32 << 20

// entryMemory is about what the kernel needs for a file, directory or link in a tmpfs beside its content.
const entryMemory = 1 << 10

// checkMemory returns an error if the volumes of a pod that are in memory would have too much with the new content of
// one of them.
func checkMemory(pod *os.File, on OnDisk, want payload) error {
	sum := want.memory()
	for _, plugin := range pluginname.InMemory {
		err := eachDir(pod, filepath.Dir(OnDisk{plugin, on.Name}.path()), func(_, volume *os.File, name string) error {
			if on == (OnDisk{plugin, name}) {
				return nil
			}
			used, err := usedMemory(volume)
			sum += used
			return err
		})
		if err != nil {
			return err
		}
	}
	if sum <= maxInMemory {
		return nil
	}
	return fmt.Errorf("the secret, projected and downwardAPI volumes of the pod would have %s with it, in memory, "+
		"and may have %s: use a configMap volume, which is on disk, or an image or a PersistentVolumeClaim",
		resource.NewQuantity(sum, resource.BinarySI), resource.NewQuantity(maxInMemory, resource.BinarySI))
}

// checkMade returns an error if a projected volume may not even have the files that are made already. With a token
// requested for it, each retry would request another one.
func (c *content) checkMade() error {
	pod, err := c.makePod(c.Pod.UID)
	if err != nil {
		return err
	}
	defer pod.Close()
	return checkMemory(pod, OnDisk{Plugin: pluginname.Projected, Name: c.Volume.Name}, c.made)
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

// memory returns what a volume with these files has in memory.
func (p payload) memory() int64 {
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

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodelet/nodelet/test/testbed"
)

// A machine that runs a testbed has a second disk for the testbed's files, which also has the images, unpacked: the
// import of the suite's images takes minutes in the machine.
const (
	stateInside    = "/var/lib/ntb"
	unpackedInside = stateInside + "/.images"
)

// imagesDisk returns the disk with the images of archives as a container runtime unpacks them, which is built on the
// first call. The name of the file holds a hash of all that chooses its content.
func imagesDisk(ctx context.Context, cache *testbed.Cache, dir, runtime string, archives []string) (string, error) {
	name, _, _ := strings.Cut(cmp.Or(runtime, "containerd"), "+")
	programs, err := cache.Programs(ctx, name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, filepath.Base(programs), unpackedInside, diskSize)
	for _, archive := range archives {
		info, err := os.Stat(archive)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, info.Name(), info.Size(), info.ModTime())
	}
	disk := filepath.Join(dir, fmt.Sprintf("images-%x.img", h.Sum(nil)[:6]))
	return disk, buildOnce(ctx, disk, func(ctx context.Context) error {
		return makeImagesDisk(ctx, cache, runtime, archives, disk)
	})
}

func makeImagesDisk(
	ctx context.Context, cache *testbed.Cache, runtime string, archives []string, disk string,
) error {
	root, err := os.MkdirTemp(filepath.Dir(disk), "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	unpacked := filepath.Join(root, filepath.Base(unpackedInside))
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(unpacked, 0o755)); err != nil {
		return err
	}
	if err := cache.UnpackImages(ctx, runtime, archives, unpacked); err != nil {
		return err
	}
	return makeFileSystem(ctx, root, disk)
}

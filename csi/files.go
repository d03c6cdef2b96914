package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/host/beneath"
	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/kube/pluginname"
)

// Paths below the root directory. All but recordsDir are the kubelet's.
const (
	recordsDir = "nodelet/csi"
	pluginDir  = "plugins/" + pluginname.CSI
	devicesDir = pluginDir + "/volumeDevices"
	dataFile   = "vol_data.json"
	globalDir  = "globalmount"
)

const dirMode = 0o750

// volData is the kubelet's file beside a volume, from which it recovers the volume without the API server.
type volData struct {
	SpecVolID    string `json:"specVolID,omitempty"`
	Handle       string `json:"volumeHandle"`
	Driver       string `json:"driverName"`
	NodeName     string `json:"nodeName,omitempty"`
	AttachmentID string `json:"attachmentID,omitempty"`
	Lifecycle    string `json:"volumeLifecycleMode,omitempty"`
	SELinux      string `json:"seLinuxMountContext,omitempty"`
}

// files reads and writes below the root directory; no path leads out of it. Paths are relative to it.
type files struct {
	root  *os.Root
	path  string
	probe *mounts.Prober
}

func openFiles(path string) (files, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return files{}, fmt.Errorf("open the root directory: %w", err)
	}
	f := files{root: root, path: filepath.Clean(path), probe: &mounts.Prober{}}
	if err := root.MkdirAll(recordsDir, 0o700); err != nil {
		return files{}, errors.Join(fmt.Errorf("create the directory of CSI records: %w", err), root.Close())
	}
	return f, nil
}

// abs returns a path as drivers see it.
func (f files) abs(path string) string { return filepath.Join(f.path, path) }

func (f files) mkdir(path string) error {
	if err := f.root.MkdirAll(path, dirMode); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	return nil
}

// remove removes a file or an empty directory; a missing one is no error.
func (f files) remove(path string) error { return f.removed(path, f.root.Remove(path)) }

// empty removes the files, links and empty directories that a directory holds. It does not enter it if it is a mount,
// and removes nothing that is mounted. What is no directory holds nothing, also a link to one.
func (f files) empty(dir string) error {
	parent, err := f.root.Open(filepath.Dir(dir))
	if err != nil {
		return f.removed(dir, err)
	}
	defer parent.Close()
	open, err := beneath.Open(parent, filepath.Base(dir), unix.O_RDONLY|unix.O_DIRECTORY, beneath.SameMount)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return f.removed(dir, err)
	}
	defer open.Close()
	names, err := open.Readdirnames(-1)
	for _, name := range names {
		unlinked := unix.Unlinkat(int(open.Fd()), name, 0)
		if errors.Is(unlinked, unix.EISDIR) {
			unlinked = unix.Unlinkat(int(open.Fd()), name, unix.AT_REMOVEDIR)
		}
		err = errors.Join(err, f.removed(filepath.Join(dir, name), unlinked))
	}
	return err
}

// removed explains the error of a removal. That there was nothing is none.
func (f files) removed(path string, err error) error {
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s is not empty although its volume is gone: check what is in it and remove it", f.abs(path))
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%s is still mounted although its driver has released the volume: unmount it", f.abs(path))
	}
	return fmt.Errorf("remove %s: %w", f.abs(path), err)
}

// writeData writes vol_data.json beside a volume. It describes mounts, so it need not survive a power failure either.
func (f files) writeData(dir string, d volData) error {
	if err := f.mkdir(dir); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return f.replace(filepath.Join(dir, dataFile), append(text, '\n'), 0o640, atomicfile.NotDurable)
}

func (f files) readData(dir string) (d volData, err error) {
	text, err := f.root.ReadFile(filepath.Join(dir, dataFile))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil || d.Driver == "" || d.Handle == "" {
		return d, fmt.Errorf("%s does not name a driver and a handle: %w", f.abs(filepath.Join(dir, dataFile)), err)
	}
	return d, nil
}

// replace replaces a file atomically.
func (f files) replace(path string, text []byte, mode fs.FileMode, d atomicfile.Durability) error {
	if err := atomicfile.WriteBelow(f.root, path, text, mode, d); err != nil {
		return fmt.Errorf("write %s: %w", f.abs(path), err)
	}
	return nil
}

// addLine appends to a file. With sync the line survives a power failure.
func (f files) addLine(path string, line []byte, sync bool) error {
	file, err := f.root.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("write %s: %w", f.abs(path), err)
	}
	_, err = file.Write(line)
	if err == nil && sync {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", f.abs(path), err)
	}
	return nil
}

func (f files) syncRecords() error {
	d, err := f.root.Open(recordsDir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// names returns the entries of a directory; a missing one has none.
func (f files) names(dir string) ([]string, error) {
	d, err := f.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// mounted reports whether something is mounted on a path, as drivers see it: if the root directory was mounted on
// itself after it was opened, the open one does not show their mounts.
func (f files) mounted(path string) bool { return mounts.At(f.abs(path)) }

// hold keeps the device of a block volume from being replaced by another one as long as the pod has the volume.
func (f files) hold(rec *record, u *use) error {
	if !rec.Block {
		return nil
	}
	held := layoutOf(rec.Driver).held(u)
	if err := f.mkdir(filepath.Dir(held)); err != nil {
		return err
	}
	return mounts.Hold(f.abs(u.Target), f.abs(held))
}

// keepHeld is hold for a published volume. If the driver has published a link, that may lead to another device by now.
func (f files) keepHeld(rec *record, u *use) error {
	held := layoutOf(rec.Driver).held(u)
	if rec.Block && f.mounted(held) && !mounts.SameDevice(f.abs(u.Target), f.abs(held)) {
		return fmt.Errorf("the device of volume %q has gone away, or %s leads to another one now: "+
			"delete the pod to have the volume published again", u.Name, f.abs(u.Target))
	}
	return f.hold(rec, u)
}

// release undoes hold. A kubelet holds devices, too.
func (f files) release(rec *record, u *use) error {
	if !rec.Block {
		return nil
	}
	return mounts.Release(f.abs(layoutOf(rec.Driver).held(u)))
}

// works reports whether something is mounted on a path of a volume whose daemon or server has not gone.
func (f files) works(ctx context.Context, r *record, path string) bool {
	return f.mounted(path) && (r.Block || !f.probe.Broken(ctx, f.abs(path)))
}

// there reports whether there is anything at a path. It does not wait for the server of what is mounted there.
func (f files) there(path string) bool { return f.mounted(path) || f.exists(path) }

// exists reports whether there is anything at a path.
func (f files) exists(path string) bool {
	_, err := f.root.Lstat(path)
	return err == nil
}

package podfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/host/mounts"
	"github.com/nodelet/nodelet/internal/keylock"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/kube/poddir"
)

// localDevices holds the devices of local block volumes. Each is mounted and held open for each pod at
// <dir>/<PersistentVolume>/<pod>, and a link in the pod's directory has the path of the PersistentVolume: as with a
// kubelet. A container that starts later gets the same device, even if another one has its name by then.
type localDevices struct {
	dir   string
	locks keylock.Keyed // of volumes
}

func newLocalDevices(root string) localDevices {
	return localDevices{dir: filepath.Join(root, "plugins", pluginname.Directory(pluginname.Local), "volumeDevices")}
}

// at returns where a volume is for a pod.
func (d *localDevices) at(uid types.UID, name string) string {
	return filepath.Join(d.dir, name, string(uid))
}

// deviceLinks is the directory of the links to a pod's local block volumes, relative to the pod's. List knows the
// volumes by them.
var deviceLinks = poddir.Of(poddir.Devices, pluginname.Local, "")

// mountDevice gives a pod the device of a local block volume. If the pod has one, it keeps it.
func (v *FS) mountDevice(ctx context.Context, uid types.UID, name, path string) (Mounted, error) {
	device, source := v.devices.at(uid, name), path
	if mounts.At(device) {
		source = device
	} else if isDevice, err := v.isDevice(ctx, path); err != nil {
		return Mounted{}, err
	} else if !isDevice {
		return Mounted{}, fmt.Errorf("%s is not a block device", path)
	}
	pod, err := v.makePod(uid)
	if err != nil {
		return Mounted{}, err
	}
	defer pod.Close()
	links, err := makeDir(pod, deviceLinks, privateDir)
	if err != nil {
		return Mounted{}, err
	}
	defer links.Close()
	err = unix.Symlinkat(path, int(links.Fd()), name)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return Mounted{}, pathError("symlink", links, name, err)
	}
	return Mounted{Device: device}, v.devices.hold(ctx, source, device)
}

func (d *localDevices) hold(ctx context.Context, source, device string) error {
	unlock, err := d.locks.Lock(ctx, filepath.Dir(device))
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(filepath.Dir(device), 0o750); err != nil {
		return err
	}
	of, err := filepath.EvalSymlinks(filepath.Dir(device))
	if err != nil {
		return err
	}
	if source, err = filepath.EvalSymlinks(source); err != nil { // a link may change between two looks
		return err
	}
	if held := mounts.Held(source); filepath.Dir(held) == of { // for another pod: a link leads to what holds the device
		source = held
	}
	return mounts.Hold(source, device)
}

// release undoes mountDevice, and what a kubelet has done for a local block volume.
func (d *localDevices) release(ctx context.Context, uid types.UID, name string, pod *os.File) error {
	device := d.at(uid, name)
	unlock, err := d.locks.Lock(ctx, filepath.Dir(device))
	if err != nil {
		return err
	}
	defer unlock()
	if err := mounts.Release(device); err != nil {
		return err
	}
	if err := os.Remove(device); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(device)) // unless other pods use the volume
	return inDir(pod, deviceLinks, func(links *os.File) error { return unlink(links, name) })
}

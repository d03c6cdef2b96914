package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Where things are, below the root directory. All but the records is the kubelet's layout.
const (
	recordsDir = "nodelet/csi"
	pluginDir  = "plugins/kubernetes.io/csi"
	devicesDir = pluginDir + "/volumeDevices"
	dataFile   = "vol_data.json"
	globalDir  = "globalmount"
	escaped    = "kubernetes.io~csi"
)

const dirMode = 0o750

// stagingPath is where a volume is staged.
func stagingPath(v *Volume) string {
	if v.Block {
		return filepath.Join(devicesDir, "staging", v.Name)
	}
	return filepath.Join(pluginDir, v.Driver, fmt.Sprintf("%x", sha256.Sum256([]byte(v.Handle))), globalDir)
}

// targetPath is where a volume is published for a pod.
func targetPath(pod types.UID, v *Volume) string {
	if v.Block {
		return filepath.Join(devicesDir, "publish", v.Name, string(pod))
	}
	return filepath.Join(podVolumeDir(pod, v.Name), "mount")
}

func podVolumeDir(pod types.UID, name string) string {
	return filepath.Join("pods", string(pod), "volumes", escaped, name)
}

// deviceLink is the link by which a pod's directory names its block volume.
func deviceLink(pod types.UID, name string) string {
	return filepath.Join("pods", string(pod), "volumeDevices", escaped, name)
}

// volData is what the kubelet keeps beside a volume, to know it again without the API server.
type volData struct {
	SpecVolID    string `json:"specVolID,omitempty"`
	Handle       string `json:"volumeHandle"`
	Driver       string `json:"driverName"`
	NodeName     string `json:"nodeName,omitempty"`
	AttachmentID string `json:"attachmentID,omitempty"`
	Lifecycle    string `json:"volumeLifecycleMode,omitempty"`
	SELinux      string `json:"seLinuxMountContext,omitempty"`
}

// files works below the root directory; no path leads out of it. Paths are relative to it.
type files struct {
	root *os.Root
	path string
}

func openFiles(path string) (files, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return files{}, fmt.Errorf("open the root directory: %w", err)
	}
	f := files{root: root, path: filepath.Clean(path)}
	if err := root.MkdirAll(recordsDir, 0o700); err != nil {
		return files{}, errors.Join(fmt.Errorf("make the directory of CSI records: %w", err), root.Close())
	}
	return f, nil
}

// abs is a path as drivers see it.
func (f files) abs(path string) string { return filepath.Join(f.path, path) }

func (f files) mkdir(path string) error {
	if err := f.root.MkdirAll(path, dirMode); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return nil
}

// remove removes a file or an empty directory; a missing one is fine.
func (f files) remove(path string) error {
	err := f.root.Remove(path)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s is not empty though its volume is gone: look at what is there and remove it", f.abs(path))
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s is still mounted though its driver says that the volume is gone: unmount it", f.abs(path))
	}
	return err
}

// writeData leaves a vol_data.json beside a volume.
func (f files) writeData(dir string, d volData) error {
	if err := f.mkdir(dir); err != nil {
		return err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	return f.replace(filepath.Join(dir, dataFile), append(text, '\n'), 0o640)
}

func (f files) readData(dir string) (d volData, err error) {
	text, err := f.root.ReadFile(filepath.Join(dir, dataFile))
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil || d.Driver == "" || d.Handle == "" {
		return d, fmt.Errorf("%s names no driver and handle: %w", f.abs(filepath.Join(dir, dataFile)), err)
	}
	return d, nil
}

// replace puts a file into place at once, surely on the disk.
func (f files) replace(path string, text []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	file, err := f.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", f.abs(path), err)
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = f.root.Rename(tmp, path)
	}
	if err == nil {
		err = f.sync(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.abs(path), err)
	}
	return nil
}

func (f files) sync(dir string) error {
	d, err := f.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// sealed is a record as it lies on the disk.
type sealed struct {
	Sum    string          `json:"sum"`
	Record json.RawMessage `json:"record"`
}

func recordPath(k key) string {
	return filepath.Join(recordsDir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(k.driver+"\x00"+k.handle))))
}

// note writes a record.
func (f files) note(r *record) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return f.replace(recordPath(r.key()), seal(body), 0o600)
}

// seal adds the checksum to a record.
func seal(body []byte) []byte {
	return fmt.Appendf(nil, "{\"sum\":\"%x\",\"record\":%s}\n", sha256.Sum256(body), body)
}

// forget removes a record.
func (f files) forget(k key) error {
	if err := f.remove(recordPath(k)); err != nil {
		return fmt.Errorf("remove the record of CSI volume %s: %w", k, err)
	}
	return f.sync(recordsDir)
}

// records reads all records. One that cannot be read is set aside: the kubelet's files say most of it too.
func (f files) records(trouble func(path string, err error)) ([]*record, error) {
	names, err := f.names(recordsDir)
	if err != nil {
		return nil, fmt.Errorf("list the CSI records: %w", err)
	}
	var all []*record
	for _, name := range names {
		path := filepath.Join(recordsDir, name)
		switch {
		case strings.HasSuffix(name, ".new"): // of a write that a crash has cut
			if err := f.remove(path); err != nil {
				return nil, err
			}
			continue
		case !strings.HasSuffix(name, ".json"):
			continue
		}
		r, err := f.record(path)
		if err != nil {
			trouble(f.abs(path), errors.Join(err, f.root.Rename(path, path+".bad")))
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

func (f files) record(path string) (*record, error) {
	text, err := f.root.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseRecord(text)
}

func parseRecord(text []byte) (*record, error) {
	var s sealed
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("record is no JSON: %w", err)
	}
	if s.Sum != fmt.Sprintf("%x", sha256.Sum256(s.Record)) {
		return nil, errors.New("record does not match its checksum")
	}
	r := &record{}
	if err := json.Unmarshal(s.Record, r); err != nil {
		return nil, fmt.Errorf("record is not understood: %w", err)
	}
	if err := errors.Join(checkName("CSI driver", r.Driver), checkPath(r.Staging)); err != nil || r.Handle == "" {
		return nil, fmt.Errorf("record names no volume: %w", err)
	}
	for id, u := range r.Uses {
		if u == nil || id != useID(u.Pod, u.Name) {
			return nil, fmt.Errorf("record has a claim %q of nobody", id)
		}
		if err := errors.Join(checkName("pod UID", string(u.Pod)), checkName("volume", u.Name), checkPath(u.Target)); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func checkPath(path string) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) != path || path == "." {
		return fmt.Errorf("path %q does not lie below the root directory", path)
	}
	return nil
}

// names lists a directory; a missing one is empty.
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

// mounted says whether a path is the top of a mount. What cannot be looked at any more, such as the mount of a daemon that
// is gone, is one.
func (f files) mounted(path string) bool {
	parent, err := f.root.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer parent.Close()
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err = unix.Statx(int(parent.Fd()), filepath.Base(path), flags, unix.STATX_TYPE, &st)
	if err != nil {
		return !errors.Is(err, unix.ENOENT)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// exists says whether there is anything at a path.
func (f files) exists(path string) bool {
	_, err := f.root.Lstat(path)
	return err == nil
}

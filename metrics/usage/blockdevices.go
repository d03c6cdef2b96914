package usage

import (
	"bytes"
	"cmp"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/nodelet/nodelet/metrics"
)

// blockDevice is a block device of the machine with what the kernel has counted since the boot.
type blockDevice struct {
	// path is the path of the kernel in /dev, mountedAs that by which it is mounted; the same if it is not.
	path, mountedAs string
	major, minor    uint64
	// mount is the first mount of a file system on it; nil: it is not mounted, or a loop device.
	mount  *mountinfo.Info
	counts [countsOfDevice]uint64
}

// The counts of a block device, in the order of /proc/diskstats. Times are in milliseconds.
const (
	readsDone = iota
	readsMerged
	sectorsRead
	readTime
	writesDone
	writesMerged
	sectorsWritten
	writeTime
	inProgress
	busyTime
	weightedTime
	countsOfDevice
)

// sectorSize is the unit of the kernel's sectors in bytes, whatever the device has.
const sectorSize = 512

// realRootDir returns the agent's root directory as the mount table has it: without symbolic links.
func (c *Collector) realRootDir() string {
	if dir, err := filepath.EvalSymlinks(c.cfg.RootDir); err == nil {
		return dir
	}
	return c.cfg.RootDir
}

// readBlockDevices returns the block devices of the machine, and the mount that a directory is on.
func readBlockDevices(dir string) (all []blockDevice, on *mountinfo.Info) {
	withFile("/proc/diskstats", func(text []byte) { all = parseDiskStats(text) })
	mounts, _ := mountinfo.GetMounts(nil)
	return all, findMounted(all, mounts, dir)
}

// parseDiskStats parses lines such as "8 0 sda 1 2 3 4 5 6 7 8 9 10 11". Later kernels add numbers at the end.
func parseDiskStats(text []byte) (all []blockDevice) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 3+countsOfDevice {
			continue
		}
		major, okMajor := parseUint(fields[0])
		minor, okMinor := parseUint(fields[1])
		if !okMajor || !okMinor {
			continue
		}
		path := "/dev/" + string(fields[2])
		d := blockDevice{path: path, mountedAs: path, major: major, minor: minor}
		for i := range d.counts {
			d.counts[i], _ = parseUint(fields[3+i])
		}
		all = append(all, d)
	}
	return all
}

// findMounted finds the devices among the mounts: by number, or by path, because a file system on several devices has a
// number of its own. It returns the mount that a directory is on, nil if there is none.
func findMounted(all []blockDevice, mounts []*mountinfo.Info, dir string) (on *mountinfo.Info) {
	sources, numbers := map[string]*mountinfo.Info{}, map[[2]uint64]*mountinfo.Info{}
	for _, m := range mounts {
		if within(dir, m.Mountpoint) && (on == nil || len(m.Mountpoint) >= len(on.Mountpoint)) {
			on = m
		}
		if sources[m.Source] == nil {
			sources[m.Source] = m
		}
		if number := [2]uint64{uint64(m.Major), uint64(m.Minor)}; numbers[number] == nil {
			numbers[number] = m
		}
	}
	for i := range all {
		d := &all[i]
		m := cmp.Or(numbers[[2]uint64{d.major, d.minor}], sources[d.path])
		if m == nil || strings.HasPrefix(d.path, "/dev/loop") {
			continue
		}
		d.mount = m
		if m == sources[m.Source] { // else another device has this path
			d.mountedAs = m.Source
		}
	}
	return on
}

// within reports whether a path is a directory or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// addTo adds the device to what a cgroup has read and written, unless that has it.
func (d *blockDevice) addTo(all []DeviceIO) []DeviceIO {
	before := len(all)
	all, use := device(all, d.major, d.minor)
	if len(all) > before {
		use.Reads, use.Writes = d.counts[readsDone], d.counts[writesDone]
		use.ReadBytes, use.WriteBytes = d.counts[sectorsRead]*sectorSize, d.counts[sectorsWritten]*sectorSize
	}
	return all
}

// ofDevice returns a family that only the root cgroup has: one of the counts of the devices with a mounted file system.
func ofDevice(name, help string, kind metrics.Kind, count int) family {
	unit := 1.0
	if strings.HasSuffix(name, "_seconds_total") {
		unit = 1000
	}
	return family{name: name, help: help, kind: kind, write: func(t *metrics.Text, g *group) {
		for i := range g.devices {
			if d := &g.devices[i]; d.mount != nil {
				t.Rendered(float64(d.counts[count])/unit, 0, g.labels, "device", d.mountedAs)
			}
		}
	}}
}

// mountedFS is a file system of the machine.
type mountedFS struct {
	device string
	fileSystem
}

// mountedFSs returns the file systems on block devices, and that of the agent's root directory, whose mount is root. It
// leaves out volumes, which have metrics of their own, and file systems that a program serves, which may not answer.
func (c *Collector) mountedFSs(devices []blockDevice, root *mountinfo.Info) []mountedFS {
	var all []mountedFS
	volumes := c.realRootDir() + "/"
	add := func(device, point string) {
		if f := readFileSystem(point); f.known {
			all = append(all, mountedFS{device, f})
		}
	}
	for i := range devices {
		d := &devices[i]
		if d.mount == nil || strings.HasPrefix(d.mount.FSType, "fuse") || strings.HasPrefix(d.mount.Mountpoint, volumes) {
			continue
		}
		add(d.mountedAs, d.mount.Mountpoint)
		if root != nil && d.mount.Source == root.Source {
			root = nil
		}
	}
	if root != nil {
		add(root.Source, root.Mountpoint)
	}
	return all
}

// ofFileSystem returns a family that only the root cgroup has: one of the figures of the mounted file systems.
func ofFileSystem(name, help string, value func(*Figures) uint64) family {
	return family{name: name, help: help, kind: metrics.KindGauge, write: func(t *metrics.Text, g *group) {
		for i := range g.fileSystems {
			f := &g.fileSystems[i]
			t.Rendered(float64(value(&f.Figures)), 0, g.labels, "device", f.device)
		}
	}}
}

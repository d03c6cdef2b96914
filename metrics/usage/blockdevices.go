package usage

import (
	"bytes"
	"strings"

	"github.com/nodelet/nodelet/metrics"
)

// blockDevice is a block device of the machine with what the kernel has counted since the boot.
type blockDevice struct {
	// path is the path in /dev.
	path         string
	major, minor uint64
	// mounted reports whether a file system on it is mounted. It is false for loop devices.
	mounted bool
	counts  [countsOfDevice]uint64
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

func readBlockDevices() (all []blockDevice) {
	_ = withFile("/proc/diskstats", func(text []byte) { all = parseDiskStats(text) })
	_ = withFile("/proc/self/mountinfo", func(text []byte) { findMounted(all, text) })
	return all
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
		d := blockDevice{path: "/dev/" + string(fields[2]), major: major, minor: minor}
		for i := range d.counts {
			d.counts[i], _ = parseUint(fields[3+i])
		}
		all = append(all, d)
	}
	return all
}

// findMounted finds the devices in the lines of a mountinfo file: by number, or by path, because a file system on
// several devices has a number of its own.
func findMounted(all []blockDevice, mountinfo []byte) {
	sources, numbers := map[string]bool{}, map[[2]uint64]bool{}
	for line := range bytes.Lines(mountinfo) {
		mount, superblock, _ := bytes.Cut(line, []byte(" - "))
		if fields := bytes.Fields(mount); len(fields) > 2 {
			major, minor, _ := parseDevice(fields[2])
			numbers[[2]uint64{major, minor}] = true
		}
		if fields := bytes.Fields(superblock); len(fields) > 1 {
			sources[string(fields[1])] = true
		}
	}
	for i := range all {
		d := &all[i]
		known := sources[d.path] || numbers[[2]uint64{d.major, d.minor}]
		d.mounted = known && !strings.HasPrefix(d.path, "/dev/loop")
	}
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
			if d := &g.devices[i]; d.mounted {
				t.Rendered(float64(d.counts[count])/unit, 0, g.labels, "device", d.path)
			}
		}
	}}
}

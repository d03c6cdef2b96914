package iscsi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// deviceTimeout is how long a LUN may take to become a device after the kernel was asked to scan for it.
	deviceTimeout = 30 * time.Second
	// lookAgain bounds how late a change is seen without an event.
	lookAgain = 2 * time.Second
	// multipathTimeout is how long multipathd may take to join the paths of a LUN.
	multipathTimeout = 10 * time.Second
)

// devices finds the block devices of sessions and removes them.
type devices struct {
	cfg   *Config
	write func(file, text string) error // into sysfs
}

// block returns the name of a LUN's block device in a session, such as sdb; empty if there is none yet.
func (s *session) block(lun string) string {
	found, _ := filepath.Glob(filepath.Join(s.device, "target*", "*:"+lun, "block", "*"))
	if len(found) == 0 {
		return ""
	}
	return filepath.Base(found[0])
}

// controllers are the SCSI types of what targets show beside their disks: controllers and enclosures. They are never in
// use.
var controllers = []string{"12", "13"}

// othersThan returns the devices in a session besides one LUN's.
func (s *session) othersThan(lun string) (all []string, err error) {
	found, err := filepath.Glob(filepath.Join(s.device, "target*", "*:*:*:*"))
	for _, dir := range found {
		if !strings.HasSuffix(dir, ":"+lun) && !slices.Contains(controllers, value(filepath.Join(dir, "type"))) {
			all = append(all, filepath.Base(dir))
		}
	}
	return all, err
}

// awaitDevice has the kernel scan a session for the LUN, waits for its device and returns its name.
func (v *devices) awaitDevice(ctx context.Context, s *session, lun string) (string, error) {
	events, err := v.cfg.Events()
	if err != nil {
		return "", err
	}
	defer events.Close()
	if s.block(lun) == "" {
		if err := v.scan(s, lun); err != nil {
			return "", err
		}
	}
	name, err := await(ctx, events, deviceTimeout, func() string {
		if name := s.block(lun); name != "" && v.opens(name) {
			return name
		}
		return ""
	})
	if err == nil && name == "" {
		err = fmt.Errorf("iscsi: LUN %s did not become a device within %s: "+
			"check that the target has it and exports it to this node", lun, deviceTimeout)
	}
	return name, err
}

// opens reports whether a device can be opened. Its node in /dev exists a little earlier.
func (v *devices) opens(name string) bool {
	fd, err := unix.Open(filepath.Join(v.cfg.Dev, name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// scan has the kernel scan for one LUN. Channel and target of a session are 0.
func (v *devices) scan(s *session, lun string) error {
	file := filepath.Join(v.cfg.Sys, "class/scsi_host", s.host, "scan")
	if err := v.write(file, "0 0 "+lun); err != nil {
		return fmt.Errorf("iscsi: scan for LUN %s: %w", lun, err)
	}
	return nil
}

// write writes into an existing file of sysfs.
func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// await calls look at each event, and now and then without one, until look returns a name or timeout ends; then it
// returns none.
func await(ctx context.Context, events Events, timeout time.Duration, look func() string) (string, error) {
	bound, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if found := look(); found != "" {
			return found, nil
		}
		if bound.Err() != nil {
			return "", ctx.Err()
		}
		next, done := context.WithTimeout(bound, lookAgain)
		err := events.Next(next)
		ended := next.Err() != nil
		done()
		if err != nil && !ended {
			return "", err
		}
	}
}

// multipath returns the device that multipathd has made of a path, such as dm-0; empty if there is none.
func (v *devices) multipath(name string) string {
	holders, _ := os.ReadDir(filepath.Join(v.cfg.Sys, "class/block", name, "holders"))
	for _, h := range holders {
		if strings.HasPrefix(value(filepath.Join(v.cfg.Sys, "class/block", h.Name(), "dm/uuid")), "mpath-") {
			return h.Name()
		}
	}
	return ""
}

// joined returns the device to use for a LUN with these paths: the one that multipathd makes of them, or else the
// first. If the volume has several portals and the node has multipathd, it waits for that.
func (v *devices) joined(ctx context.Context, l *LUN, names []string) (string, error) {
	look := func() string {
		for _, name := range names {
			if m := v.multipath(name); m != "" {
				return m
			}
		}
		return ""
	}
	found := look()
	if _, err := exec.LookPath("multipath"); found == "" && err == nil && len(l.Portals) > 1 {
		events, err := v.cfg.Events()
		if err != nil {
			return "", err
		}
		defer events.Close()
		if found, err = await(ctx, events, multipathTimeout, look); err != nil {
			return "", err
		}
	}
	if found == "" {
		found = names[0]
	}
	return filepath.Join(v.cfg.Dev, found), nil
}

// drop removes the device of a LUN from a session, unless it is in use.
func (v *devices) drop(ctx context.Context, s *session, lun string) error {
	name := s.block(lun)
	if name == "" {
		return nil
	}
	if m := v.multipath(name); m != "" {
		// multipath refuses a device in use, and removes the unused devices of its partitions. Before version 0.9.8 it
		// knows the name of the map alone, not that of the device, such as dm-0.
		m = value(filepath.Join(v.cfg.Sys, "class/block", m, "dm/name"))
		said, err := exec.CommandContext(ctx, "multipath", "-f", m).CombinedOutput()
		if err != nil && v.multipath(name) != "" {
			return fmt.Errorf("iscsi: multipath -f %s: %w: %s: if it is in use, see lsblk and findmnt",
				m, err, strings.TrimSpace(string(said)))
		}
	}
	if err := v.free(name); err != nil {
		return err
	}
	err := v.write(filepath.Join(v.cfg.Sys, "class/block", name, "device/delete"), "1")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("iscsi: remove device %s: %w", name, err)
	}
	return nil
}

// free returns an error if a device is mounted or held by another device, or if that cannot be found out.
func (v *devices) free(name string) error {
	path := filepath.Join(v.cfg.Dev, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("iscsi: %s is still in use, mounted or part of another device: see lsblk and findmnt", path)
	case slices.Contains(notThere, err):
		return nil
	}
	return fmt.Errorf("iscsi: find out whether %s is in use: %w", path, err)
}

// notThere are the errors of opening a device that is gone or whose session is dead.
var notThere = []error{unix.ENOENT, unix.ENXIO, unix.ENODEV, unix.EIO, unix.ENOMEDIUM}

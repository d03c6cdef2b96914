package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// session is what the kernel has of a login to one portal of a target by one interface.
type session struct {
	id     string // its number, for iscsiadm
	device string // its directory in sysfs
	host   string // the SCSI host, such as host3
}

// find looks for the session with a portal; nil where there is none.
func (d *Driver) find(l *LUN, portal string) (*session, error) {
	all, err := d.sessions(l)
	return all[portal], err
}

// sessions are those of a LUN's target by the LUN's interface, by portal: the address that was asked for, and the one that answered.
func (d *Driver) sessions(l *LUN) (map[string]*session, error) {
	class := filepath.Join(d.cfg.Sys, "class/iscsi_session")
	entries, err := os.ReadDir(class)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // without the kernel's module there is no session
		return nil, err
	}
	found := map[string]*session{}
	for _, e := range entries {
		dir := filepath.Join(class, e.Name())
		if word(filepath.Join(dir, "targetname")) != l.Iqn || word(filepath.Join(dir, "ifacename")) != l.Iface {
			continue
		}
		device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if err != nil {
			continue // it is just going
		}
		s := &session{id: strings.TrimPrefix(e.Name(), "session"), device: device, host: filepath.Base(filepath.Dir(device))}
		for _, portal := range portalsOf(device) {
			found[portal] = s
		}
	}
	return found, nil
}

// portalsOf are the names of the portal that a session is connected to.
func portalsOf(device string) (all []string) {
	connections, _ := filepath.Glob(filepath.Join(device, "connection*/iscsi_connection/connection*"))
	for _, c := range connections {
		for _, prefix := range []string{"", "persistent_"} {
			address := strings.Trim(word(filepath.Join(c, prefix+"address")), "[]")
			if address != "" {
				all = append(all, net.JoinHostPort(address, word(filepath.Join(c, prefix+"port"))))
			}
		}
	}
	return all
}

// word is what a file of sysfs says; empty where it says nothing.
func word(file string) string {
	text, err := os.ReadFile(file)
	if said := strings.TrimSpace(string(text)); err == nil && said != "(null)" && said != "<NULL>" {
		return said
	}
	return ""
}

// login makes a session with a portal where there is none. The caller holds the target's lock.
func (d *Driver) login(ctx context.Context, l *LUN, portal string, secrets map[string]string) (*session, error) {
	if err := d.note(l, portal, made); err != nil {
		return nil, err
	}
	if err := d.record(ctx, l, portal, secrets); err != nil {
		return nil, err
	}
	if err := admin(ctx, []int{exitExists}, l.node(portal, "--login")...); err != nil {
		return nil, err
	}
	s, err := d.find(l, portal)
	if err == nil && s == nil {
		err = fmt.Errorf("iscsi: iscsiadm has logged in to %s at %s, but the kernel shows no such session", l.Iqn, portal)
	}
	return s, err
}

// What is noted of a session: who has made it.
const (
	made    = "made"    // this agent, or a kubelet before it
	foreign = "foreign" // somebody else, who ends it
)

func (d *Driver) notePath(l *LUN, portal string) string {
	return filepath.Join(d.cfg.State, l.Iqn+","+portal+","+l.Iface)
}

func (d *Driver) note(l *LUN, portal, who string) error {
	if err := os.MkdirAll(d.cfg.State, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(d.notePath(l, portal), []byte(who), 0o600)
}

func (d *Driver) noted(l *LUN, portal string) string { return word(d.notePath(l, portal)) }

func (d *Driver) forget(l *LUN, portal string) error {
	if err := os.Remove(d.notePath(l, portal)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// guess tells who made a session that nothing is noted of: a kubelet, where it has left the directory of a LUN of this target.
func (d *Driver) guess(l *LUN, staging string) string {
	if own, err := d.load(staging); err == nil && own != nil && own.By == "" || len(d.others(l, staging)) > 0 {
		return made
	}
	return foreign
}

// others are the staging directories of other LUNs of the target.
func (d *Driver) others(l *LUN, staging string) (all []string) {
	for _, pattern := range []string{"iface-*/*", "volumeDevices/iface-*/*"} {
		found, _ := filepath.Glob(filepath.Join(d.cfg.Dir, pattern))
		for _, dir := range found {
			if dir != staging && strings.Contains(filepath.Base(dir), "-"+l.Iqn+"-lun-") {
				all = append(all, dir)
			}
		}
	}
	return all
}

// leave ends the session with a portal, if this agent may end it and no other device is in it. The caller holds the target's lock.
func (d *Driver) leave(ctx context.Context, l *LUN, portal string) error {
	s, err := d.find(l, portal)
	if err != nil {
		return err
	}
	if s != nil {
		if busy, err := s.othersThan(l.Lun); err != nil || len(busy) > 0 {
			return err
		}
		if err := admin(ctx, []int{exitNoSession, exitNoObjects}, "-m", "session", "-r", s.id, "--logout"); err != nil {
			return err
		}
	}
	// The record may be of another interface by now, whose session still uses it.
	if err := tidy(ctx, []int{exitNoObjects, exitExists}, l.node(portal, "-o", "delete")...); err != nil {
		return err
	}
	return d.forget(l, portal)
}

// leaveForeign forgets a session that is somebody else's with the last LUN in it.
func (d *Driver) leaveForeign(l *LUN, staging, portal string) error {
	if len(d.others(l, staging)) > 0 {
		return nil
	}
	return d.forget(l, portal)
}

// mayEnd: the session with a portal was made by this agent or a kubelet, as far as anybody knows.
func (d *Driver) mayEnd(l *LUN, portal string) bool {
	switch d.noted(l, portal) {
	case made:
		return true
	case foreign:
		return false
	}
	return l.By == ""
}

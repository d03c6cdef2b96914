package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/host/atomicfile"
)

// initiator logs in to targets and out again, and keeps the records of that: iscsiadm's, and who created a session.
type initiator struct {
	cfg *Config
}

// session is the kernel's state of a login to one portal of a target by one interface.
type session struct {
	id     string // its number, for iscsiadm
	device string // its directory in sysfs
	host   string // the SCSI host, such as host3
}

// find returns the session with a portal; nil if there is none.
func (i *initiator) find(l *LUN, portal string) (*session, error) {
	all, err := i.sessions(l)
	return all[portal], err
}

// sessions returns the sessions of a LUN's target by the LUN's interface. The keys are portals: both the address of the
// login and the one that answered.
func (i *initiator) sessions(l *LUN) (map[string]*session, error) {
	class := filepath.Join(i.cfg.Sys, "class/iscsi_session")
	entries, err := os.ReadDir(class)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // without the kernel's module there is no session
		return nil, err
	}
	found := map[string]*session{}
	for _, e := range entries {
		dir := filepath.Join(class, e.Name())
		if value(filepath.Join(dir, "targetname")) != l.Iqn || value(filepath.Join(dir, "ifacename")) != l.Iface {
			continue
		}
		device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if err != nil {
			continue // it is just ending
		}
		s := &session{id: strings.TrimPrefix(e.Name(), "session"), device: device, host: filepath.Base(filepath.Dir(device))}
		for _, portal := range portalsOf(device) {
			found[portal] = s
		}
	}
	return found, nil
}

// portalsOf returns the names of the portal that a session is connected to.
func portalsOf(device string) (all []string) {
	connections, _ := filepath.Glob(filepath.Join(device, "connection*/iscsi_connection/connection*"))
	for _, c := range connections {
		for _, prefix := range []string{"", "persistent_"} {
			address := strings.Trim(value(filepath.Join(c, prefix+"address")), "[]")
			if address != "" {
				all = append(all, net.JoinHostPort(address, value(filepath.Join(c, prefix+"port"))))
			}
		}
	}
	return all
}

// value returns the content of a file of sysfs; empty if there is none.
func value(file string) string {
	text, err := os.ReadFile(file)
	if said := strings.TrimSpace(string(text)); err == nil && said != "(null)" && said != "<NULL>" {
		return said
	}
	return ""
}

// login creates a session with a portal that has none. The caller holds the target's lock.
func (i *initiator) login(ctx context.Context, l *LUN, portal string, secrets map[string]string) (*session, error) {
	if err := i.setCreator(l, portal, made); err != nil {
		return nil, err
	}
	err := i.record(ctx, l, portal, secrets)
	if err == nil {
		err = admin(ctx, []int{exitExists}, l.node(portal, "--login")...)
	}
	if err != nil {
		return nil, errors.Join(err, i.loginFailed(ctx, l, portal))
	}
	s, err := i.find(l, portal)
	if err == nil && s == nil {
		err = fmt.Errorf("iscsi: iscsiadm has logged in to %s at %s, but the kernel shows no such session", l.Iqn, portal)
	}
	return s, err
}

// loginFailed forgets a login that has failed: a session that comes later is another program's. After a timeout nothing
// is forgotten: iscsid may still be at it.
func (i *initiator) loginFailed(ctx context.Context, l *LUN, portal string) error {
	s, err := i.find(l, portal)
	if err != nil || s != nil || ctx.Err() != nil {
		return err
	}
	return i.dropRecord(ctx, l, portal)
}

// Who has created a session.
const (
	made    = "made"    // this agent, or a kubelet before it
	foreign = "foreign" // another program, which ends it
)

func (i *initiator) creatorPath(l *LUN, portal string) string {
	return filepath.Join(i.cfg.State, l.Iqn+","+portal+","+l.Iface)
}

func (i *initiator) setCreator(l *LUN, portal, who string) error {
	if err := os.MkdirAll(i.cfg.State, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(i.creatorPath(l, portal), []byte(who), 0o600)
}

func (i *initiator) creator(l *LUN, portal string) string { return value(i.creatorPath(l, portal)) }

func (i *initiator) forget(l *LUN, portal string) error {
	return atomicfile.Remove(i.creatorPath(l, portal))
}

// guess returns the creator of a session without a record: a kubelet, if it has staged a LUN of this target by the same
// portal and interface. This agent records its own sessions; without a record there are none, as after a reboot.
func (d *Driver) guess(l *LUN, staging, portal string) string {
	for _, dir := range append(d.others(l, staging), staging) {
		staged, err := d.load(dir)
		if err == nil && staged != nil && staged.By == "" && staged.Iface == l.Iface &&
			slices.Contains(staged.Portals, portal) {
			return made
		}
	}
	return foreign
}

// others returns the staging directories of other LUNs of the target.
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

// leave ends the session with a portal, if this agent may end it and no other device is in it. The caller holds the
// target's lock.
func (i *initiator) leave(ctx context.Context, l *LUN, portal string) error {
	s, err := i.find(l, portal)
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
	return i.dropRecord(ctx, l, portal)
}

// dropRecord removes iscsiadm's record of a portal without a session, and that of who created the session.
func (i *initiator) dropRecord(ctx context.Context, l *LUN, portal string) error {
	// The record may have become another interface's, whose session uses it.
	if err := tidy(ctx, []int{exitNoObjects, exitExists}, l.node(portal, "-o", "delete")...); err != nil {
		return err
	}
	return i.forget(l, portal)
}

// leaveForeign forgets the creator of a session of another program when the last LUN in it is unstaged.
func (d *Driver) leaveForeign(l *LUN, staging, portal string) error {
	if len(d.others(l, staging)) > 0 {
		return nil
	}
	return d.forget(l, portal)
}

// mayEnd reports whether this agent or a kubelet has created a session with a portal, as far as is known, or the record
// of one that a reboot has ended.
func (i *initiator) mayEnd(l *LUN, portal string, s *session) bool {
	switch i.creator(l, portal) {
	case made:
		return true
	case foreign:
		return false
	}
	return l.By == "" || s == nil && i.ownRecord(l, portal)
}

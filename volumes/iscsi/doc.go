// Package iscsi has LUNs of iSCSI targets on this node, and mounts them.
//
// It works as the node service of a CSI driver does, for the csi room, which keeps the records of volumes and calls again what a crash has
// cut: every call may be repeated. It owns the sessions that it has made, the devices in them, and what it mounts. Nothing is kept in
// memory: the kernel knows the sessions and devices, and a LUN's note lies in its staging directory (iscsi.json, the kubelet's own),
// written before the login. A note in State tells, in one boot, the sessions that this agent has made from those of others, which it uses
// but never ends.
//
// A session is shared by all LUNs of a target, and ended with the device of the last one. It never looks for targets or LUNs (discovery,
// scans) but for those that a volume names, never writes over what a device holds, and gives no secret to a command line or a log.
//
// It runs the node's own iscsiadm, and mount, blkid and mkfs by way of volumes/disk. The csi room calls it, one call at a time for
// one LUN.
package iscsi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/internal/keylock"
)

// Plugin is the kubelet's name of this kind of volume.
const Plugin = "kubernetes.io/iscsi"

// Config says where things are. Empty fields mean the usual places.
type Config struct {
	Dir   string       // what the plugin keeps below the agent's root directory; must be given
	State string       // notes about sessions; they must not survive a reboot
	Sys   string       // where sysfs is mounted
	Dev   string       // the devices
	DBs   []string     // where iscsiadm may keep its records of targets
	Log   *slog.Logger // nil: nothing is logged
	// Events opens word of new devices. Nil: the kernel's.
	Events func() (Events, error)
}

// Driver is the node service for LUNs. What it does not have of the service is never called.
type Driver struct {
	csipb.NodeClient
	cfg     Config
	write   func(file, text string) error // into sysfs
	targets keylock.Keyed                 // by name of the target: who logs in, logs out, or counts devices
}

// New looks at nothing yet: iscsiadm is missed when it is needed.
func New(cfg Config) *Driver {
	for field, usual := range map[*string]string{&cfg.State: "/run/nodelet/iscsi", &cfg.Sys: "/sys", &cfg.Dev: "/dev"} {
		if *field == "" {
			*field = usual
		}
	}
	if cfg.DBs == nil {
		cfg.DBs = []string{"/etc/iscsi", "/var/lib/iscsi"}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Events == nil {
		cfg.Events = kernelEvents
	}
	return &Driver{cfg: cfg, write: write}
}

// LUN is one LUN as a volume names it. Its JSON form is the kubelet's iscsi.json.
type LUN struct {
	VolName       string
	Portals       []string
	Iqn           string
	Lun           string
	InitIface     string
	Iface         string
	InitiatorName string
	// By is the agent that wrote the note; the kubelet says nothing.
	By string `json:",omitempty"`
	// CHAP: the session needs a password. ReadOnly: nothing is written to the LUN, be it a journal.
	CHAP     bool `json:",omitempty"`
	ReadOnly bool `json:",omitempty"`
}

const byNodelet = "nodelet"

// Of is the LUN of a pod's volume.
func Of(name string, s *corev1.ISCSIVolumeSource) *LUN {
	l := &LUN{VolName: name, Portals: portals(s.TargetPortal, s.Portals), Iqn: s.IQN, Lun: strconv.Itoa(int(s.Lun)), InitIface: s.ISCSIInterface,
		CHAP: s.SessionCHAPAuth, By: byNodelet}
	if s.InitiatorName != nil {
		l.InitiatorName = *s.InitiatorName
	}
	if l.InitIface == "" {
		l.InitIface = "default"
	}
	l.Iface = l.InitIface
	if l.InitiatorName != "" { // an interface of its own, as the kubelet calls it
		l.Iface = l.Portals[0] + ":" + name
	}
	return l
}

const defaultPort = "3260"

func portals(first string, more []string) []string {
	var all []string
	seen := map[string]bool{}
	for _, p := range append([]string{first}, more...) {
		if !strings.Contains(p, ":") || strings.HasSuffix(p, "]") {
			p += ":" + defaultPort
		}
		if !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

// Handle is the LUN's name on the node, as the kubelet has it in volumesInUse.
func (l *LUN) Handle() string { return l.Portals[0] + ":" + l.Iqn + ":" + l.Lun }

// Directory is where the LUN is staged, below the plugin's directory.
func (l *LUN) Directory() string {
	return filepath.Join("iface-"+l.Iface, l.Portals[0]+"-"+l.Iqn+"-lun-"+l.Lun)
}

// HandleOf tells the handle of the LUN that is staged in a directory.
func HandleOf(directory string) (string, bool) {
	name := filepath.Base(directory)
	at := strings.LastIndex(name, "-lun-")
	if at < 0 || !strings.HasPrefix(directory, "iface-") {
		return "", false
	}
	target, lun := name[:at], name[at+len("-lun-"):]
	for _, kind := range []string{"-iqn.", "-eui.", "-naa."} {
		if portal, iqn, ok := strings.Cut(target, kind); ok {
			return portal + ":" + kind[1:] + iqn + ":" + lun, true
		}
	}
	return "", false
}

const attribute = "lun"

// Attributes is the LUN as the csi room hands it to NodeStageVolume.
func (l *LUN) Attributes() map[string]string {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // plain data
	}
	return map[string]string{attribute: string(text)}
}

// check refuses what cannot be put into paths and arguments: names come from the API and from files on disk.
func (l *LUN) check() error {
	if len(l.Portals) == 0 {
		return errors.New("iscsi: the volume names no portal")
	}
	for what, name := range map[string]string{"iqn": l.Iqn, "iscsiInterface": l.Iface, "interface to copy": l.InitIface} {
		if name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, "/ \t\n\x00") || strings.Contains(name, "..") {
			return fmt.Errorf("iscsi: %s %q is not valid", what, name)
		}
	}
	if strings.ContainsAny(l.InitiatorName, " \t\n\x00") {
		return fmt.Errorf("iscsi: initiatorName %q is not valid", l.InitiatorName)
	}
	for _, p := range l.Portals {
		if host, port, err := net.SplitHostPort(p); err != nil || strings.ContainsAny(host+port, "/ \t\n\x00") || strings.HasPrefix(host, "-") {
			return fmt.Errorf("iscsi: portal %q is not of the form host:port", p)
		}
	}
	if n, err := strconv.Atoi(l.Lun); err != nil || n < 0 {
		return fmt.Errorf("iscsi: lun %q is not a number", l.Lun)
	}
	return nil
}

const noteFile = "iscsi.json"

// save leaves the LUN's note where the kubelet looks for it.
func (l *LUN) save(staging string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return atomicfile.WriteSynced(filepath.Join(staging, noteFile), text, 0o600)
}

// load reads the note of a staging directory; nil where there is none.
func load(staging string) (*LUN, error) {
	text, err := os.ReadFile(filepath.Join(staging, noteFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l := &LUN{}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(staging, noteFile), err)
	}
	return l, l.check()
}

// lock keeps others from the target meanwhile.
func (d *Driver) lock(ctx context.Context, l *LUN) (unlock func(), err error) {
	return d.targets.Lock(ctx, l.Iqn)
}

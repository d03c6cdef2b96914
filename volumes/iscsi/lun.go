package iscsi

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// LUN is one LUN as a volume names it. Its JSON form is the kubelet's iscsi.json.
type LUN struct {
	VolName       string
	Portals       []string
	Iqn           string
	Lun           string
	InitIface     string
	Iface         string
	InitiatorName string
	// By is the agent that wrote the state file; empty for a kubelet.
	By string `json:",omitempty"`
	// CHAP: the session needs a password. ReadOnly: nothing is written to the LUN, not even its journal.
	CHAP     bool `json:",omitempty"`
	ReadOnly bool `json:",omitempty"`
}

const byNodelet = "nodelet"

// Of returns the LUN of a pod's volume, or an error for names that must not become part of a path or an argument.
func Of(name string, s *corev1.ISCSIVolumeSource) (*LUN, error) {
	l := &LUN{
		VolName:       name,
		Portals:       portals(s.TargetPortal, s.Portals),
		Iqn:           s.IQN,
		Lun:           strconv.Itoa(int(s.Lun)),
		InitIface:     cmp.Or(s.ISCSIInterface, "default"),
		InitiatorName: ptr.Deref(s.InitiatorName, ""),
		CHAP:          s.SessionCHAPAuth,
		By:            byNodelet,
	}
	l.Iface = l.InitIface
	if l.InitiatorName != "" { // an interface of its own, with the kubelet's name
		l.Iface = l.Portals[0] + ":" + name
	}
	return l, l.check()
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

// Handle is the LUN's name on the node.
func (l *LUN) Handle() string { return l.Portals[0] + ":" + l.Iqn + ":" + l.Lun }

// Directory is where the LUN is staged, below the plugin's directory.
func (l *LUN) Directory() string {
	return filepath.Join("iface-"+l.Iface, l.Portals[0]+"-"+l.Iqn+"-lun-"+l.Lun)
}

// HandleOf returns the handle of the LUN that is staged in a directory.
func HandleOf(directory string) (string, bool) {
	l, ok := parseDirectory(directory)
	return l.Handle(), ok
}

// parseDirectory is the inverse of Directory. It knows the first portal only.
func parseDirectory(directory string) (l *LUN, ok bool) {
	iface, name := filepath.Split(directory)
	l = &LUN{Portals: []string{""}}
	if l.Iface, ok = strings.CutPrefix(filepath.Clean(iface), "iface-"); !ok {
		return l, false
	}
	l.InitIface = l.Iface
	at := strings.LastIndex(name, "-lun-")
	if at < 0 {
		return l, false
	}
	l.Lun = name[at+len("-lun-"):]
	for _, kind := range []string{"-iqn.", "-eui.", "-naa."} {
		if portal, rest, ok := strings.Cut(name[:at], kind); ok {
			l.Portals[0], l.Iqn = portal, kind[1:]+rest
			l.VolName, _ = strings.CutPrefix(l.Iface, portal+":")
			return l, true
		}
	}
	return l, false
}

const attribute = "lun"

// Attributes returns the LUN as package csi passes it to NodeStageVolume.
func (l *LUN) Attributes() map[string]string {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // plain data
	}
	return map[string]string{attribute: string(text)}
}

// unsafe are characters that no name may contain.
const unsafe = "/ \t\n\x00"

// check returns an error for names that cannot be used in paths and arguments: they come from the API and from files on
// disk.
func (l *LUN) check() error {
	if len(l.Portals) == 0 {
		return errors.New("iscsi: the volume names no portal")
	}
	for what, name := range map[string]string{
		"iqn":               l.Iqn,
		"iscsiInterface":    l.Iface,
		"interface to copy": l.InitIface,
	} {
		if name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, unsafe) || strings.Contains(name, "..") {
			return fmt.Errorf("iscsi: %s %q is not valid", what, name)
		}
	}
	if strings.ContainsAny(l.InitiatorName, " \t\n\x00") {
		return fmt.Errorf("iscsi: initiatorName %q is not valid", l.InitiatorName)
	}
	for _, p := range l.Portals {
		host, port, err := net.SplitHostPort(p)
		if err != nil || strings.ContainsAny(host+port, unsafe) || strings.HasPrefix(host, "-") {
			return fmt.Errorf("iscsi: portal %q is not of the form host:port", p)
		}
	}
	if n, err := strconv.Atoi(l.Lun); err != nil || n < 0 {
		return fmt.Errorf("iscsi: lun %q is not a number", l.Lun)
	}
	return nil
}

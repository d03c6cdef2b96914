package iscsi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Exit codes of iscsiadm.
const (
	exitNoSession = 2  // no such session
	exitExists    = 15 // there is a session already
	exitNoObjects = 21 // no record, target, session or portal to work on
)

var errNoAdmin = errors.New("iscsi: there is no iscsiadm on this node: install open-iscsi (iscsi-initiator-utils)")

// tidy runs iscsiadm to remove one of its records. Without iscsiadm there are none.
func tidy(ctx context.Context, fine []int, args ...string) error {
	if err := admin(ctx, fine, args...); !errors.Is(err, errNoAdmin) {
		return err
	}
	return nil
}

// admin runs iscsiadm. The exit codes in fine are no error.
func admin(ctx context.Context, fine []int, args ...string) error {
	_, err := adminOutput(ctx, args...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && slices.Contains(fine, exit.ExitCode()) {
		return nil
	}
	return err
}

// adminOutput runs iscsiadm and returns its output, in which it hides passwords.
func adminOutput(ctx context.Context, args ...string) (string, error) {
	said, err := exec.CommandContext(ctx, "iscsiadm", args...).CombinedOutput()
	switch {
	case err == nil:
		return string(said), nil
	case errors.Is(err, exec.ErrNotFound):
		return "", errNoAdmin
	case ctx.Err() != nil:
		return "", fmt.Errorf("iscsi: iscsiadm %s did not end in time: %w", strings.Join(args, " "), ctx.Err())
	}
	return "", fmt.Errorf("iscsi: iscsiadm %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(said)))
}

// node returns the arguments of a command about the target's record of a portal.
func (l *LUN) node(portal string, command ...string) []string {
	return append([]string{"-m", "node", "-T", l.Iqn, "-p", portal, "-I", l.Iface}, command...)
}

// ownSettings are in each record that this agent creates.
var ownSettings = map[string]string{
	"node.session.scan": "manual",                                   // only the LUN that is asked for
	"node.startup":      "manual", "node.conn[0].startup": "manual", // not at boot
}

// ownRecord reports whether this agent has created the record of a portal, as far as its settings tell.
func (i *initiator) ownRecord(l *LUN, portal string) bool {
	file, err := i.recordFile(l, portal)
	if err != nil {
		return false
	}
	text, err := os.ReadFile(file)
	return err == nil && setLines(string(text), ownSettings) == string(text)
}

// record creates the record that a login uses.
func (i *initiator) record(ctx context.Context, l *LUN, portal string, secrets map[string]string) error {
	settings := maps.Clone(ownSettings)
	if l.CHAP {
		if secrets["node.session.auth.username"] == "" || secrets["node.session.auth.password"] == "" {
			return errors.New("iscsi: chapAuthSession is set, but the volume's secret lacks " +
				"node.session.auth.username or node.session.auth.password")
		}
		settings["node.session.auth.authmethod"] = "CHAP"
		for _, name := range []string{"username", "password", "username_in", "password_in"} {
			if v := secrets["node.session.auth."+name]; v != "" {
				settings["node.session.auth."+name] = v
			}
		}
	}
	for name, v := range settings {
		if strings.ContainsAny(v, "\n\x00") {
			return fmt.Errorf("iscsi: %s of the volume's secret has more than one line", name)
		}
	}
	if err := admin(ctx, nil, l.node(portal, "-o", "new")...); err != nil {
		return err
	}
	return i.configure(l, portal, settings)
}

// configure writes settings into the record that iscsiadm has created. Every process on the node can read the arguments
// of another, so passwords are not passed to iscsiadm but written to its file.
func (i *initiator) configure(l *LUN, portal string, settings map[string]string) error {
	file, err := i.recordFile(l, portal)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	out := setLines(string(text), settings)
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		return fmt.Errorf("iscsi: write iscsiadm's record: %w", err)
	}
	return nil
}

// setLines replaces settings in a record, or adds them before its end.
func setLines(text string, settings map[string]string) string {
	var out, end strings.Builder
	left := map[string]string{}
	maps.Copy(left, settings)
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, " = ")
		if strings.HasPrefix(line, "# END") {
			end.WriteString(line)
		} else if v, ok := left[name]; ok {
			fmt.Fprintf(&out, "%s = %s\n", name, v)
			delete(left, name)
		} else {
			out.WriteString(line)
		}
	}
	for name, v := range left {
		fmt.Fprintf(&out, "%s = %s\n", name, v)
	}
	return out.String() + end.String()
}

// recordFile finds the record of a portal: <address>,<port>, or <address>,<port>,<tag>/<interface> if the target was
// found by discovery.
func (i *initiator) recordFile(l *LUN, portal string) (string, error) {
	host, port, err := net.SplitHostPort(portal)
	if err != nil {
		return "", err
	}
	name := host + "," + port
	for _, db := range i.cfg.DBs {
		dir := filepath.Join(db, "nodes", l.Iqn)
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			file := filepath.Join(dir, e.Name())
			if e.IsDir() {
				file = filepath.Join(file, l.Iface)
			}
			if e.Name() != name && !strings.HasPrefix(e.Name(), name+",") {
				continue
			}
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("iscsi: iscsiadm has no record of %s at %s below %s: does it keep them elsewhere?",
		l.Iqn, portal, strings.Join(i.cfg.DBs, " or "))
}

// cloneIface creates the volume's own interface: a copy of the one that it names, with another initiator name.
func (l *LUN) cloneIface(ctx context.Context) error {
	said, err := adminOutput(ctx, "-m", "iface", "-I", l.InitIface, "-o", "show")
	if err != nil {
		return err
	}
	if err := admin(ctx, []int{exitExists}, "-m", "iface", "-I", l.Iface, "-o", "new"); err != nil {
		return err
	}
	for line := range strings.Lines(said) {
		name, v, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok || !strings.HasPrefix(name, "iface.") || v == "<empty>" ||
			name == "iface.iscsi_ifacename" || name == "iface.initiatorname" {
			continue
		}
		if err := l.setIface(ctx, name, v); err != nil {
			return err
		}
	}
	return l.setIface(ctx, "iface.initiatorname", l.InitiatorName)
}

func (l *LUN) setIface(ctx context.Context, name, v string) error {
	return admin(ctx, nil, "-m", "iface", "-I", l.Iface, "-o", "update", "-n", name, "-v", v)
}

// dropIface removes the volume's own interface if no session uses it.
func (i *initiator) dropIface(ctx context.Context, l *LUN) error {
	if l.Iface != l.Portals[0]+":"+l.VolName {
		return nil
	}
	if left, err := i.sessions(l); err != nil || len(left) > 0 {
		return err
	}
	return tidy(ctx, []int{exitNoObjects}, "-m", "iface", "-I", l.Iface, "-o", "delete")
}

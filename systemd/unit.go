package systemd

import (
	_ "embed" // the unit files
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

//go:embed nodelet.service
var unitText string

//go:embed kubelet.service
var kubeletText string

//go:embed service.conf
var serviceText string

// Unit returns the text of nodelet.service for the program at this path.
func Unit(program string) string {
	return fill(unitText, program)
}

// KubeletUnit returns the text of kubelet.service for a machine where nodelet is installed as the kubelet, at this
// path. kubeadm's own drop-in (10-kubeadm.conf) replaces its command and keeps the rest.
func KubeletUnit(program string) string {
	return fill(kubeletText, program)
}

// written begins each file that Install writes below the systemd directory. Uninstall and the packages' scripts remove
// only such files: an administrator may have a unit of his own.
const written = `# Written by "nodelet systemd install"; "nodelet systemd uninstall" removes it`

const (
	takeOverComment = written + " and restores the kubelet.\n"
	ownComment      = written + ".\n"
)

func fill(text, program string) string {
	return strings.NewReplacer("{{.Program}}", program, "{{.Service}}", serviceText).Replace(text)
}

// command is the one that a unit starts.
type command struct {
	// prefix has the special characters of ExecStart, such as "-"; see systemd.service(5).
	prefix  string
	program string
	args    string
}

// takeOver returns the text of a drop-in that replaces the kubelet by program in kubelet.service. It keeps arguments,
// environment, slice and all else that serviceText does not set; flags are appended. Removing it restores the kubelet.
// The program is started by the path of the kubelet ("@"), because add-ons look for a process of that name. The
// identifier is for what does not go through the log, such as the trace of a crash.
func takeOver(kubelet *command, program string, flags ...string) string {
	return fmt.Sprintf(takeOverComment+`[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=
ExecStart=%s@%s %s %s
SyslogIdentifier=kubelet
%s`, kubelet.prefix, program, kubelet.program, strings.Join(append([]string{kubelet.args}, flags...), " "), serviceText)
}

// byHand is the advice for a kubelet.service whose command takeOver cannot replace.
const byHand = "run nodelet in its own unit, with the kubelet's flags: `nodelet systemd install --own-unit FLAG...`"

// kubeletCommand returns the command of kubelet.service. It is an error if that is not the kubelet itself, because then
// its arguments are not those of the kubelet. unit is the output of `systemctl cat kubelet.service`.
func (i *Installer) kubeletCommand(unit string) (*command, error) {
	text, err := execStart(unit)
	if err != nil {
		return nil, err
	}
	if file := commandFile(unit); filepath.Base(file) > dropInName {
		return nil, fmt.Errorf("%s sets ExecStart, and systemd reads it after %s: rename it, such as to 50-%s",
			file, dropInName, filepath.Base(file))
	}
	rest := strings.TrimLeft(text, "-@:+!|")
	c := &command{prefix: text[:len(text)-len(rest)]}
	c.program, c.args, _ = strings.Cut(rest, " ")
	c.args = strings.TrimSpace(c.args)
	switch {
	case strings.Contains(c.prefix, "@"):
		return nil, errors.New("kubelet.service starts its program under another name (ExecStart=@…): " + byHand)
	case filepath.Base(c.program) != "kubelet":
		return nil, fmt.Errorf("kubelet.service starts %s, not a program called kubelet, so the kubelet's flags are "+
			"not known: %s", c.program, byHand)
	case isScript(i.path(c.program)):
		return nil, fmt.Errorf("kubelet.service starts the kubelet through %s, which is a script, so the kubelet's flags "+
			"are not known: %s", c.program, byHand)
	}
	return c, nil
}

// isScript reports whether a file begins with #!. What cannot be read is no script.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	start := make([]byte, 2)
	_, err = io.ReadFull(f, start)
	return err == nil && string(start) == "#!"
}

// execStart returns the command that systemd would start: an empty ExecStart= removes all earlier ones.
func execStart(unit string) (string, error) {
	var found []string
	for line := range strings.SplitSeq(joined(unit), "\n") {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) != "ExecStart" {
			continue
		}
		if value = strings.TrimSpace(value); value == "" {
			found = nil
			continue
		}
		found = append(found, value)
	}
	switch len(found) {
	case 0:
		return "", errors.New("kubelet.service has no ExecStart: is it installed?")
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("kubelet.service starts %d programs, not one: %s", len(found), byHand)
}

// commandFile returns the drop-in with the last ExecStart; "" if that is in the unit itself. `systemctl cat` prints the
// path of each file as a comment before it.
func commandFile(unit string) (found string) {
	file := ""
	for line := range strings.Lines(unit) {
		path, comment := strings.CutPrefix(strings.TrimSpace(line), "# ")
		if comment && filepath.IsAbs(path) && strings.HasSuffix(filepath.Dir(path), "service.d") {
			file = path
		}
		if key, _, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "ExecStart" {
			found = file
		}
	}
	return found
}

// joined returns a unit without comments, which may be between the lines of one setting, and with each setting in one
// line; see systemd.syntax(7).
func joined(unit string) string {
	var kept strings.Builder
	for line := range strings.Lines(unit) {
		if start := strings.TrimLeft(line, " \t"); !strings.HasPrefix(start, "#") && !strings.HasPrefix(start, ";") {
			kept.WriteString(line)
		}
	}
	return strings.ReplaceAll(kept.String(), "\\\n", " ")
}

package systemd

import (
	_ "embed" // the unit files
	"errors"
	"fmt"
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

const takeOverComment = `# Written by "nodelet systemd install"; ` +
	`"nodelet systemd uninstall" removes it and restores the kubelet.` + "\n"

func fill(text, program string) string {
	return strings.NewReplacer("{{.Program}}", program, "{{.Service}}", serviceText).Replace(text)
}

// takeOver returns the text of a drop-in that replaces the kubelet by program in kubelet.service, and keeps arguments,
// environment and everything else; flags are appended. Removing the drop-in restores the kubelet. unit is the output of
// `systemctl cat kubelet.service`.
func takeOver(unit, program string, flags ...string) (string, error) {
	command, err := execStart(unit)
	if err != nil {
		return "", err
	}
	prefix := command[:len(command)-len(strings.TrimLeft(command, "-@:+!"))]
	if strings.Contains(prefix, "@") {
		return "", errors.New("kubelet.service starts its program under another name (ExecStart=@…): replace it manually")
	}
	_, args, _ := strings.Cut(strings.TrimLeft(command, "-@:+!"), " ")
	return fmt.Sprintf(takeOverComment+`[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=
ExecStart=%s%s %s
%s`, prefix, program, strings.Join(append([]string{strings.TrimSpace(args)}, flags...), " "), serviceText), nil
}

// execStart returns the command that systemd would start: an empty ExecStart= removes all earlier ones.
func execStart(unit string) (string, error) {
	var found []string
	for line := range strings.SplitSeq(strings.ReplaceAll(unit, "\\\n", " "), "\n") {
		value, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=")
		if !ok {
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
	return "", fmt.Errorf("kubelet.service starts %d programs, not one: replace it manually", len(found))
}

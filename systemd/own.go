package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// earlier is what was there before installOwn.
type earlier struct {
	unit, flags      []byte // of the files; nil: there was none
	nodelet, kubelet map[string]string
}

func (i *Installer) present(ctx context.Context) (e earlier, err error) {
	if e.unit, err = readIfAny(i.ownUnitFile()); err != nil {
		return e, fmt.Errorf("read the present unit: %w", err)
	}
	if e.flags, err = readIfAny(i.envFile()); err != nil {
		return e, fmt.Errorf("read the present flags: %w", err)
	}
	if e.nodelet, err = properties(ctx, ownUnit); err != nil {
		return e, err
	}
	e.kubelet, err = properties(ctx, kubeletUnit)
	return e, err
}

// readIfAny returns the content of a file; nil if it does not exist.
func readIfAny(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// installOwn writes, enables and starts nodelet.service. If nodelet does not become ready, the agent before it runs
// again.
func (i *Installer) installOwn(ctx context.Context, flags []string) error {
	before, err := i.present(ctx)
	if err != nil {
		return err
	}
	if err := i.startOwn(ctx, before, flags); err != nil {
		ctx = context.WithoutCancel(ctx)
		if runs(before.nodelet["ActiveState"]) {
			return errors.Join(err, i.putBack(ctx, before))
		}
		stop := i.systemctl(ctx, "disable", "--now", "--no-block", ownUnit)
		_, start := i.startKubelet(ctx, runs(before.kubelet["ActiveState"]))
		return errors.Join(err, stop, start)
	}
	if !i.DryRun {
		fmt.Fprintf(i.Out, "nodelet runs as %s with the flags in %s\n", ownUnit, i.envFile())
	}
	return nil
}

func (i *Installer) startOwn(ctx context.Context, before earlier, flags []string) error {
	if err := i.write(i.ownUnitFile(), ownComment+Unit(i.Program)); err != nil {
		return err
	}
	text := "# The flags of nodelet; see nodelet(8).\nNODELET_ARGS=" + strings.Join(flags, " ") + "\n"
	if len(flags) > 0 && text != string(before.flags) {
		if before.flags != nil {
			if err := i.write(i.envFile()+".old", string(before.flags)); err != nil {
				return err
			}
		}
		if err := i.write(i.envFile(), text); err != nil {
			return err
		}
	}
	if err := i.systemctl(ctx, "enable", ownUnit); err != nil {
		return err
	}
	if err := i.restart(ctx, ownUnit, i.Ready); err != nil {
		return fmt.Errorf("nodelet did not become ready, see journalctl -u nodelet, or give it more time with --wait: %w",
			err)
	}
	return nil
}

// putBack restores the files and the state of a nodelet.service that ran before installOwn.
func (i *Installer) putBack(ctx context.Context, before earlier) error {
	fmt.Fprintf(i.Out, "nodelet is not ready: restoring the earlier %s\n", ownUnit)
	var all []error
	for path, text := range map[string][]byte{i.ownUnitFile(): before.unit, i.envFile(): before.flags} {
		if text == nil {
			all = append(all, i.remove(path))
		} else {
			all = append(all, i.write(path, string(text)))
		}
	}
	if before.nodelet["UnitFileState"] != "enabled" {
		all = append(all, i.systemctl(ctx, "disable", ownUnit))
	}
	all = append(all, i.systemctl(ctx, "daemon-reload"), i.systemctl(ctx, "restart", "--no-block", ownUnit))
	return errors.Join(all...)
}

// presentFlags returns the flags in the file with the environment of nodelet.service.
func (i *Installer) presentFlags() ([]string, error) {
	text, err := os.ReadFile(i.envFile())
	if err != nil {
		return nil, fmt.Errorf("read the present flags: %w", err)
	}
	value := ""
	for line := range strings.Lines(joined(string(text))) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "NODELET_ARGS="); ok {
			value = v
		}
	}
	if n := len(value); n > 1 && strings.ContainsRune(`"'`, rune(value[0])) && value[n-1] == value[0] {
		value = value[1 : n-1]
	}
	return words(value), nil
}

// words splits a value at blanks outside of quotes, and removes the quotes.
func words(value string) []string {
	all := []string{}
	word, within := "", false // within a word, which may be empty
	var quote rune
	for _, c := range value + " " {
		switch {
		case c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, within = c, true
		case quote != 0 || c != ' ' && c != '\t':
			word, within = word+string(c), true
		case within:
			all = append(all, word)
			word, within = "", false
		}
	}
	return all
}

// remove removes a file, if it exists, as a step.
func (i *Installer) remove(path string) error {
	return i.step(func() error {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}, "remove %s", path)
}

func (i *Installer) removeOwn(ctx context.Context) error {
	whole := context.WithoutCancel(ctx) // the kubelet must start after nodelet has stopped
	if err := i.systemctl(whole, "disable", "--now", ownUnit); err != nil {
		return err
	}
	err := errors.Join(i.remove(i.ownUnitFile()), i.systemctl(whole, "daemon-reload"))
	if err == nil && !i.DryRun {
		fmt.Fprintf(i.Out, "%s removed, flags kept in %s; pods keep running\n", ownUnit, i.envFile())
	}
	started, startErr := i.startKubelet(ctx, false)
	if err = errors.Join(err, startErr); err != nil || i.DryRun {
		return err
	}
	if started {
		fmt.Fprintln(i.Out, "the kubelet manages the node again")
		return nil
	}
	fmt.Fprintln(i.Out, "no node agent manages the pods: start one")
	return i.noKubelet(whole)
}

// noKubelet returns an error if the machine has a kubelet, which must be started by hand.
func (i *Installer) noKubelet(ctx context.Context) error {
	p, err := properties(ctx, kubeletUnit)
	if err != nil || !startable(p["LoadState"]) {
		return err
	}
	return fmt.Errorf("%s was not started, because the machine does not start it at boot (it is %s): "+
		"start it as it was started before, such as with `systemctl start %[1]s`", kubeletUnit, p["UnitFileState"])
}

// startKubelet starts the kubelet, which nodelet.service has stopped, if it ran before that or the machine starts it at
// boot, and waits for it. It reports whether it does. The end of ctx ends only the wait.
func (i *Installer) startKubelet(ctx context.Context, ran bool) (started bool, err error) {
	whole := context.WithoutCancel(ctx)
	p, err := properties(whole, kubeletUnit)
	if err != nil || !ran && p["UnitFileState"] != "enabled" {
		return false, err
	}
	if err := i.systemctl(whole, "start", "--no-block", kubeletUnit); err != nil {
		return true, err
	}
	if err := i.wait(ctx, kubeletUnit, i.KubeletReady); err != nil {
		return true, fmt.Errorf("the kubelet does not start (see journalctl -u kubelet): %w", err)
	}
	return true, nil
}

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodelet/nodelet/host/atomicfile"
)

const (
	ownUnit     = "nodelet.service"
	kubeletUnit = "kubelet.service"
	// dropInName follows the names of the drop-ins of kubeadm and distributions: systemd reads drop-ins by name.
	dropInName = "90-nodelet.conf"
)

// Installer installs this program as the node's agent under systemd and removes it again. Its methods change files
// below /etc and run systemctl, so they need root; Status does not.
type Installer struct {
	// Program is the absolute path of the program that the units start.
	Program string
	// Out gets a line for each step.
	Out io.Writer
	// Root is the root of the file system; empty means /. Tests set it.
	Root string
	// DryRun makes Install and Uninstall print their steps without changing anything.
	DryRun bool
	// Flags are flags for the agent besides those of the kubelet, or of Install.
	Flags []string
	// Wait bounds how long a started agent may take to be ready; 0 means not to wait.
	Wait time.Duration
	// Ready returns what the node still waits for after the unit of nodelet has become active; empty if it is ready.
	// KubeletReady does the same for the kubelet that is restored. Both may be nil.
	Ready, KubeletReady func(context.Context) string
}

func (i *Installer) path(p string) string { return filepath.Join(i.Root, p) }

func (i *Installer) dropIn() string {
	return i.path("/etc/systemd/system/kubelet.service.d/" + dropInName)
}

func (i *Installer) ownUnitFile() string { return i.path("/etc/systemd/system/" + ownUnit) }

func (i *Installer) envFile() string { return i.path("/etc/default/nodelet") }

// Booted returns an error if systemd does not run this machine; see sd_booted(3).
func (i *Installer) Booted() error {
	if _, err := os.Stat(i.path("/run/systemd/system")); err != nil {
		return errors.New("this machine does not run systemd: start and stop the agent with its init system")
	}
	return nil
}

// step announces a change and makes it, unless this is a dry run.
func (i *Installer) step(do func() error, format string, args ...any) error {
	prefix := ""
	if i.DryRun {
		prefix = "would "
	}
	fmt.Fprintf(i.Out, "%s%s\n", prefix, fmt.Sprintf(format, args...))
	if i.DryRun {
		return nil
	}
	return do()
}

// write writes a file as a step. A dry run prints its content.
func (i *Installer) write(path, text string) error {
	err := i.step(func() error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the directory of %s: %w", path, err)
		}
		return atomicfile.WriteLinked(path, []byte(text), 0o644) // an empty unit file masks the unit
	}, "write %s", path)
	if i.DryRun {
		fmt.Fprint(i.Out, indent(text))
	}
	return err
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ") + "\n"
}

// systemctl runs systemctl as a step.
func (i *Installer) systemctl(ctx context.Context, args ...string) error {
	return i.step(func() error {
		_, err := systemctl(ctx, args...)
		return err
	}, "run systemctl %s", strings.Join(args, " "))
}

// Install makes nodelet the node's agent. If the machine has kubelet.service, a drop-in replaces its program and flags
// must be empty. Otherwise, or with separate, nodelet.service is written, enabled and started with flags as its
// arguments. If nodelet does not become ready in time, Install undoes what it did.
func (i *Installer) Install(ctx context.Context, separate bool, flags []string) error {
	kubelet, err := i.replaces(ctx, separate, flags)
	switch {
	case err != nil:
		return err
	case kubelet == nil:
		return i.installOwn(ctx, slices.Concat(flags, i.Flags))
	}
	return i.replaceKubelet(ctx, kubelet)
}

// Check returns why Install would refuse to replace the kubelet, or to write nodelet.service without other flags.
func (i *Installer) Check(ctx context.Context) error {
	_, err := i.replaces(ctx, false, nil)
	return err
}

// Arguments returns the arguments of the agent that Install would start; nil if they are not known, because the kubelet
// does not run. dir is the working directory of the kubelet that Install would replace, empty if it would replace none.
// An error says why Install would refuse.
func (i *Installer) Arguments(ctx context.Context, separate bool, flags []string) (
	args []string, dir string, err error,
) {
	kubelet, err := i.replaces(ctx, separate, flags)
	switch {
	case err != nil:
		return nil, "", err
	case kubelet == nil && len(flags) > 0:
		return flags, "", nil
	case kubelet == nil:
		args, err = i.presentFlags()
		return args, "", err
	}
	agent, err := i.Running(ctx, kubeletUnit)
	if err != nil || agent == nil {
		return nil, "", err
	}
	return agent.Args, agent.Dir, nil
}

// replaces returns the kubelet that Install would replace; nil if it would write nodelet.service. An error says why
// Install would refuse.
func (i *Installer) replaces(ctx context.Context, separate bool, flags []string) (kubelet *command, err error) {
	if err := i.Booted(); err != nil {
		return nil, err
	}
	if err := i.checkProgram(); err != nil {
		return nil, err
	}
	p, err := properties(ctx, kubeletUnit)
	if err != nil {
		return nil, err
	}
	if separate || !startable(p["LoadState"]) {
		return nil, errors.Join(i.checkUnit(), i.checkFlags(flags))
	}
	if len(flags) > 0 {
		return nil, fmt.Errorf("nodelet takes over the flags of %s: put %q there, or use --own-unit",
			kubeletUnit, strings.Join(flags, " "))
	}
	own, err := i.OwnStarts(ctx)
	if err != nil {
		return nil, err
	}
	if own {
		return nil, fmt.Errorf("%s runs this node, or starts at boot and stops %s then: use --own-unit, or run "+
			"`systemctl disable --now %[1]s` first", ownUnit, kubeletUnit)
	}
	if i.replaced() {
		return nil, fmt.Errorf("nodelet has already replaced the kubelet (%s): to upgrade, install the newer package; "+
			"to change its flags, run `nodelet systemd uninstall`, and install again", i.dropIn())
	}
	unit, err := systemctl(ctx, "cat", kubeletUnit)
	if err != nil {
		return nil, err
	}
	return i.kubeletCommand(unit)
}

// checkUnit refuses to replace a nodelet.service that this command did not write.
func (i *Installer) checkUnit() error {
	if text, err := os.ReadFile(i.ownUnitFile()); err == nil && !strings.HasPrefix(string(text), written) {
		return fmt.Errorf("%s was not written by this command: use it, or remove it first", i.ownUnitFile())
	}
	return nil
}

// checkFlags checks flags for the file with the environment of nodelet.service, which are split at blanks.
func (i *Installer) checkFlags(flags []string) error {
	for _, flag := range flags {
		if strings.ContainsAny(flag, " \t\n\"'\\") {
			return fmt.Errorf("flag %q contains a space or a quote: install without it and add it to %s", flag, i.envFile())
		}
	}
	if len(flags) > 0 {
		return nil
	}
	if _, err := os.Stat(i.envFile()); err != nil {
		return errors.New("nodelet.service needs flags: name at least --config=FILE, and in a cluster --kubeconfig=FILE")
	}
	if len(i.Flags) > 0 {
		return fmt.Errorf("without other flags those in %s stay: add %s there", i.envFile(), strings.Join(i.Flags, " "))
	}
	return nil
}

// programDirs are where programs of the system are. Where /usr is read-only, /usr/local and /opt may be links.
var programDirs = []string{"/usr/", "/usr/local/", "/opt/", "/bin/", "/sbin/"}

// checkProgram refuses a program that may vanish, or that others than root can change.
func (i *Installer) checkProgram() error {
	below := func(dir string) bool {
		target, err := filepath.EvalSymlinks(i.path(dir))
		return strings.HasPrefix(i.Program, dir) || err == nil && strings.HasPrefix(i.path(i.Program), target+"/")
	}
	if !slices.ContainsFunc(programDirs, below) {
		return fmt.Errorf("%s is not installed, so it may be gone at the next boot: run "+
			"`install -m 755 %[1]s /usr/local/bin/nodelet`, then `/usr/local/bin/nodelet systemd install`", i.Program)
	}
	for dir := i.Program; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(i.path(dir))
		if err != nil {
			return fmt.Errorf("look at the program: %w", err)
		}
		if !rootOnly(info) {
			return fmt.Errorf("users other than root can change %s: run `chown root:root %[1]s && chmod go-w %[1]s`", dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// replaceKubelet makes nodelet the program of kubelet.service. If nodelet does not start, the kubelet is restored.
func (i *Installer) replaceKubelet(ctx context.Context, kubelet *command) error {
	if err := i.write(i.dropIn(), takeOver(kubelet, i.Program, i.Flags...)); err != nil {
		return err
	}
	if err := i.restart(ctx, kubeletUnit, i.Ready); err != nil {
		fmt.Fprintf(i.Out, "nodelet is not ready: %v\nrestoring the kubelet\n", err)
		return errors.Join(fmt.Errorf("nodelet did not become ready, see journalctl -u kubelet and "+
			"nodelet check --takeover, or give it more time with --wait: %w", err), i.Uninstall(context.WithoutCancel(ctx)))
	}
	if !i.DryRun {
		fmt.Fprintf(i.Out, "nodelet runs as %s; `nodelet systemd uninstall` restores the kubelet\n", kubeletUnit)
	}
	return nil
}

// Uninstall undoes Install: it restores the kubelet, or removes nodelet.service. It can be repeated after a failure.
// Once it has changed something, the end of ctx ends only the wait for the kubelet.
func (i *Installer) Uninstall(ctx context.Context) error {
	if err := i.Booted(); err != nil {
		return err
	}
	found := i.replaced()
	if !found {
		left, err := i.leftRunning(ctx)
		if err != nil {
			return err
		}
		found = left
	}
	if found {
		if err := i.restoreKubelet(ctx); err != nil {
			return err
		}
	}
	if text, err := os.ReadFile(i.ownUnitFile()); err == nil && strings.HasPrefix(string(text), written) {
		found = true
		if err := i.removeOwn(ctx); err != nil {
			return err
		}
	}
	if !found {
		return i.nothingInstalled()
	}
	return nil
}

// nothingInstalled returns the error of an Uninstall that finds nothing to undo.
func (i *Installer) nothingInstalled() error {
	const text = "nodelet is not installed under systemd by this command"
	if sameFile(i.path("/usr/bin/kubelet"), i.path(i.Program)) {
		return errors.New(text + ", but by the package nodelet-kubelet: to go back to the kubelet, " +
			"install the package kubelet in its place, such as with apt-get install kubelet")
	}
	return errors.New(text + "; systemctl disable --now nodelet stops the nodelet.service of the package")
}

// leftRunning reports whether this program still runs as kubelet.service, although the files of the unit name another
// one: an earlier Uninstall removed the drop-in and then failed.
func (i *Installer) leftRunning(ctx context.Context) (bool, error) {
	agent, err := i.Running(ctx, kubeletUnit)
	if err != nil || agent == nil || strings.TrimSuffix(agent.Program, " (deleted)") != i.Program {
		return false, err
	}
	unit, err := systemctl(ctx, "cat", kubeletUnit)
	if err != nil {
		return false, err
	}
	kubelet, err := i.kubeletCommand(unit)
	return err == nil && !sameFile(i.path(kubelet.program), i.path(i.Program)), nil
}

// sameFile reports whether both paths lead to the same file.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(one, other)
}

func (i *Installer) restoreKubelet(ctx context.Context) error {
	if err := i.remove(i.dropIn()); err != nil {
		return err
	}
	if !i.DryRun {
		_ = os.Remove(filepath.Dir(i.dropIn())) // fails if there are other drop-ins
	}
	if err := i.restart(ctx, kubeletUnit, i.KubeletReady); err != nil {
		return fmt.Errorf("the kubelet's unit is restored, but it does not start (see journalctl -u kubelet): %w", err)
	}
	if !i.DryRun {
		fmt.Fprintln(i.Out, "the kubelet manages the node again; pods kept running")
	}
	return nil
}

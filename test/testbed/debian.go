package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// need is a command or file that the machine must have, and the Debian package that contains it.
type need struct {
	pkg string
	// command is looked up in PATH, file is a pattern of absolute paths. Exactly one of them is set.
	command, file string
}

func (n need) met() bool {
	if n.file != "" {
		found, err := filepath.Glob(n.file)
		return err == nil && len(found) > 0
	}
	_, err := exec.LookPath(n.command)
	return err == nil
}

func runNeeds() []need {
	return []need{
		{pkg: "iproute2", command: "ip"},
		{pkg: "iptables", command: "iptables"},
		{pkg: "util-linux", command: "nsenter"},
	}
}

func cgoNeeds() []need {
	return []need{
		{pkg: "gcc", command: "gcc"},
		{pkg: "libc6-dev", file: "/usr/include/stdio.h"},
		{pkg: "pkg-config", command: "pkg-config"},
		{pkg: "libseccomp-dev", file: "/usr/include/seccomp.h"},
	}
}

// missingPackages returns the packages of missing commands and files.
func missingPackages(needs []need) []string {
	var missing []string
	for _, n := range needs {
		if !n.met() {
			missing = append(missing, n.pkg)
		}
	}
	return missing
}

// installDebian installs the packages of missing commands and files. None of these packages may start a service. What
// it cannot install does not keep the others away, and its error names it.
func installDebian(ctx context.Context, progress io.Writer, needs []need) error {
	missing := missingPackages(needs)
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("install Debian packages %s: not root; run as root, or run: apt-get install %[1]s",
			strings.Join(missing, " "))
	}
	unlock, err := lockApt(ctx, progress)
	if err != nil {
		return err
	}
	defer unlock()
	if missing = missingPackages(needs); len(missing) == 0 {
		return nil // another process has installed them
	}
	fmt.Fprintf(progress, "installing Debian packages: %s\n", strings.Join(missing, " "))
	errs := []error{aptUpdate(ctx)} // the lists of an earlier update may do
	install := []string{"-y", "-q", "--no-install-recommends", "install"}
	if err := aptGet(ctx, append(install, missing...)...); err == nil {
		return nil
	}
	// An installation that was killed leaves packages that dpkg has to configure first.
	_, err = run(ctx, "env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--configure", "-a")
	errs = append(errs, err)
	for _, pkg := range missing {
		errs = append(errs, aptGet(ctx, append(install, pkg)...))
	}
	missing = missingPackages(needs)
	if err = errors.Join(errs...); err == nil || len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("install Debian packages %s: %w", strings.Join(missing, " "), err)
}

// aptLock is locked by the process, of whatever clone, that updates the package lists or installs packages. Two updates
// at a time would fail: apt-get waits for the lock of dpkg alone.
const aptLock = "/run/lock/nodelet-apt"

func lockApt(ctx context.Context, progress io.Writer) (unlock func(), err error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, errors.New(
			"find apt-get: not on this machine; the testbed needs Debian 12, on other systems install the packages yourself",
		)
	}
	return LockFile(ctx, aptLock, func() {
		fmt.Fprintln(progress, "another process installs Debian packages, waiting for its end")
	})
}

// aptGet runs apt-get, which waits for another one that installs packages, and tries downloads again.
func aptGet(ctx context.Context, args ...string) error {
	_, err := run(ctx, "env", append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get",
		"-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"}, args...)...)
	return err
}

// InstallDebian installs the Debian packages of programs that are missing on this machine. packages maps programs to
// packages.
func InstallDebian(ctx context.Context, progress io.Writer, packages map[string]string) error {
	var needs []need
	for program, pkg := range packages {
		needs = append(needs, need{pkg: pkg, command: program})
	}
	return installDebian(ctx, progress, needs)
}

// aptUpdate updates the package lists. Its callers hold aptLock.
func aptUpdate(ctx context.Context) error { return aptGet(ctx, "-q", "update") }

// DebianFile returns the path of a file from a Debian package, beside which are the others of the same directory. It
// unpacks the package in the cache instead of installing it, so that no service starts and the machine does not change.
func (c *Cache) DebianFile(ctx context.Context, pkg, file string) (string, error) {
	name := filepath.Join("debian-"+pkg, file)
	path := filepath.Join(c.dir, name)
	if _, err := os.Stat(path); err != nil {
		if err := c.unpackOnce(ctx, pkg, file); err != nil {
			return "", err
		}
	}
	c.used = append(c.used, filepath.Dir(name))
	return path, nil
}

// unpackOnce takes the directory of a package's file from the mirror, or else unpacks the package.
func (c *Cache) unpackOnce(ctx context.Context, pkg, file string) error {
	what := "debian-" + pkg
	if c.mirror == nil {
		if err := c.lacks(pkg); err != nil {
			return err
		}
	}
	unlock, err := c.lock(ctx, what)
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(c.dir, what)
	path := filepath.Join(dir, file)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if done, err := c.mirror.fetchDir(ctx, c.dir, filepath.Join(what, file)); err != nil || done {
		return err
	}
	if err := c.lacks(pkg); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "unpacking Debian package %s\n", pkg)
	if err := c.unpackDebian(ctx, pkg, dir); err != nil {
		return fmt.Errorf("get %s from Debian package %s: %w", file, pkg, err)
	}
	_, err = os.Stat(path)
	return err
}

func (c *Cache) unpackDebian(ctx context.Context, pkg, dir string) error {
	temp, err := c.workDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	download := func() error {
		_, err := run(ctx, "sh", "-c", `cd "$1" && apt-get -q -o APT::Sandbox::User=root "$3" download "$2"`, "sh", temp,
			pkg, "-oAcquire::Retries=3")
		return err
	}
	if err := download(); err != nil { // the package lists may be missing or old
		unlock, err := lockApt(ctx, c.progress)
		if err != nil {
			return err
		}
		err = aptUpdate(ctx)
		unlock()
		if err != nil {
			return err
		}
		if err := download(); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(temp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("download %s: got %d packages, want one", pkg, len(debs))
	}
	root := filepath.Join(temp, "root")
	if _, err := run(ctx, "dpkg-deb", "-x", debs[0], root); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil { // an interrupted fetch from a mirror leaves a part
		return err
	}
	return os.Rename(root, dir)
}

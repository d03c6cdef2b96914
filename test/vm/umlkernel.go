package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// kernelSuite is the Debian suite with the kernel source. It only has to be new: the source does not depend on the rest
// of the suite.
const kernelSuite = "trixie-backports"

// kernelSource matches the packages of kernel sources; the newest is taken.
var kernelSource = regexp.MustCompile(`(?m)^linux-source-\d+\.\d+\b`)

// kernelConfig is what the machine's kernel has beyond the defaults of its architecture.
//
//go:embed uml/kernel.config
var kernelConfig string

// noOwnerSpinning changes the rules of the kernel's configuration, which has no option for it: who waits for a mutex
// sleeps. User-Mode Linux runs one thread of a process at a time, and holds a mutex meanwhile. A processor that wants
// to run another thread would spin until then.
const noOwnerSpinning = `sed -i '/^config \(MUTEX\|RWSEM\)_SPIN_ON_OWNER$/,/^$/` +
	`s/depends on /depends on !UML \&\& /' kernel/Kconfig.locks`

// umlKernel returns User-Mode Linux, which is built on the first call: about ten minutes on two cores. The name of the
// file holds a hash of all that chooses its content.
func umlKernel(ctx context.Context, dir string) (string, error) {
	sum := sha256.Sum256([]byte(kernelSuite + "\n" + noOwnerSpinning + "\n" + kernelConfig))
	kernel := filepath.Join(dir, fmt.Sprintf("linux-%x", sum[:6]))
	return kernel, buildOnce(ctx, kernel, func(ctx context.Context) error {
		source := filepath.Join(dir, "linux-source")
		if err := getKernelSource(ctx, dir, source); err != nil {
			return fmt.Errorf("get the kernel source: %w", err)
		}
		if err := buildKernel(ctx, source, kernel); err != nil {
			return fmt.Errorf("build the kernel: %w", err)
		}
		return os.RemoveAll(source)
	})
}

// getKernelSource unpacks the newest kernel source of the suite. An interrupted build goes on from the source it left.
func getKernelSource(ctx context.Context, dir, source string) error {
	if _, err := os.Stat(source); err == nil {
		return nil
	}
	work, err := os.MkdirTemp(dir, "source-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	a, err := newPrivateApt(ctx, work, kernelSuite)
	if err != nil {
		return err
	}
	list, err := a.cache(ctx, "search", "--names-only", "^linux-source-[0-9.]+$")
	if err != nil {
		return err
	}
	names := kernelSource.FindAllString(list, -1)
	if len(names) == 0 {
		return fmt.Errorf("suite %s has no linux-source: %q", kernelSuite, list)
	}
	if err := a.download(ctx, work, newestVersion(names)); err != nil {
		return err
	}
	err = run(ctx, work, "sh", "-c", "dpkg-deb -x *.deb package && rm *.deb && mkdir tree && "+
		"tar -xJf package/usr/src/*.tar.xz -C tree --strip-components=1")
	if err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "tree"), source)
}

// buildKernel fails where the configuration did not take a line of the fragment: the option's name or needs have
// changed.
func buildKernel(ctx context.Context, source, kernel string) error {
	fragment := filepath.Join(source, "nodelet.config")
	if err := os.WriteFile(fragment, []byte(kernelConfig), 0o644); err != nil {
		return err
	}
	for _, command := range []string{
		noOwnerSpinning,
		"make -s ARCH=um defconfig",
		"scripts/kconfig/merge_config.sh -m -O . .config nodelet.config",
		"make -s ARCH=um olddefconfig",
	} {
		if err := run(ctx, source, "sh", "-c", command); err != nil {
			return err
		}
	}
	config, err := os.ReadFile(filepath.Join(source, ".config"))
	if err != nil {
		return err
	}
	if missing := missingOptions(kernelConfig, string(config)); len(missing) > 0 {
		return fmt.Errorf("the kernel's configuration lacks %s", strings.Join(missing, ", "))
	}
	if strings.Contains(string(config), "_SPIN_ON_OWNER=y") {
		return errors.New("kernel/Kconfig.locks has changed: noOwnerSpinning does not match it")
	}
	jobs := fmt.Sprintf("-j%d", runtime.NumCPU())
	if err := run(ctx, source, "nice", "make", "-s", jobs, "ARCH=um", "linux"); err != nil {
		return err
	}
	if err := run(ctx, source, "strip", "-o", kernel+".new", "linux"); err != nil {
		return err
	}
	return os.Rename(kernel+".new", kernel)
}

// missingOptions lists what a fragment sets and a configuration does not have.
func missingOptions(fragment, config string) []string {
	have := map[string]bool{}
	for line := range strings.Lines(config) {
		have[strings.TrimSpace(line)] = true
	}
	var missing []string
	for line := range strings.Lines(fragment) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "CONFIG_") && !have[line] {
			missing = append(missing, line)
		}
	}
	return missing
}

// newestVersion returns the name with the highest numbers at its end: 7.10 is newer than 7.9.
func newestVersion(names []string) string {
	newest := ""
	major, minor := -1, -1
	for _, name := range names {
		var x, y int
		_, _ = fmt.Sscanf(name[strings.LastIndex(name, "-")+1:], "%d.%d", &x, &y)
		if x > major || x == major && y > minor {
			newest = name
			major, minor = x, y
		}
	}
	return newest
}

// privateApt is apt with lists of its own, for one suite, from the mirror that this machine uses for Debian. The
// machine's own lists and sources stay as they are.
type privateApt struct{ options []string }

func newPrivateApt(ctx context.Context, dir, suite string) (*privateApt, error) {
	args := []string{"indextargets", "--format", "$(SITE) $(ORIGIN) $(COMPONENT)", "Created-By: Packages"}
	out, err := exec.CommandContext(ctx, "apt-get", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt for its sources: %w", err)
	}
	site := debianSite(string(out))
	if site == "" {
		return nil, errors.New("apt has no source of Debian: run apt-get update")
	}
	sources := filepath.Join(dir, "sources.list")
	line := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", site, suite)
	if err := os.WriteFile(sources, []byte(line), 0o644); err != nil {
		return nil, err
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	a := &privateApt{options: []string{
		"-oDir::Etc::SourceList=" + sources,
		"-oDir::Etc::SourceParts=-",
		"-oDir::State::Lists=" + filepath.Join(dir, "lists"),
		"-oDir::Cache=" + filepath.Join(dir, "cache"),
		"-oAcquire::Languages=none",
		"-oAPT::Sandbox::User=root",
	}}
	return a, run(ctx, "", "apt-get", append(a.options, "-q", "update")...)
}

// debianSite returns the first site whose origin is Debian and which is not the site of security updates alone.
func debianSite(targets string) string {
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) == 3 && f[1] == "Debian" && f[2] == "main" && !strings.HasSuffix(f[0], "-security") {
			return f[0]
		}
	}
	return ""
}

func (a *privateApt) cache(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", append(a.options, args...)...).Output()
	return string(out), err
}

func (a *privateApt) download(ctx context.Context, into, pkg string) error {
	return run(ctx, into, "apt-get", append(a.options, "-q", "download", pkg)...)
}

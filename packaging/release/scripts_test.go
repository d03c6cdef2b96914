package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUpgradeWithoutRuntime runs the scripts of an upgrade on a machine whose container runtime is away, so that the
// restarted unit does not become active: they end, for the package manager waits for them.
func TestUpgradeWithoutRuntime(t *testing.T) {
	timeout, err := exec.LookPath("timeout")
	if err != nil {
		t.Fatal(err)
	}
	booted, bin := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"systemctl":          `case "$*" in *--no-block*) ;; *try-restart*) exec sleep 600 ;; esac`,
		"deb-systemd-invoke": `exec systemctl "$@"`,
		"timeout":            "shift; exec " + timeout + ` 1 "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	for name, args := range map[string][]string{"deb/nodelet.postinst": {"configure", "0.1.0"}, "rpm/post": {"2"}} {
		text := strings.ReplaceAll(string(script(name)), "/run/systemd/system", booted)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c := exec.CommandContext(ctx, "sh", append([]string{"-c", text, name}, args...)...)
		c.WaitDelay = time.Second
		out, err := c.CombinedOutput()
		if err != nil || ctx.Err() != nil {
			t.Errorf("%s: got %v, %v and %s, want the end of the script", name, err, ctx.Err(), out)
		}
		cancel()
	}
}

// TestInstallationInAnImage runs the script of an installation in the root directory of another machine, such as the
// image of one, where systemd does not run: the machine starts the kubelet at each boot.
func TestInstallationInAnImage(t *testing.T) {
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	for _, program := range []string{"systemctl", "deb-systemd-helper"} {
		text := "#!/bin/sh\necho " + program + " \"$@\" >> " + calls + "\n"
		if err := os.WriteFile(filepath.Join(bin, program), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.ReplaceAll(string(script("deb/nodelet-kubelet.postinst")), "/run/systemd/system", "/nonexistent")
	run := exec.Command("sh", "-c", text, "postinst", "configure", "")
	run.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("got %v: %s", err, out)
	}
	const want = "deb-systemd-helper enable kubelet.service\n"
	if got, err := os.ReadFile(calls); string(got) != want {
		t.Errorf("got calls %q, %v, want %q", got, err, want)
	}
}

// TestReinstalledKubeletStartsAtBoot runs the scripts of a removal without purge and of the installation after it. The
// package keeps its configuration in between, so the second installation counts as an upgrade.
func TestReinstalledKubeletStartsAtBoot(t *testing.T) {
	bin := t.TempDir()
	link := filepath.Join(bin, "link")
	helper := "#!/bin/sh\ncase $1 in enable) : > " + link + ";; disable) rm -f " + link + ";; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "deb-systemd-helper"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, run := range [][]string{
		{"postinst", "configure", ""}, {"prerm", "remove"}, {"postrm", "remove"}, {"postinst", "configure", "0.1.0"},
	} {
		text := string(script("deb/nodelet-kubelet." + run[0]))
		text = strings.ReplaceAll(text, "/run/systemd/system", "/nonexistent")
		c := exec.Command("sh", append([]string{"-c", text}, run...)...)
		c.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: got %v: %s", run, err, out)
		}
	}
	if _, err := os.Stat(link); err != nil {
		t.Errorf("after the second installation: got %v, want an enabled kubelet.service", err)
	}
}

// TestRemovalDisables runs the scripts of an installation and a removal with the real deb-systemd-helper. In between,
// the administrator enables nodelet.service. A link that stays would start the nodelet of a later installation at the
// next boot, in the place of the kubelet.
func TestRemovalDisables(t *testing.T) {
	need(t, "deb-systemd-helper")
	root, bin := t.TempDir(), t.TempDir()
	unit := filepath.Join(root, "usr/lib/systemd/system/nodelet.service")
	link := filepath.Join(root, "etc/systemd/system/multi-user.target.wants/nodelet.service")
	err := errors.Join(os.MkdirAll(filepath.Dir(unit), 0o755), os.MkdirAll(filepath.Dir(link), 0o755),
		os.Mkdir(filepath.Join(root, "etc/default"), 0o755),
		os.WriteFile(unit, []byte("[Install]\nWantedBy=multi-user.target\n"), 0o644))
	for _, program := range []string{"systemctl", "deb-systemd-invoke"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		text := strings.NewReplacer("/run/systemd/system", bin, "/etc/", root+"/etc/",
			"/usr/share/nodelet/default", "/dev/null").Replace(string(script(name)))
		c := exec.Command("sh", append([]string{"-c", text, name}, args...)...)
		c.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "DPKG_ROOT=" + root, "DPKG_MAINTSCRIPT_PACKAGE=nodelet"}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: got %v: %s", name, args, err, out)
		}
	}
	run("deb/nodelet.postinst", "configure", "")
	if err := os.Symlink("/usr/lib/systemd/system/nodelet.service", link); err != nil {
		t.Fatal(err)
	}
	run("deb/nodelet.postinst", "configure", "0.1.0")
	if _, err := os.Lstat(link); err != nil {
		t.Errorf("after an upgrade: got %v, want an enabled nodelet.service", err)
	}
	run("deb/nodelet.prerm", "remove")
	if _, err := os.Lstat(link); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the removal: got %v for the link, want that it is gone", err)
	}
	run("deb/nodelet.postrm", "remove")
	run("deb/nodelet.postrm", "purge")
	if left, err := filepath.Glob(filepath.Join(root, "var/lib/systemd/*")); len(left) > 0 || err != nil {
		t.Errorf("after the purge: got %q, %v, want no state", left, err)
	}
}

// TestFlagsFile runs the scripts of installations, upgrades and removals: the flags of the package are the first of a
// machine, and no later ones. Flags and those that `nodelet systemd install` has kept beside them stay until a purge.
func TestFlagsFile(t *testing.T) {
	const packaged, mine = "NODELET_ARGS=--config=/packaged\n", "NODELET_ARGS=--kubeconfig=/mine\n"
	for _, c := range []struct{ before, run, want string }{
		{"", "postinst configure", packaged},
		{mine, "postinst configure", mine},
		{mine, "postinst configure 0.1.0", mine},
		{"", "postinst configure 0.1.0", ""},
		{mine, "postrm remove", mine},
		{mine, "postrm purge", ""},
	} {
		dir := t.TempDir()
		flags, shared := filepath.Join(dir, "nodelet"), filepath.Join(dir, "shared")
		old := flags + ".old"
		if err := os.WriteFile(shared, []byte(packaged), 0o644); err != nil {
			t.Fatal(err)
		}
		if c.before != "" {
			err := errors.Join(os.WriteFile(flags, []byte(c.before), 0o644), os.WriteFile(old, []byte(c.before), 0o644))
			if err != nil {
				t.Fatal(err)
			}
		}
		args := strings.Fields(c.run)
		text := strings.NewReplacer("/usr/share/nodelet/default", shared, "/etc/default", dir,
			"/run/systemd/system", "/nonexistent", "deb-systemd-helper", ":").Replace(string(script("deb/nodelet." + args[0])))
		if out, err := exec.Command("sh", append([]string{"-c", text}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: got %v: %s", c.run, err, out)
		}
		if got, err := os.ReadFile(flags); string(got) != c.want || c.want != "" && err != nil {
			t.Errorf("%s after %q: got flags %q, %v, want %q", c.run, c.before, got, err, c.want)
		}
		if _, err := os.Stat(old); c.before != "" && errors.Is(err, os.ErrNotExist) != (c.want == "") {
			t.Errorf("%s: got %v for the old flags, want that only a purge removes them", c.run, err)
		}
	}
}

// TestRemovalUninstalls runs the scripts of a removal on machines where `nodelet systemd install` has written a file.
// They run `nodelet systemd uninstall`, for a unit without its program would stay, and hide that of a later package. A
// unit of the administrator's stays.
func TestRemovalUninstalls(t *testing.T) {
	const written = `# Written by "nodelet systemd install"; "nodelet systemd uninstall" removes it.` + "\n"
	for _, c := range []struct{ file, content string }{
		{"kubelet.service.d/90-nodelet.conf", written},
		{"nodelet.service", written + "[Unit]\n"},
		{"nodelet.service", "# Mine\n[Unit]\n"},
		{"", ""},
	} {
		file, content := c.file, c.content
		ours := strings.HasPrefix(content, written)
		for name, arg := range map[string]string{"deb/nodelet.prerm": "remove", "rpm/preun": "0"} {
			units, bin := t.TempDir(), t.TempDir()
			calls := filepath.Join(bin, "calls")
			for _, program := range []string{"systemctl", "deb-systemd-invoke", "deb-systemd-helper", "nodelet"} {
				script := "#!/bin/sh\necho " + program + " \"$@\" >> " + calls + "\n"
				if err := os.WriteFile(filepath.Join(bin, program), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if file != "" {
				path := filepath.Join(units, file)
				err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
				if err != nil {
					t.Fatal(err)
				}
			}
			paths := strings.NewReplacer("/run/systemd/system", bin, "/etc/systemd/system", units)
			text := paths.Replace(string(script(name)))
			run := exec.Command("sh", "-c", text, name, arg)
			run.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
			if out, err := run.CombinedOutput(); err != nil {
				t.Errorf("%s with %q: got %v: %s", name, file, err, out)
			}
			got, err := os.ReadFile(calls)
			if uninstalls := strings.Contains(string(got), "nodelet systemd uninstall\n"); uninstalls != ours {
				t.Errorf("%s with %q %q: got calls %q, %v, want uninstall: %v", name, file, content, got, err, ours)
			}
		}
	}
}

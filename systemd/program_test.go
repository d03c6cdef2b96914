package systemd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProgramMustBeInstalled checks that no unit starts a program that may vanish or that others can change.
func TestProgramMustBeInstalled(t *testing.T) {
	m := newMachine(t, true, "ExecStart=/usr/bin/kubelet")
	m.Program = "/home/me/nodelet/bin/nodelet"
	if err := m.Install(t.Context(), false, nil); err == nil || !strings.Contains(err.Error(), "is not installed") {
		t.Errorf("build directory: got %v", err)
	}
	m.Program = "/usr/bin/nodelet"
	for _, path := range []string{"usr/bin/nodelet", "usr"} {
		if err := os.Chmod(filepath.Join(m.Root, path), 0o777); err != nil {
			t.Fatal(err)
		}
		err := m.Install(t.Context(), false, nil)
		if err == nil || !strings.Contains(err.Error(), "users other than root can change /"+path) {
			t.Errorf("%s: got %v", path, err)
		}
		if err := os.Chmod(filepath.Join(m.Root, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.check(m.dropIn(), "")
}

// TestProgramBelowLinks checks that a program is installed if its directory is one of the system through a link, as
// /usr/local is where /usr is read-only: the kernel gives its path without links.
func TestProgramBelowLinks(t *testing.T) {
	for link, dir := range map[string]string{"/usr/local": "/var/usrlocal", "/opt": "/var/opt"} {
		m := newMachine(t, true, "ExecStart=/usr/bin/kubelet")
		m.Program = dir + "/bin/nodelet"
		file := m.path(m.Program)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := m.checkProgram(); err == nil || !strings.Contains(err.Error(), "is not installed") {
			t.Errorf("%s without a link: got %v, want that it is not installed", m.Program, err)
		}
		if err := os.Symlink(m.path(dir), m.path(link)); err != nil {
			t.Fatal(err)
		}
		if err := m.checkProgram(); err != nil {
			t.Errorf("%s leads to %s: %v", link, dir, err)
		}
		if err := os.Chmod(m.path(dir), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := m.checkProgram(); err == nil || !strings.Contains(err.Error(), "users other than root can change "+dir) {
			t.Errorf("others can change %s: got %v", dir, err)
		}
	}
}

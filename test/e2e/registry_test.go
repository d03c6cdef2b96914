//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// registryConfig is for the registry of the Distribution project, as Debian has it in the package docker-registry.
const registryConfig = `
version: 0.1
log: {level: info, formatter: text}
storage: {filesystem: {rootdirectory: '%[1]s/data'}}
http: {addr: '%[2]s:0'}
auth: {htpasswd: {realm: nodelet.test, path: '%[1]s/htpasswd'}}
`

// openSesame is the bcrypt hash of "open-sesame", as htpasswd -B writes it.
const openSesame = "$2y$04$MTJQLZAPYdbLUOS2Mkr8vOUP0vDcpY.RYYYH.cb.qumDQk5dFdGF."

var listening = regexp.MustCompile(`listening on ([0-9.]+:[0-9]+)`)

// lockedRegistry runs a registry with testbed.BusyboxImage until the test ends, and returns its URL. It requires the
// user and the password "open-sesame".
func lockedRegistry(t *testing.T, user string) (url string) {
	t.Helper()
	program, err := cache(t).Registry(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yml": fmt.Sprintf(registryConfig, dir, tb.HostIP()),
		"htpasswd":   user + ":" + openSesame + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := startRegistry(t, program, filepath.Join(dir, "config.yml"))
	if err := node().Runtime.Push(t.Context(), testbed.BusyboxImage, at, user, "open-sesame"); err != nil {
		t.Fatal(err)
	}
	return "http://" + at
}

// startRegistry runs the registry until the test ends, and returns its address, which it takes from its log.
func startRegistry(t *testing.T, program, config string) string {
	t.Helper()
	cmd := exec.Command(program, "serve", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	found := make(chan string, 1)
	go func() {
		defer close(found)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := listening.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
				break
			}
		}
		_, _ = io.Copy(io.Discard, log)
	}()
	select {
	case at, ok := <-found:
		if !ok {
			t.Fatal("the registry ended at its start")
		}
		return at
	case <-time.After(limit):
		t.Fatal("the registry does not say where it listens")
		return ""
	}
}

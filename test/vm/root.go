package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// rootScenario runs the tests on real parts (test/e2e) in a machine with cgroup v2 and systemd: their testbed, with its
// control plane, is started in the machine. The machine sees this machine's source tree, built programs and Go modules
// at the same places, below layers of its own, so that nothing is written to this machine.
type rootScenario struct {
	*scenario
	uml           *umlMachine
	run, leaveOut string // which tests
	goCommand     string
}

const rootLimit = 50 * time.Minute

// rootFiles are the binary of the tests.
func rootFiles(ctx context.Context, cache *testbed.Cache, dir string) ([]string, error) {
	if err := testbed.Build(ctx, testbed.Options{Progress: os.Stdout}); err != nil {
		return nil, err
	}
	tests := filepath.Join(dir, "e2e.test")
	return []string{tests}, run(ctx, "", "go", "test", "-c", "-tags", "e2e", "-o", tests, "./test/e2e")
}

func (s *rootScenario) prove() error {
	return s.inOrder([]step{
		{"boot", func() error { return s.m.start(bootLimit) }},
		{"this machine's files", s.files},
		{"root tests", s.tests},
		{"power-off", func() error { return s.uml.powerOff() }},
	})
}

// files shows the machine what the tests need of this machine.
func (s *rootScenario) files() error {
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("ask the go command for its directories: %w", err)
	}
	s.goCommand = filepath.Join(strings.Fields(string(out))[0], "bin/go")
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	built := cmp.Or(os.Getenv(testbed.CacheEnv), filepath.Join(cache, "nodelet-testbed"))
	commands := []string{
		mountPayload,
		"mkdir -p /host && mount -r -t hostfs none /host -o /host",
		"systemctl stop containerd",
	}
	for _, dir := range append(strings.Fields(string(out)), tree, built) {
		commands = append(commands, "d="+dir+" l=/var/lib/layers/$d; mkdir -p $d $l/upper $l/work && "+
			"mount -t overlay overlay $d -o lowerdir=/host$d,upperdir=$l/upper,workdir=$l/work")
	}
	return s.need(commands...)
}

// tests prints the tests' output while they run.
func (s *rootScenario) tests() error {
	tree, err := os.Getwd()
	if err != nil {
		return err
	}
	log := filepath.Join(s.uml.dir, "out", "tests.log")
	if err := s.need("mkdir -p /out && mount -t hostfs none /out -o /out"); err != nil {
		return err
	}
	stop := follow(log, os.Stdout)
	defer stop()
	environment := fmt.Sprintf("HOME=/root PATH=$PATH:%s GOPROXY=off %s=%s",
		filepath.Dir(s.goCommand), testbed.DriverEnv, testbed.DriverSystemd)
	_, err = s.m.sh(rootLimit, fmt.Sprintf("cd %s/test/e2e && env %s /payload/e2e.test "+
		"-test.v -test.timeout %s -test.run '%s' -test.skip '%s' >/out/tests.log 2>&1",
		tree, environment, rootLimit, s.run, s.leaveOut))
	return err
}

// follow copies a file that grows, until it is stopped.
func follow(path string, to io.Writer) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var offset int64
		for more := true; more; {
			select {
			case <-end:
				more = false
			case <-time.After(time.Second):
			}
			f, err := os.Open(path)
			if err != nil {
				continue
			}
			n, _ := io.Copy(to, io.NewSectionReader(f, offset, 1<<40))
			offset += n
			f.Close()
		}
	}()
	return func() { close(end); <-ended }
}

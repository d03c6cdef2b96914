//go:build e2e

package e2e

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// cache returns the cache of the programs that tests build or unpack when they first need them.
func cache(t *testing.T) *testbed.Cache {
	t.Helper()
	c, err := testbed.OpenCache(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// runOnNode runs a program in the node's network namespace until the test ends, and returns the path of its log.
func runOnNode(t *testing.T, argv ...string) (log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), filepath.Base(argv[0])+".log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command("nsenter",
		append([]string{"--net=" + filepath.Join("/run/netns", node().Netns), "--"}, argv...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			text, _ := os.ReadFile(log)
			lines := strings.Split(string(text), "\n")
			t.Logf("log of %s:\n%s", filepath.Base(argv[0]), strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	return log
}

// scrape gets a path of the agent's HTTP API through the API server.
func scrape(t *testing.T, path string) string {
	t.Helper()
	text, err := tryScrape(path)
	if err != nil {
		t.Fatalf("get %s of the node: %v%s", path, err, agentLogTail())
	}
	return text
}

// tryScrape is scrape for an agent that may not serve yet.
func tryScrape(path string) (string, error) {
	body, err := api.Core.Get().AbsPath("/api/v1/nodes/" + node().Name + "/proxy/" + path).Stream(context.Background())
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), err
}

// applyFile creates the objects of a file in testdata and deletes them when the test ends.
func applyFile(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	apply(t, string(text))
}

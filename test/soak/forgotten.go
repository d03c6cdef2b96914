package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// forgottenTasks restarts the runtime if it cannot remove a container that has ended, or keeps the root file system of
// one that it has removed mounted. containerd loses track of a container's task when the caller of StartContainer is
// killed at a certain moment, and finds it again only when it starts. No agent can repair that; that everything is
// clean afterwards is checked.
func (s *soak) forgottenTasks(ctx context.Context) {
	var left []string
	kept := within(ctx, time.Minute, func() string {
		var err error
		if left, err = s.left(ctx); err != nil {
			return err.Error()
		}
		return strings.Join(tasks(left), "; ")
	})
	if kept == "" || ctx.Err() != nil {
		return
	}
	log, err := readFrom(s.node.Runtime.Log(), s.logged.runtime)
	if err != nil || !lostTask(left, log) {
		return
	}
	s.report.forgot()
	if err := errors.Join(s.node.Runtime.Stop(unix.SIGKILL), s.node.Runtime.Start(ctx)); err != nil {
		s.report.violate("restart the runtime: %v", err)
	}
}

// tasks returns the IDs of containers that have ended and of those whose root file system is mounted.
func tasks(left []string) (ids []string) {
	for _, line := range left {
		if m := keptTask.FindStringSubmatch(line); m != nil {
			ids = append(ids, m[1]+m[2])
		}
	}
	return ids
}

var keptTask = regexp.MustCompile(
	`: container (\w+) .*CONTAINER_EXITED$|/io\.containerd\.runtime\.v2\.task/k8s\.io/(\w+)/`)

// lostTask reports whether the runtime's log has a canceled call for one of the tasks that are left.
func lostTask(left []string, log []byte) bool {
	for line := range bytes.Lines(log) {
		about := func(id string) bool { return bytes.Contains(line, []byte(id)) }
		if bytes.Contains(line, []byte("context canceled")) && slices.ContainsFunc(tasks(left), about) {
			return true
		}
	}
	return false
}

// forgottenResources removes network namespaces that the runtime has lost and, if the runtime sets up the network,
// addresses. Only the runtime knows their names, so no agent can remove them; without a sandbox they hold no process.
//
// A runtime that is killed may have made a namespace that it had not written down. If the caller of RunPodSandbox is
// killed, containerd kills the network plugin and then calls DEL, but the plugin's own child, which allocates the
// address, may go on and write it down after that.
func (s *soak) forgottenResources(ctx context.Context) {
	if within(ctx, time.Minute, func() string { return s.clean(ctx) }) == "" {
		return
	}
	left, err := s.left(ctx)
	if err != nil {
		return // the check that follows reports it
	}
	for _, line := range left {
		_, path, _ := strings.Cut(line, ": mount ")
		if s.report.injected("runtime-killed") && strings.Contains(path, "/netns/cni-") {
			s.report.forgot()
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				s.report.violate("unmount a namespace that the runtime forgot: %v", err)
			}
		}
		_, path, _ = strings.Cut(line, ": address ")
		if s.opts.network == "runtime" && filepath.IsAbs(path) && s.pluginWasKilled(path) {
			s.report.forgot()
			if err := os.Remove(path); err != nil {
				s.report.violate("remove an address that the runtime forgot: %v", err)
			}
		}
	}
}

// pluginWasKilled reports whether the runtime has killed the network plugin that set up the sandbox of an address,
// and does not know that sandbox.
func (s *soak) pluginWasKilled(address string) bool {
	text, err := os.ReadFile(address)
	if err != nil {
		return false
	}
	sandbox, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\r\n")
	log, err := readFrom(s.node.Runtime.Log(), s.logged.runtime)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(log) {
		failed := bytes.Contains(line, []byte(`failed to setup network for sandbox \"`+sandbox))
		if failed && (bytes.Contains(line, []byte("signal: killed")) || bytes.Contains(line, []byte("context canceled"))) {
			return true
		}
	}
	return false
}

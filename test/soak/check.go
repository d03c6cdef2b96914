package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// check holds the node to the invariants once the churn's pods have gone. What has to settle gets the time for it.
func (s *soak) check(ctx context.Context) {
	if problem := s.churn.pause(ctx); problem != "" && ctx.Err() == nil {
		s.report.violate("alive: %s", problem)
	}
	if problem := s.crashed(); problem != "" {
		s.report.violate("alive: the agent has crashed: %s", problem)
	}
	s.deleteRestored(ctx)
	s.forgottenTasks(ctx)
	s.forgottenResources(ctx)
	for _, c := range []struct {
		name string
		look func(context.Context) string
	}{
		{"alive", s.nodeReady},
		{"undisturbed", s.undisturbed},
		{"clean", s.clean},
		{"bounded", s.bounded},
	} {
		if problem := within(ctx, settleLimit, func() string { return c.look(ctx) }); problem != "" && ctx.Err() == nil {
			s.report.violate("%s: %s", c.name, problem)
		}
	}
}

// evidence holds the run to what it says of itself: a watch without updates has compared no statuses, and a fault that
// no operation has felt was none.
func (s *soak) evidence() {
	if s.status.updates.Load() == 0 {
		s.report.violate("monotonic: the watch of the pods' statuses has seen no update")
	}
	if s.report.Faults["root-eio"]+s.report.Faults["root-read-only"] > 0 && s.page.Failed() == 0 {
		s.report.violate("faults: files were to fail, and no operation has")
	}
}

// deleteRestored deletes the pods of the churn that a restored etcd has brought back.
func (s *soak) deleteRestored(ctx context.Context) {
	if !s.report.injected("etcd-restored") && !s.report.injected("etcd-restored-unseen") {
		return
	}
	problem := within(ctx, settleLimit, func() string {
		list := &corev1.PodList{}
		pods := func(r *rest.Request) *rest.Request {
			return r.Namespace(namespace).Resource("pods").Param("labelSelector", "soak=churn")
		}
		if err := pods(s.api.Core.Delete()).Do(ctx).Error(); err != nil {
			return err.Error()
		}
		if err := pods(s.api.Core.Get()).Do(ctx).Into(list); err != nil {
			return err.Error()
		}
		if len(list.Items) > 0 {
			return describe(&list.Items[0])
		}
		return ""
	})
	if problem != "" && ctx.Err() == nil {
		s.report.violate("alive: a pod that the restored etcd knows was deleted and is still there: %s", problem)
	}
}

func (s *soak) nodeReady(ctx context.Context) string {
	if s.node.AgentPID() == 0 {
		return "the agent does not run"
	}
	n := &corev1.Node{}
	if err := s.api.Core.Get().Resource("nodes").Name(s.node.Name).Do(ctx).Into(n); err != nil {
		return err.Error()
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "the node is not Ready"
}

// undisturbed compares the steady pods with what they were.
func (s *soak) undisturbed(ctx context.Context) string {
	now, err := s.steady.list(ctx, s)
	if err != nil {
		return err.Error()
	}
	if !slices.Equal(now, s.steady.instances) {
		was, is := strings.Join(s.steady.instances, "\n"), strings.Join(now, "\n")
		return fmt.Sprintf("containers were\n%s\nand are\n%s", was, is)
	}
	for file, want := range s.steady.tokens {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			return fmt.Sprintf("the file in an emptyDir of pod %s is %q (%v)", want, got, err)
		}
	}
	for name := range s.steady.uids {
		p, err := s.get(ctx, name)
		if err != nil {
			return err.Error()
		}
		if !isReady.holds(p) {
			return fmt.Sprintf("pod %s is not Ready: %s", name, describe(p))
		}
	}
	return ""
}

// clean compares what pods have on the node with the baseline.
func (s *soak) clean(ctx context.Context) string {
	left, err := s.left(ctx)
	if err != nil {
		return err.Error()
	}
	if len(left) > 0 {
		return fmt.Sprintf("%d things are left: %s", len(left), strings.Join(left, "; "))
	}
	return ""
}

// left lists what pods have on the node beyond the baseline.
func (s *soak) left(ctx context.Context) ([]string, error) {
	now, err := s.node.Leftovers(ctx)
	known := func(line string) bool { return slices.Contains(s.baseline, line) }
	return slices.DeleteFunc(now, known), err
}

// checkTrace compares what a pod of the churn wrote down with what it should have run; last is the last status seen,
// or nil.
func (s *soak) checkTrace(uid types.UID, k kind, last *corev1.Pod) {
	file := filepath.Join(s.outDir, string(uid))
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		s.report.violate("once: %v", err)
		return
	}
	defer os.Remove(file)
	if k.trace == nil {
		return
	}
	got := strings.Fields(string(text))
	succeeded := last != nil && last.Status.Phase == corev1.PodSucceeded
	if succeeded && !slices.Equal(got, k.trace) || len(got) > len(k.trace) || !slices.Equal(got, k.trace[:len(got)]) {
		s.report.violate("once: a pod of kind %q (%s) ran %v, want %v", k.name, uid, got, k.trace)
	}
}

// agentUsage is what the agent holds.
type agentUsage struct {
	Goroutines, Files, PrivateKiB int
}

func (s *soak) readUsage() (u agentUsage, err error) {
	pid := s.node.AgentPID()
	if u.Files, err = openFiles(pid); err != nil {
		return u, err
	}
	if u.PrivateKiB, err = privateKiB(pid); err != nil {
		return u, err
	}
	u.Goroutines, err = s.goroutines()
	return u, err
}

// bounded compares what the agent holds with what it held at the start. Connections and timers vary.
func (s *soak) bounded(context.Context) string {
	now, err := s.readUsage()
	if err != nil {
		return err.Error()
	}
	s.report.usage(now)
	if now.Goroutines > s.usage.Goroutines+40 {
		return fmt.Sprintf("the agent has %d goroutines, %d at the start", now.Goroutines, s.usage.Goroutines)
	}
	if now.Files > s.usage.Files+25 {
		return fmt.Sprintf("the agent has %d open files, %d at the start", now.Files, s.usage.Files)
	}
	if now.PrivateKiB > 3*s.usage.PrivateKiB+32<<10 {
		return fmt.Sprintf("the agent has %d KiB of private memory, %d at the start", now.PrivateKiB, s.usage.PrivateKiB)
	}
	return ""
}

// goroutines reads the agent's own figure through the API server's proxy to the node.
func (s *soak) goroutines() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	body, err := s.api.Core.Get().Resource("nodes").Name(s.node.Name).SubResource("proxy").Suffix("metrics").
		SetHeader("Accept", "text/plain").Stream(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the agent's metrics: %w", err)
	}
	defer body.Close()
	for lines := bufio.NewScanner(io.LimitReader(body, 16<<20)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			n, err := strconv.ParseFloat(value, 64)
			return int(n), err
		}
	}
	return 0, fmt.Errorf("read the agent's metrics: no go_goroutines")
}

func openFiles(pid int) (int, error) {
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(all), err
}

// privateKiB is the memory that only this process holds and that must be kept for it.
func privateKiB(pid int) (total int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("Private_Dirty:")); ok {
			return strconv.Atoi(string(bytes.Fields(value)[0]))
		}
	}
	return 0, fmt.Errorf("read /proc/%d/smaps_rollup: no Private_Dirty", pid)
}

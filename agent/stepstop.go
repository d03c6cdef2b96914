package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/spec"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/probes"
)

// postStart runs the hook of a container that has just been started.
func (t *task) postStart(ctx context.Context, s plan.PostStart) error {
	_, c := podutil.Container(&t.pod.Spec, s.Name)
	if c == nil || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	return t.hook(ctx, s.ID, c, c.Lifecycle.PostStart)
}

// hook runs a lifecycle handler against a container instance.
func (t *task) hook(ctx context.Context, id string, c *corev1.Container, h *corev1.LifecycleHandler) error {
	warn := func(reason, message string) { t.containerEvent(c.Name, corev1.EventTypeWarning, reason, message) }
	return probes.RunHook(ctx, h, probes.HookTarget{ContainerID: id, Container: c, Exec: t.hands.Exec, Warn: warn,
		PodIP: t.hands.podAddress(t.pod, t.sandbox)})
}

// stopContainer runs the preStop hook within the grace and then stops the container with what is left of it.
func (t *task) stopContainer(ctx context.Context, s plan.StopContainer) error {
	t.containerEvent(s.Name, corev1.EventTypeNormal, "Killing", s.Reason)
	if h := t.preStop(s); h != nil && time.Until(s.Deadline) > 0 {
		t.runPreStop(ctx, s, h)
	}
	// Not even a pod with no grace at all is denied the time that a process needs to see the signal.
	left := max(time.Until(s.Deadline), minStop)
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.hands.Runtime.StopContainer(ctx, s.ID, left)
}

// preStop is the hook of a running container: from its spec, or from the runtime's annotations where no source knows the
// pod any more.
func (t *task) preStop(s plan.StopContainer) *corev1.LifecycleHandler {
	if i := t.instance(s.ID); i == nil || i.State != plan.ContainerRunning {
		return nil
	}
	if _, c := podutil.Container(&t.pod.Spec, s.Name); c != nil {
		if c.Lifecycle == nil {
			return nil
		}
		return c.Lifecycle.PreStop
	}
	return t.made.PreStop
}

func (t *task) runPreStop(ctx context.Context, s plan.StopContainer, h *corev1.LifecycleHandler) {
	ctx, cancel := context.WithDeadline(ctx, s.Deadline)
	defer cancel()
	_, c := podutil.Container(&t.pod.Spec, s.Name)
	if c == nil {
		c = &corev1.Container{Name: s.Name, Ports: t.made.Ports}
	}
	if err := t.hook(ctx, s.ID, c, h); err != nil {
		t.log.Warn("preStop hook failed", "container", s.Name, "err", err)
		t.containerEvent(s.Name, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// removeContainer removes a dead instance and, where it is not to stay, its log and the collectors' link to it.
func (t *task) removeContainer(ctx context.Context, s plan.RemoveContainer) error {
	if err := t.hands.Runtime.RemoveContainer(ctx, s.ID); err != nil {
		return err
	}
	c := t.instance(s.ID)
	if c == nil || s.KeepLog {
		return nil
	}
	log := filepath.Join(t.hands.Node().PodLogDir(t.pod.Namespace, t.pod.Name, t.pod.UID), spec.LogPath(s.Name, c.Attempt))
	rotated, _ := filepath.Glob(log + ".*")
	var errs []error
	for _, p := range append(rotated, log, t.logLink(s.Name, s.ID)) {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove log: %w", err))
		}
	}
	return errors.Join(errs...)
}

// noteReset notes that all containers of the pod are to start anew, or that this is over.
func (t *task) noteReset(s plan.NoteReset) error {
	if s.Over {
		return t.hands.Volumes.ForgetReset(t.pod.UID)
	}
	return t.hands.Volumes.NoteReset(t.pod.UID)
}

// removeDir removes what the disk still shows of a pod that is gone. Its directory goes last: by that a later life of the agent
// would find the rest.
func (t *task) removeDir(ctx context.Context) error {
	logs, err := logDirs(t.hands.Node().PodLogsDir, t.pod.UID)
	if err != nil {
		return err
	}
	for _, dir := range logs {
		if err := t.removeLogs(dir); err != nil {
			return err
		}
	}
	if err := t.hands.Volumes.RemovePodDir(ctx, t.pod.UID); err != nil {
		return err
	}
	if t.hands.UserNS != nil {
		t.hands.UserNS.Release(t.pod.UID)
	}
	if t.hands.Devices != nil {
		t.hands.Devices.Release(t.pod.UID)
	}
	return nil
}

// logDirs are the log directories of a pod of which perhaps nothing but the UID is known: <namespace>_<name>_<uid>.
func logDirs(all string, pod types.UID) (dirs []string, err error) {
	entries, err := os.ReadDir(all)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list log directories: %w", err)
	}
	for _, e := range entries {
		if parts := strings.SplitN(e.Name(), "_", 3); len(parts) == 3 && parts[2] == string(pod) {
			dirs = append(dirs, filepath.Join(all, e.Name()))
		}
	}
	return dirs, nil
}

// removeLogs removes the log directory of a pod with the collectors' links into it.
func (t *task) removeLogs(dir string) error {
	links, _ := filepath.Glob(filepath.Join(t.hands.logLinks(), "*.log"))
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && filepath.Dir(filepath.Dir(target)) == dir {
			_ = os.Remove(link)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove log directory: %w", err)
	}
	return nil
}

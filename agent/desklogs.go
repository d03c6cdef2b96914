package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/cri/logs"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/server"
)

// Logs writes the log of a container; see server.Agent.
func (d *Desk) Logs(ctx context.Context, of server.Container, o *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	f, err := d.find(ctx, of)
	if err != nil {
		return err
	}
	if !f.specifies(of.Name) {
		return server.NotFound("container %q not found in pod %q", of.Name, of.Pod)
	}
	id, err := instanceToRead(&f.now.status, of.Pod, of.Name, o.Previous)
	if err != nil {
		return server.Errorf(http.StatusBadRequest, "%v", err)
	}
	path := f.logPath(podutil.RuntimeID(id))
	if path == "" {
		return server.Errorf(http.StatusBadRequest, "unable to retrieve container logs for %s: the runtime does not know it any more", id)
	}
	options := logs.Options{Follow: o.Follow, Tail: -1, Limit: -1, Timestamps: o.Timestamps}
	if o.Follow {
		options.Ended = f.ended(of.Name, id)
	}
	if o.TailLines != nil {
		options.Tail = *o.TailLines
	}
	if o.LimitBytes != nil {
		options.Limit = *o.LimitBytes
	}
	switch {
	case o.SinceSeconds != nil:
		options.Since = time.Now().Add(-time.Duration(*o.SinceSeconds) * time.Second)
	case o.SinceTime != nil:
		options.Since = o.SinceTime.Time
	}
	err = d.logs.Read(ctx, path, options, stdout, stderr)
	if errors.Is(err, os.ErrNotExist) {
		err = server.Errorf(http.StatusBadRequest, "unable to retrieve container logs for %s: %v", id, err)
	}
	return err
}

// logPath is where the runtime writes the log of an instance; empty for one it does not know.
func (f *file) logPath(id string) string {
	if f.now.known != nil {
		for _, c := range f.now.known.Containers {
			if c.Id == id {
				return c.LogPath
			}
		}
	}
	return ""
}

// instanceToRead is the ID of the instance whose log is meant: the one that runs, else the last that ran; with previous the
// one before. The errors are the kubelet's, which people and tests know.
func instanceToRead(s *corev1.PodStatus, pod, name string, previous bool) (string, error) {
	c := podutil.ContainerStatus(s, name)
	if c == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod)
	}
	last := ""
	if t := c.LastTerminationState.Terminated; t != nil {
		last = t.ContainerID
	}
	id := ""
	switch st := c.State; {
	case previous && last == "":
		return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
	case previous:
		return last, nil
	case st.Running != nil:
		id = c.ContainerID
	case st.Terminated != nil && st.Terminated.ContainerID != "":
		id = st.Terminated.ContainerID
	case st.Terminated != nil || c.LastTerminationState.Terminated != nil:
		if id = last; id == "" {
			return "", fmt.Errorf("container %q in pod %q is terminated", name, pod)
		}
	case st.Waiting != nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod, waitingText(st.Waiting.Reason))
	}
	if id == "" {
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod)
	}
	return id, nil
}

func waitingText(reason string) string {
	switch reason {
	case plan.ReasonErrImagePull:
		return "image can't be pulled"
	case plan.ReasonImagePullBackOff:
		return "trying and failing to pull image"
	}
	return reason
}

// ended tells a follower whether the instance no longer runs, or nobody will tell any more; if not, when to ask again.
func (f *file) ended(container, id string) func() (bool, <-chan struct{}) {
	return func() (bool, <-chan struct{}) {
		if f.worker == nil {
			return true, nil
		}
		now := f.worker.shown.Load()
		c := podutil.ContainerStatus(&now.status, container)
		if c == nil || c.State.Running == nil || c.ContainerID != id {
			return true, nil
		}
		select {
		case <-f.worker.gone:
			return true, nil
		default:
			return false, now.over
		}
	}
}

// RunningLogs are the logs of all containers that run.
func (d *Desk) RunningLogs(ctx context.Context) ([]logs.Log, error) {
	files, err := d.files(ctx)
	if err != nil {
		return nil, err
	}
	var all []logs.Log
	for _, f := range files {
		if f.now.known == nil {
			continue
		}
		for _, c := range f.now.known.Containers {
			if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING && c.LogPath != "" {
				all = append(all, logs.Log{ID: c.Id, Path: c.LogPath})
			}
		}
	}
	return all, nil
}

func makePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of checkpoints: %w", err)
	}
	return nil
}

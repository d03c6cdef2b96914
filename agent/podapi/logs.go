package podapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/cri/logs"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/server"
)

// Logs writes the log of a container; see server.Agent.
func (s *Server) Logs(
	ctx context.Context, of server.Container, o *corev1.PodLogOptions, stdout, stderr io.Writer,
) error {
	v, err := s.find(ctx, of)
	if err != nil {
		return err
	}
	if _, found := podutil.Container(&v.Pod.Spec, of.Name); found == nil {
		return server.NotFound("container %q not found in pod %q", of.Name, of.Pod)
	}
	id, err := instanceToRead(v, of.Name, o.Previous)
	if err != nil {
		return server.Errorf(http.StatusBadRequest, "%v", err)
	}
	unavailable := func(cause any) error {
		return server.Errorf(http.StatusBadRequest, "unable to retrieve container logs for %s: %v", id, cause)
	}
	path := logPath(v, podutil.RuntimeID(id))
	if path == "" {
		return unavailable("the runtime has removed the container")
	}
	options := logOptions(o)
	if o.Follow {
		options.Ended = ended(v, of.Name, id)
	}
	err = s.cfg.Logs.Read(ctx, path, options, stdout, stderr)
	if errors.Is(err, os.ErrNotExist) {
		err = unavailable(err)
	}
	return err
}

func logOptions(o *corev1.PodLogOptions) logs.Options {
	options := logs.Options{
		Follow:     o.Follow,
		Tail:       ptr.Deref(o.TailLines, -1),
		Limit:      ptr.Deref(o.LimitBytes, -1),
		Timestamps: o.Timestamps,
	}
	switch {
	case o.SinceSeconds != nil:
		options.Since = time.Now().Add(-time.Duration(*o.SinceSeconds) * time.Second)
	case o.SinceTime != nil:
		options.Since = o.SinceTime.Time
	}
	return options
}

// logPath returns the log of a container instance, or "" if the runtime does not have the instance.
func logPath(v agent.PodView, id string) string {
	if v.Runtime != nil {
		for _, c := range v.Runtime.Containers {
			if c.Id == id {
				return c.LogPath
			}
		}
	}
	return ""
}

// instanceToRead returns the ID of the instance whose log is requested: the running one, else the last one that ran;
// with previous the one before that. The status of one that runs may say Waiting: its postStart hook runs. The errors
// are the kubelet's; users and tests know them.
func instanceToRead(v agent.PodView, name string, previous bool) (string, error) {
	pod, c := v.Pod.Name, podutil.ContainerStatus(&v.Status, name)
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
	case st.Waiting != nil && runningID(v, name) != "":
		id = runningID(v, name)
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
	case podutil.ReasonErrImagePull:
		return "image can't be pulled"
	case podutil.ReasonImagePullBackOff:
		return "trying and failing to pull image"
	}
	return reason
}

// ended returns a function that reports whether the instance has ended, or the agent is stopping. If not, it returns a
// channel that is closed when it should be asked again.
func ended(v agent.PodView, container, id string) func() (bool, <-chan struct{}) {
	return func() (bool, <-chan struct{}) {
		now, changed := v.Latest()
		return changed == nil || runningID(now, container) != podutil.RuntimeID(id), changed
	}
}

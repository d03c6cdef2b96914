package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/volumes"
)

const (
	// maxTerminationMessage bounds what is read from a termination message file, maxTerminationLog what is taken from the
	// end of a log in its place; both are the kubelet's.
	maxTerminationMessage = 4096
	maxTerminationLog     = 2048
)

// runtimeFacts are the runtime's facts about one pod as plan wants them, with what was read once and does not change.
type runtimeFacts struct {
	sandboxes  []plan.Sandbox
	containers []plan.Container
	// made is how each instance was made, by ID; messages are the termination messages of exited ones.
	made     map[string]spec.ContainerFacts
	messages map[string]string
	// exits is when the instances ended, by ID, on the agent's own clock.
	exits map[string]time.Time
}

func newRuntimeFacts() runtimeFacts {
	return runtimeFacts{made: map[string]spec.ContainerFacts{}, messages: map[string]string{}, exits: map[string]time.Time{}}
}

// observe gathers all facts about the pod. The runtime is asked only if something may have moved since it last was.
func (w *worker) observe(ctx context.Context) (plan.Observed, error) {
	if w.stale {
		w.explainLook(nil)
		known, err := w.hands.Runtime.Snapshot(ctx, w.desired.Pod.UID, w.known)
		if err != nil {
			return plan.Observed{}, err
		}
		w.known, w.stale = known, false
		w.facts.read(known, w.log)
	}
	o := plan.Observed{
		Now:       time.Now(),
		Sandboxes: w.facts.sandboxes, Containers: w.facts.containers,
		Verdicts: w.verdicts(),
		Memory:   w.memory,
		Node:     w.hands.planNode(),
	}
	if plan.Stopping(w.desired.Desired, o) {
		return o, w.observeDisk(&o)
	}
	return o, nil
}

// observeDisk adds what the pod has on the disk and in the cgroup tree; only its end asks for that.
func (w *worker) observeDisk(o *plan.Observed) error {
	pod := w.desired.Pod
	onDisk, err := w.hands.Volumes.List(pod.UID)
	if err != nil {
		return err
	}
	w.onDisk = map[string]volumes.OnDisk{}
	for _, v := range onDisk {
		w.onDisk[v.Name] = v
		o.VolumesOnDisk = append(o.VolumesOnDisk, v.Name)
	}
	_, err = os.Lstat(w.hands.Node().PodDir(pod.UID))
	o.DirOnDisk = err == nil
	o.CgroupExists, err = w.hands.cgroupExists(pod)
	return err
}

// read turns a snapshot into facts.
func (f *runtimeFacts) read(s *cri.Snapshot, log interface{ Warn(string, ...any) }) {
	f.sandboxes = make([]plan.Sandbox, len(s.Sandboxes))
	for i, box := range s.Sandboxes {
		f.sandboxes[i] = sandboxFact(box)
	}
	f.containers = make([]plan.Container, 0, len(s.Containers))
	for _, c := range s.Containers {
		made, known := f.made[c.Id]
		if !known {
			var err error
			if made, _, err = spec.ParseContainer(c.Labels, c.Annotations); err != nil {
				log.Warn("cannot read all that the runtime keeps about a container", "container", c.Id, "err", err)
			}
			f.made[c.Id] = made
		}
		f.containers = append(f.containers, f.container(c, made))
	}
}

func sandboxFact(s *runtimeapi.PodSandboxStatus) plan.Sandbox {
	out := plan.Sandbox{
		ID: s.Id, Attempt: s.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, s.CreatedAt),
		Ready: s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		out.IPs = append(out.IPs, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		out.IPs = append(out.IPs, more.GetIp())
	}
	return out
}

func (f *runtimeFacts) container(c cri.Container, made spec.ContainerFacts) plan.Container {
	out := plan.Container{
		ID: c.Id, Name: made.Name, SandboxID: c.SandboxID, Attempt: c.GetMetadata().GetAttempt(), State: stateFact(c.State),
		CreatedAt: moment(c.CreatedAt), StartedAt: moment(c.StartedAt), FinishedAt: moment(c.FinishedAt),
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		Image: c.GetImage().GetUserSpecifiedImage(), ImageID: c.GetImageRef(), Hash: made.Hash,
	}
	if out.Image == "" {
		out.Image = c.GetImage().GetImage()
	}
	if u := c.GetUser().GetLinux(); u != nil {
		out.User = &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	if out.State == plan.ContainerExited {
		out.Message = f.message(c, made)
		out.EndedAt = f.ended(c.Id, out.FinishedAt)
	}
	return out
}

// ended is when an instance ended, on the agent's monotonic clock: fixed when its end is first seen.
func (f *runtimeFacts) ended(id string, finished time.Time) time.Time {
	at, seen := f.exits[id]
	if !seen {
		now := time.Now()
		at = now.Add(-max(0, now.Sub(finished)))
		f.exits[id] = at
	}
	return at
}

func stateFact(s runtimeapi.ContainerState) plan.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return plan.ContainerCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return plan.ContainerRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return plan.ContainerExited
	}
	return plan.ContainerUnknown
}

// moment is a CRI time, nanoseconds since the epoch with 0 for never.
func moment(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// message is what an exited container left to say: its termination message file, or the end of its log where its policy
// asks for that and it failed, or the runtime's own words.
func (f *runtimeFacts) message(c cri.Container, made spec.ContainerFacts) string {
	if m, read := f.messages[c.Id]; read {
		return m
	}
	m := readTail(terminationFile(c, made), maxTerminationMessage, false)
	if m == "" && made.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.ExitCode != 0 {
		m = logTail(c.LogPath)
	}
	if m == "" {
		m = c.Message
	}
	f.messages[c.Id] = m
	return m
}

// terminationFile is where the container's termination message lies on the host.
func terminationFile(c cri.Container, made spec.ContainerFacts) string {
	for _, m := range c.Mounts {
		if made.TerminationMessagePath != "" && m.ContainerPath == made.TerminationMessagePath {
			return m.HostPath
		}
	}
	return ""
}

// logTail is the end of a CRI log without its time stamps.
func logTail(path string) string {
	var out strings.Builder
	for line := range strings.Lines(readTail(path, 2*maxTerminationLog, true)) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			out.WriteString(parts[3])
		}
	}
	text := out.String()
	return text[max(0, len(text)-maxTerminationLog):]
}

// readTail reads the first bytes of a file, or the last ones from the start of a line. The container may have put anything
// there, so links, pipes and devices are not followed; what cannot be read says nothing.
func readTail(path string, limit int64, end bool) string {
	if path == "" {
		return ""
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	cut := end && info.Size() > limit
	if cut {
		if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	if cut {
		_, after, _ := strings.Cut(string(text), "\n")
		return after
	}
	return string(text)
}

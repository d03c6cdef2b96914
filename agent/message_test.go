package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

func write(t testing.TB, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadTail checks that the end of a file is read, whatever its size.
func TestReadTail(t *testing.T) {
	for _, c := range []struct {
		text, want string
		cut        bool
	}{
		{"", "", false}, {"abc", "abc", false}, {"abcdefgh", "abcdefgh", false}, {"abcdefghi", "bcdefghi", true},
	} {
		if got, cut := readTail(write(t, c.text), 8); got != c.want || cut != c.cut {
			t.Errorf("of %q: got %q, %v, want %q, %v", c.text, got, cut, c.want, c.cut)
		}
	}
	huge := write(t, "")
	if err := os.Truncate(huge, 1<<40); err != nil {
		t.Fatal(err)
	}
	if got, cut := readTail(huge, 8); len(got) != 8 || !cut {
		t.Errorf("of a huge file: got %d bytes, %v, want 8, true", len(got), cut)
	}
}

// TestReadTailOfAnythingElse checks that anything but a regular file has no message, and is not even opened: that would
// use a device.
func TestReadTailOfAnythingElse(t *testing.T) {
	dir := t.TempDir()
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink(write(t, "secret"), link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, pipe, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", filepath.Join(dir, "missing"), dir, link, pipe, "/dev/zero"} {
		if got, _ := readTail(path, 8); got != "" {
			t.Errorf("%s: got %q, want none", path, got)
		}
	}
	if n, err := unix.Read(watch, make([]byte, 4096)); err != unix.EAGAIN {
		t.Errorf("got %d bytes about opens of the pipe, %v, want none", n, err)
	}
}

func TestLogTail(t *testing.T) {
	line := func(tag, text string) string {
		return "2000-01-01T00:00:00.123456789Z stdout " + tag + " " + text + "\n"
	}
	for _, c := range []struct{ name, log, want string }{
		{"lines", line("F", "one") + line("F", "two"), "one\ntwo\n"},
		{"parts of a line", line("P", "one") + line("P:x", "two") + line("F", "three"), "onetwothree\n"},
		{"empty lines", line("F", "") + line("F", "end"), "\nend\n"},
		{"no log lines", "garbage\n\n2000 stdout\n" + line("F", "end"), "end\n"},
		{"many lines", strings.Repeat(line("F", "x"), 1000), strings.Repeat("x\n", 80)},
		{"a long line", line("F", strings.Repeat("x", 16<<10)), strings.Repeat("x", 2047) + "\n"},
		{"a very long line", line("F", strings.Repeat("x", 1<<20)), strings.Repeat("x", 2047) + "\n"},
		{
			"a line after a very long one", line("F", strings.Repeat("x", 1<<20)) + line("F", "end"),
			strings.Repeat("x", 2043) + "\nend\n",
		},
		{"an endless line", strings.Repeat("x", 1<<20), ""},
		{"no such stream", "2000-01-01T00:00:00Z stdin F not written\n", ""},
	} {
		if got := logTail(write(t, c.log)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// FuzzLogTail checks that whatever a log holds, its end is short, and the last line is heard.
func FuzzLogTail(f *testing.F) {
	for _, seed := range []string{"", "\n", "2000-01-01T00:00:00Z stderr F text\n", "a b P c", "a b P:F c\nd e F f\n",
		strings.Repeat("\xff ", 5000)} {
		f.Add(seed)
	}
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, log string) {
		if err := os.WriteFile(path, []byte(log+"\n2000-01-01T00:00:00Z stdout F the last words\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := logTail(path)
		if len(got) > maxTerminationLog || strings.Count(got, "\n") > maxTerminationLines ||
			!strings.HasSuffix(got, "the last words\n") {
			t.Errorf("got %d bytes: %q, want the end of the log within the limits", len(got), got)
		}
	})
}

// TestMessage checks that the runtime's words come first, then the container's own; they are read once.
func TestMessage(t *testing.T) {
	file, log := write(t, "all is lost"), write(t, "2000-01-01T00:00:00Z stderr F from the log\n")
	for _, c := range []struct {
		name, runtime, file string
		code                int32
		policy              corev1.TerminationMessagePolicy
		want                string
	}{
		{"file", "", file, 1, corev1.TerminationMessageReadFile, "all is lost"},
		{"file before log", "", file, 1, corev1.TerminationMessageFallbackToLogsOnError, "all is lost"},
		{"log", "", write(t, ""), 1, corev1.TerminationMessageFallbackToLogsOnError, "from the log\n"},
		{"no log where all went well", "", write(t, ""), 0, corev1.TerminationMessageFallbackToLogsOnError, ""},
		{"no log where the policy says no", "", write(t, ""), 1, corev1.TerminationMessageReadFile, ""},
		{"runtime", "no such command", write(t, ""), 128, corev1.TerminationMessageReadFile, "no such command"},
		{"runtime and file", "killed", file, 137, corev1.TerminationMessageReadFile, "killed: all is lost"},
		{"the end of a long file", "", write(t, strings.Repeat("x", 5000)+"end"), 1, corev1.TerminationMessageReadFile,
			strings.Repeat("x", 4093) + "end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := spec.ContainerFacts{TerminationMessagePath: "/end", TerminationMessagePolicy: c.policy}
			ctr := cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
				Id:       "id",
				ExitCode: c.code,
				Message:  c.runtime,
				LogPath:  log,
				Mounts: []*runtimeapi.Mount{
					{ContainerPath: "/etc/hosts", HostPath: log},
					{ContainerPath: "/end", HostPath: c.file},
				},
			}}
			i := instance{made: made, messageFile: messageFile(ctr, made)}
			for range 2 {
				if i.end(ctr); i.message != c.want {
					t.Errorf("got %q, want %q", i.message, c.want)
				}
				ctr.Message = "something else"
			}
		})
	}
}

// TestMessageAtRelativePath checks that a relative path is mounted beneath the root, and that its file is found there
// although no more is kept of the labels, annotations and mounts.
func TestMessageAtRelativePath(t *testing.T) {
	file := write(t, "all is lost")
	f := listedFacts("uid", cri.PodSummary{})
	for _, state := range []runtimeapi.ContainerState{
		runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED,
	} {
		c := appIn(state)
		c.Annotations = map[string]string{spec.AnnotationTerminationMessagePath: "tmp/end"}
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/tmp/end", HostPath: file}}
		f.read(&cri.Snapshot{Containers: []cri.Container{c}}, discard())
		if c.Labels != nil || c.Annotations != nil || c.Mounts != nil {
			t.Errorf("kept what is read once: got %v", c.ContainerStatus)
		}
	}
	if got, want := f.containers[0].Message, "all is lost"; got != want {
		t.Errorf("got message %q, want %q", got, want)
	}
}

// appIn is the container app of a pod in the runtime.
func appIn(state runtimeapi.ContainerState) cri.Container {
	return cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{
		Id:    "id",
		State: state,
		Labels: map[string]string{
			podutil.LabelPodNamespace:  "default",
			podutil.LabelPodName:       "web",
			podutil.LabelPodUID:        "uid",
			podutil.LabelContainerName: "app",
		},
	}}
}

// TestExitTime checks that the end of a container lies in the past of the agent's own clock, and does not move any
// more.
func TestExitTime(t *testing.T) {
	finished := func(at time.Time) cri.Container {
		return cri.Container{ContainerStatus: &runtimeapi.ContainerStatus{FinishedAt: at.UnixNano()}}
	}
	var ahead, past instance
	now := time.Now()
	if ahead.end(finished(now.Add(time.Hour))); ahead.ended.After(time.Now()) {
		t.Errorf("an end that the runtime dates ahead: got %v from now, want no time in the future",
			time.Until(ahead.ended))
	}
	past.end(finished(now.Add(-time.Minute)))
	if ago := now.Sub(past.ended); ago.Round(time.Second) != time.Minute {
		t.Errorf("an end a minute ago: got %v ago, want %v", ago, time.Minute)
	}
	first := past.ended
	if past.end(finished(now)); !past.ended.Equal(first) {
		t.Errorf("the second answer about an end differs by %v from the first, want the same", past.ended.Sub(first))
	}
}

// TestFactsAreForgotten checks that nothing is kept of instances that are gone, however often a container crashes.
func TestFactsAreForgotten(t *testing.T) {
	f := listedFacts("uid", cri.PodSummary{})
	for _, id := range []string{"a", "b", "c"} {
		c := appIn(runtimeapi.ContainerState_CONTAINER_EXITED)
		c.Id = id
		f.read(&cri.Snapshot{Containers: []cri.Container{c}}, discard())
	}
	if len(f.instances) != 1 {
		t.Errorf("kept: got %d instances, want one", len(f.instances))
	}
}

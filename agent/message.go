package agent

import (
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
)

// What is shown of a container's last words; the bounds are the kubelet's.
const (
	maxTerminationMessage = 4096
	maxTerminationLog     = 2048
	maxTerminationLines   = 80
)

// logRead is how much is read from the end of a log: more than a line, which the runtimes cut at 16 KiB.
const logRead = 32 << 10

// message is what is said of the end of a container: the runtime's own words, then what the container has left in its
// termination message file, or the end of its log where its policy asks for that and it failed.
func (f *runtimeFacts) message(c cri.Container, made spec.ContainerFacts) string {
	if m, read := f.messages[c.Id]; read {
		return m
	}
	own, _ := readTail(terminationFile(c, made), maxTerminationMessage)
	if own == "" && made.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError && c.ExitCode != 0 {
		own = logTail(c.LogPath)
	}
	m := c.Message
	if m != "" && own != "" {
		m += ": "
	}
	m += own
	f.messages[c.Id] = m
	return m
}

// terminationFile returns the path on the host of the container's termination message, empty if there is none. The path in
// the pod's spec may be relative; agents and runtimes differ in whether they report the mount so.
func terminationFile(c cri.Container, made spec.ContainerFacts) string {
	if made.TerminationMessagePath == "" {
		return ""
	}
	for _, m := range c.Mounts {
		if path.Join("/", m.ContainerPath) == path.Join("/", made.TerminationMessagePath) {
			return m.HostPath
		}
	}
	return ""
}

// logTail is the end of a CRI log without its time stamps.
func logTail(path string) string {
	text, cut := readTail(path, logRead)
	if cut {
		_, text, _ = strings.Cut(text, "\n")
	}
	lines := slices.Collect(strings.Lines(text))
	var out strings.Builder
	for _, line := range lines[max(0, len(lines)-maxTerminationLines):] {
		out.WriteString(logContent(line))
	}
	said := out.String()
	return said[max(0, len(said)-maxTerminationLog):]
}

// logContent is what a container has written, from a line of a CRI log: time stamp, stream, tags, content. The tag P says
// that its line goes on in the next. A line that is none of a log's says nothing.
func logContent(line string) string {
	parts := strings.SplitN(line, " ", 4)
	if len(parts) < 4 {
		return ""
	}
	if tag, _, _ := strings.Cut(parts[2], ":"); tag == "P" {
		return strings.TrimSuffix(parts[3], "\n")
	}
	return parts[3]
}

// readTail reads the last bytes of a file and tells whether there are more before them. The container may have put anything
// there, so links, pipes and devices are not followed; what cannot be read says nothing.
func readTail(path string, limit int64) (text string, cut bool) {
	if path == "" {
		return "", false
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", false
	}
	from := max(0, info.Size()-limit)
	read, err := io.ReadAll(io.NewSectionReader(f, from, limit))
	if err != nil {
		return "", false
	}
	return string(read), from > 0
}

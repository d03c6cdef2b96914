package agent

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent/spec"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/logs"
	"github.com/nodelet/nodelet/host/beneath"
)

// The limits of a termination message, as in the kubelet.
const (
	maxTerminationMessage = 4096
	maxTerminationLog     = 2048
	maxTerminationLines   = 80
)

// logRead is how many bytes are read from the end of a log: more than a line, which the runtimes split at 16 KiB unless
// they are configured otherwise.
const logRead = 32 << 10

// terminationMessage returns the message of the instance, which is c in the runtime and has terminated: that of the
// runtime, then the content of the termination message file, or the end of the log if the container failed and its
// policy asks for that.
func (i *instance) terminationMessage(c cri.Container) string {
	own, _ := readTail(i.messageFile, maxTerminationMessage)
	if own == "" && c.ExitCode != 0 &&
		i.made.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		own = logTail(c.LogPath)
	}
	m := c.Message
	if m != "" && own != "" {
		m += ": "
	}
	return m + own
}

// messageFile returns the path on the host of the container's termination message, empty if there is none. The path in
// the pod's spec may be relative; agents and runtimes differ in whether they report the mount so.
func messageFile(c cri.Container, made spec.ContainerFacts) string {
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

// logTail returns the end of what a container has written to its log.
func logTail(path string) string {
	text, cut := readTail(path, logRead)
	part, whole := "", false
	if cut {
		part, text, whole = strings.Cut(text, "\n")
	}
	lines := slices.Collect(strings.Lines(text))
	var out strings.Builder
	// A message that includes the cut line does not reach to its start.
	if whole && len(lines) < maxTerminationLines {
		out.WriteString(part + "\n")
	}
	for _, line := range lines[max(0, len(lines)-maxTerminationLines):] {
		out.Write(logs.Content([]byte(line)))
	}
	content := out.String()
	return content[max(0, len(content)-maxTerminationLog):]
}

// readTail reads the last bytes of a file, and reports whether there are more before them. The container may have put
// anything there, so links, pipes and devices are not opened. It returns nothing for a file that cannot be read.
func readTail(path string, limit int64) (text string, cut bool) {
	if path == "" {
		return "", false
	}
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", false
	}
	defer dir.Close()
	f, err := beneath.OpenRegular(dir, filepath.Base(path), beneath.NoLinks)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", false
	}
	from := max(0, info.Size()-limit)
	read, err := io.ReadAll(io.NewSectionReader(f, from, limit))
	if err != nil {
		return "", false
	}
	return string(read), from > 0
}

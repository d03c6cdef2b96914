package main

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// gaveUp returns with which error the agent has ended by itself, or "" if it runs, or was killed, or has ended for
// another reason than a fault of its files. An agent that starts and can neither lock its root directory nor make the
// cgroups of pods ends, and its service manager starts it again; so does the kubelet.
func (s *soak) gaveUp() string {
	if s.node.AgentPID() != 0 {
		return ""
	}
	log, err := readFrom(s.node.AgentLog(), s.logged.agent)
	if err != nil {
		return ""
	}
	return faultOfFiles(log)
}

// faultOfFiles returns the error in the last line of the agent's log, if it is one that faults of files cause.
func faultOfFiles(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	text, ended := strings.CutPrefix(lines[len(lines)-1], "nodelet: ")
	causes := []unix.Errno{unix.EMFILE, unix.EIO, unix.EROFS, unix.ENOSPC}
	if !ended || !slices.ContainsFunc(causes, func(e unix.Errno) bool { return strings.Contains(text, ": "+e.Error()) }) {
		return ""
	}
	return text
}

// crashed returns "" or how the agent has crashed in this round.
func (s *soak) crashed() string {
	log, err := readFrom(s.node.AgentLog(), s.logged.agent)
	if err != nil {
		return err.Error()
	}
	return crash(log)
}

// crash returns "" or the line with which a Go program says that it has crashed.
func crash(log []byte) string {
	for line := range bytes.Lines(log) {
		if bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) {
			return string(bytes.TrimSpace(line))
		}
	}
	return ""
}

// readFrom reads a file from an offset to its end.
func readFrom(file string, offset int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

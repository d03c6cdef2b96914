package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// stamps as the CRI's logs hold them and as readers get them.
const (
	timeIn  = time.RFC3339Nano
	timeOut = "2006-01-02T15:04:05.000000000Z07:00"
)

// head is what precedes the content of a line.
type head struct {
	at     time.Time
	stream string // stdout or stderr
	// partial: the next line of this stream continues this one.
	partial bool
}

var errFormat = errors.New("neither a line of the CRI's log format nor of Docker's")

// maxHead is longer than the head of any line.
const maxHead = 256

// Content returns what a container has written, from a line of its log; nothing for a line in another format.
func Content(line []byte) []byte {
	h, content, err := parse(line)
	if err != nil {
		return nil
	}
	return h.content(content)
}

// content returns the end of what a container has written with a line. A line that goes on in the next one has no line
// feed.
func (h *head) content(end []byte) []byte {
	if h.partial {
		return bytes.TrimSuffix(end, []byte{'\n'})
	}
	return end
}

func parse(line []byte) (head, []byte, error) {
	if len(line) > 0 && line[0] == '{' {
		return parseJSON(line)
	}
	h, n, err := parseCRI(line)
	if err != nil {
		return h, nil, err
	}
	return h, line[n:], nil
}

// parseCRI reads the head of "2016-10-06T00:17:09.669794202Z stdout P content" (CRI logging format; tags are separated
// by colons, the first is P or F). n is where the content begins.
func parseCRI(line []byte) (h head, n int, err error) {
	if h.at, line, n, err = cutTime(line); err != nil {
		return h, 0, err
	}
	stream, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return h, 0, errFormat
	}
	switch h.stream = string(stream); h.stream {
	case "stdout", "stderr":
	default:
		return h, 0, errFormat
	}
	tags, _, ok := bytes.Cut(rest, []byte{' '})
	if !ok || bytes.IndexByte(tags, '\n') >= 0 {
		return h, 0, errFormat
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	h.partial = string(first) == "P"
	return h, n + len(stream) + 1 + len(tags) + 1, nil
}

func cutTime(line []byte) (at time.Time, rest []byte, n int, err error) {
	text, rest, ok := bytes.Cut(line[:min(len(line), maxHead)], []byte{' '})
	if !ok {
		return at, nil, 0, errFormat
	}
	at, err = time.Parse(timeIn, string(text))
	if err != nil {
		err = errFormat
	}
	return at, rest, len(text) + 1, err
}

// parseJSON reads a line of Docker's json-file log driver. The content ends with a line feed unless more of it follows.
func parseJSON(line []byte) (h head, content []byte, err error) {
	var l struct {
		Log    string    `json:"log"`
		Stream string    `json:"stream"`
		Time   time.Time `json:"time"`
	}
	if json.Unmarshal(line, &l) != nil || l.Stream != "stdout" && l.Stream != "stderr" {
		return h, nil, errFormat
	}
	return head{at: l.Time, stream: l.Stream, partial: len(l.Log) > 0 && l.Log[len(l.Log)-1] != '\n'}, []byte(l.Log), nil
}

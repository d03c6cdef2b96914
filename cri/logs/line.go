package logs

import (
	"bytes"
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

var errFormat = errors.New("no line of the CRI's log format")

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

// parse splits "2016-10-06T00:17:09.669794202Z stdout P content" (CRI logging format; tags are separated by colons, the
// first is P or F). Only the end of line can be a line feed.
func parse(line []byte) (h head, content []byte, err error) {
	space := []byte{' '}
	at, rest, _ := bytes.Cut(line, space)
	stream, rest, _ := bytes.Cut(rest, space)
	tags, content, ok := bytes.Cut(rest, space)
	if h.stream = string(stream); !ok || h.stream != "stdout" && h.stream != "stderr" {
		return h, nil, errFormat
	}
	if h.at, err = time.Parse(timeIn, string(at)); err != nil {
		return h, nil, errFormat
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	h.partial = string(first) == "P"
	return h, content, nil
}

package manifest

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
)

// chunk is one YAML document of a file.
type chunk struct {
	text []byte
	line int // of the file, of the first line of text; counts from 1
}

// split splits a YAML stream into its documents. The marker lines become empty, so that lines keep their numbers.
// Documents without content (blank lines, comments, directives) are left out.
func split(data []byte) []chunk {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var all []chunk
	cur := chunk{line: 1}
	flush := func(next int) {
		if hasContent(cur.text) {
			all = append(all, cur)
		}
		cur = chunk{line: next}
	}
	for n, line := range bytes.SplitAfter(data, []byte("\n")) {
		switch {
		case isMarker(line, "---"):
			flush(n + 1)
			line = append([]byte("   "), line[3:]...) // "--- {a: 1}" is a document too
		case isMarker(line, "..."):
			flush(n + 2)
			continue
		}
		cur.text = append(cur.text, line...)
	}
	flush(0)
	return all
}

func isMarker(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

var lineNumber = regexp.MustCompile(`\bline (\d+)\b`)

// shiftLines changes the line numbers in an error about a chunk to those of the file.
func (c chunk) shiftLines(message string) string {
	return lineNumber.ReplaceAllStringFunc(message, func(m string) string {
		n, err := strconv.Atoi(m[len("line "):])
		if err != nil {
			return m
		}
		return fmt.Sprintf("line %d", n+c.line-1)
	})
}

// Package known reads lists of expected differences or failures with their reasons. The conformance and differential
// tests call it and define the meaning of an entry. It keeps no state.
package known

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// ReadFile reads a list as Read does.
func ReadFile(file string, entry func(line, reason string) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return Read(f, entry)
}

// Read calls entry with each entry, a line, and with the comment above it, which is the reason of all entries up to the
// next comment. A blank line ends a reason; then it is empty. An error of entry ends the reading and is returned with
// the number of the line.
func Read(r io.Reader, entry func(line, reason string) error) error {
	var reason []string
	fresh := true
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		comment, isComment := strings.CutPrefix(line, "#")
		switch {
		case line == "":
			reason = nil
		case isComment:
			if !fresh {
				reason = nil
			}
			reason = append(reason, strings.TrimSpace(comment))
		default:
			if err := entry(line, strings.Join(reason, " ")); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
		}
		fresh = isComment
	}
	return lines.Err()
}

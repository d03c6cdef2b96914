package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
)

// progress prints how a suite gets on, from the output of its runner with -v. In that, a block of lines between
// separators has the name of a spec and how it ended; of specs that run in parallel, the name comes second.
type progress struct {
	to io.Writer
	// names prints the names of all specs, for a dry run.
	names         bool
	total         string // number of specs that will run, as the runner says it
	ended, failed int
	// name and outcome are those of this block; printed is set when its line is printed.
	name, outcome string
	printed       bool
}

var (
	willRun   = regexp.MustCompile(`^Will run (\d+) of`)
	separator = strings.Repeat("-", 30)
	// specEnded matches "• [1.2 seconds]", "• [FAILED] [1.2 seconds]" and "S [SKIPPED] [1.2 seconds]".
	specEnded = regexp.MustCompile(`^(?:•|S|P) \[(?:([A-Z]+)\] \[)?[0-9.]+ seconds\]`)
)

// line takes a line of the output.
func (p *progress) line(line string) {
	line = strings.TrimRight(line, "\n")
	switch m := willRun.FindStringSubmatch(line); {
	case m != nil:
		p.total = m[1]
		fmt.Fprintln(p.to, line)
		return
	case line == separator:
		p.name, p.outcome = "", ""
		p.printed = false
	case p.outcome == "" && specEnded.MatchString(line):
		p.outcome = line
	case p.name == "" && strings.HasPrefix(line, "[sig-"):
		p.name = line
	}
	if p.name != "" && p.outcome != "" && !p.printed {
		p.spec()
	}
}

// spec prints a spec that has ended.
func (p *progress) spec() {
	p.printed = true
	if p.names {
		fmt.Fprintln(p.to, p.name)
		return
	}
	p.ended++
	if m := specEnded.FindStringSubmatch(p.outcome); m[1] != "" && m[1] != "SKIPPED" {
		p.failed++
	}
	fmt.Fprintf(p.to, "%d of %s, %d failed: %s %s\n", p.ended, p.total, p.failed, p.outcome, p.name)
}

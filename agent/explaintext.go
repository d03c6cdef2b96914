package agent

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// WriteExplanations prints explanations as text. Parts of it come from containers and registries, so that characters
// that a terminal would act on are escaped.
func WriteExplanations(w io.Writer, all []*Explanation, now time.Time) {
	line := func(format string, parts ...any) { fmt.Fprintln(w, printable(fmt.Sprintf(format, parts...))) }
	for _, e := range all {
		line("%s  %s", e.Pod, e.state())
		for _, wait := range e.Waits {
			line("    waits for: %s: %s%s", wait.For, wait.Why, when(wait, now))
		}
		for _, end := range e.Ends {
			line("    %s", end)
		}
	}
}

// state returns, for example, "Running, ready" or "stopping, Evicted: The node was low on resource: memory.".
func (e *Explanation) state() string {
	reason := e.Reason
	if e.Message != "" {
		reason += ": " + e.Message
	}
	switch {
	case e.Stopping != "" && e.Stopping == e.Reason:
		return "stopping, " + reason
	case e.Stopping != "" && e.Reason != "":
		return "stopping, " + e.Stopping + ", " + reason
	case e.Stopping != "":
		return "stopping, " + e.Stopping
	case e.Ready:
		return string(e.Phase) + ", ready"
	case e.Reason != "":
		return string(e.Phase) + ", " + reason
	}
	return string(e.Phase)
}

// String returns, for example, "container web ended at 2026-03-01T10:00:00Z: exit code 137, OOMKilled".
func (e End) String() string {
	text := fmt.Sprintf("container %s ended", e.Container)
	if !e.At.IsZero() {
		text += " at " + e.At.Format(time.RFC3339)
	}
	text += fmt.Sprintf(": exit code %d", e.ExitCode)
	for _, more := range []string{e.Reason, e.Error} {
		if more != "" {
			text += ", " + more
		}
	}
	if e.Message != "" {
		text += fmt.Sprintf(", message %q", strings.TrimSpace(e.Message))
	}
	if e.Stopped != "" {
		text += "; nodelet stopped it: " + e.Stopped
	}
	return text
}

// printable escapes all characters that are not printable.
func printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// when says how long a step has been in progress, or when it is tried again.
func when(w Wait, now time.Time) string {
	round := func(d time.Duration) time.Duration { return max(0, d).Round(time.Second) }
	switch {
	case w.Next != nil:
		return fmt.Sprintf(" (again in %s)", round(w.Next.Sub(now)))
	case w.Since != nil:
		return fmt.Sprintf(" (running for %s)", round(now.Sub(*w.Since)))
	}
	return ""
}

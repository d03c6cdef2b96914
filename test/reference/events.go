package reference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodelet/nodelet/config"
)

// eventSupport are the words of the table of events, with what its page says instead.
var eventSupport = map[string]config.Support{
	"acts": config.Acts, "differs": config.Differs, "never": "never written", "own": "nodelet only",
}

// EventReason is a line of the table of events.
type EventReason struct{ Reason, Support, Note string }

// EventReasons reads the table of events.
func EventReasons(table string) (all []EventReason, err error) {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		head, note, _ := strings.Cut(strings.TrimSpace(line), ": ")
		reason, support, _ := strings.Cut(head, " ")
		if eventSupport[support] == "" || (note == "") != (support == "acts") {
			return nil, fmt.Errorf("read the table of events: got %q, want a reason, its support, and a note unless it acts",
				line)
		}
		all = append(all, EventReason{reason, support, note})
	}
	slices.SortFunc(all, func(a, b EventReason) int { return strings.Compare(a.Reason, b.Reason) })
	return all, nil
}

// Events is docs/reference/events.md.
func Events(all []EventReason) string {
	var b strings.Builder
	b.WriteString("# Reference of the events\n" + generated +
		"Reasons of the events that the kubelet " + config.KubernetesVersion + " and nodelet write. A pod that is " +
		"refused or ended by the node also has\nan event with the reason in its status.\n\n" +
		"| reason | support | note |\n|---|---|---|\n")
	for _, e := range all {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", e.Reason, eventSupport[e.Support], cell(e.Note))
	}
	return b.String()
}

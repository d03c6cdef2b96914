package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// facts are the compared facts about a pod, by kind. The elements of a set are compared one by one; a sequence is one
// line.
type facts struct {
	sets      map[string][]string
	sequences map[string][]string
}

// Two runs of a pod are equal by these rules:
//   - generated values (UIDs, IDs, addresses, times, random suffixes) count as equal;
//   - all fields of the last status before the deletion count, except the state of a container that restarts again and
//     again ("restarts N");
//   - from earlier statuses, the phases, the states of each container and each condition count, each as a sequence
//     without repeats, except for random pods. The number of intermediate states depends on timing, so these do not
//     count: waiting before the first instance or between two, the exit of an instance that another one follows, how a
//     failing pull alternates with its back-off, and another reason to be not ready before the pod terminates;
//   - the type, reason, object and message of events count; their number and order do not;
//   - the calls to the runtime that change something count, in their order for each container. The time at which exited
//     instances and sandboxes are removed does not count, nor does the number of times that a probe runs;
//   - all fields of the configurations of the first sandbox and the first instance of each container count.
func factsOf(s *sighting) facts {
	f := facts{sets: map[string][]string{}, sequences: map[string][]string{}}
	hide := hider(s)
	rested := s.Rested
	rested.ObservedGeneration = 0
	f.sets["status"] = flatten(hide(jsonOf(rested)))
	if strings.HasPrefix(s.Until, "restarts") {
		f.sets["status"] = slices.DeleteFunc(f.sets["status"], func(line string) bool { return passing.MatchString(line) })
	}
	for _, e := range s.Events {
		if e.Reason != "Scheduled" {
			f.sets["events"] = append(f.sets["events"],
				fmt.Sprintf("%s %s %s: %s", e.Type, e.Reason, e.InvolvedObject.FieldPath, hide(e.Message)))
		}
	}
	for i := range s.Statuses {
		f.step(&s.Statuses[i])
	}
	for _, c := range s.Calls {
		kind := "calls " + c.Container
		switch {
		case strings.HasPrefix(c.Text, "remove"):
		case strings.HasPrefix(c.Text, "exec"):
			f.sets["execs"] = append(f.sets["execs"], c.Container+" "+hide(execIn.ReplaceAllString(c.Text, "exec")))
		case s.Until == rest: // how much of the grace period is left for a sidecar depends on the machine
			f.sequences[kind] = append(f.sequences[kind], stopWithin.ReplaceAllString(c.Text, ""))
		default:
			f.sequences[kind] = append(f.sequences[kind], c.Text)
		}
		if c.Config != "" && f.sets["config "+c.Container] == nil {
			f.sets["config "+c.Container] = flatten(hide(c.Config))
		}
	}
	for kind, all := range f.sets {
		slices.Sort(all)
		f.sets[kind] = slices.Compact(all)
	}
	if s.Until == rest { // how far the steps of a pod that does many things were seen depends on the machine
		maps.DeleteFunc(f.sequences, func(kind string, _ []string) bool { return !strings.HasPrefix(kind, "calls ") })
	}
	for kind, all := range f.sequences {
		f.sequences[kind] = steps(kind, slices.Compact(all))
	}
	return f
}

// passing matches the fields of a status that change when a container restarts.
var passing = regexp.MustCompile(
	`Statuses\[[^\]]*\]\.(state|lastState|containerID|ready|started|restartCount|user|image|imageID)\b|` +
		`^conditions\[(Ready|ContainersReady|Initialized|AllContainersRestarting|PodReadyToStartContainers)\]|^phase`,
)

// steps leaves out states that do not count.
func steps(kind string, all []string) (kept []string) {
	for i, text := range all {
		last := i == len(all)-1
		switch {
		case strings.HasPrefix(kind, "states ") && strings.HasPrefix(text, "exit ") && !last,
			strings.HasPrefix(kind, "condition ") && text == "False ContainersNotReady" && !last &&
				strings.HasPrefix(all[i+1], "False Pod"):
		default:
			kept = append(kept, text)
		}
	}
	return slices.Compact(kept)
}

var stopWithin = regexp.MustCompile(` within \d+s$`)

var execIn = regexp.MustCompile(`exec in \d+`)

// step appends a status to the sequences.
func (f *facts) step(st *corev1.PodStatus) {
	add := func(kind, text string) { f.sequences[kind] = append(f.sequences[kind], text) }
	add("phases", strings.TrimSpace(string(st.Phase)+" "+st.Reason))
	for _, c := range st.Conditions {
		if c.Type != corev1.PodScheduled {
			add("condition "+string(c.Type), strings.TrimSpace(string(c.Status)+" "+c.Reason))
		}
	}
	for _, c := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		if text := stateText(&c); text != "" {
			add("states "+c.Name, text)
		}
	}
}

// stateText returns the state of a container, or "" for a state that does not count.
func stateText(c *corev1.ContainerStatus) string {
	restarts := ""
	if c.RestartCount > 0 {
		restarts = fmt.Sprintf(" after %d restarts", c.RestartCount)
	}
	switch {
	case c.State.Running != nil && c.Ready:
		return "ready" + restarts
	case c.State.Running != nil:
		return "running" + restarts
	case c.State.Terminated != nil:
		return fmt.Sprintf("exit %d %s", c.State.Terminated.ExitCode, c.State.Terminated.Reason) + restarts
	case c.State.Waiting != nil:
		switch c.State.Waiting.Reason {
		case "ContainerCreating", "PodInitializing", "RestartingAllContainers":
			return ""
		case "CrashLoopBackOff":
			if end := c.LastTerminationState.Terminated; end != nil {
				return fmt.Sprintf("exit %d %s", end.ExitCode, end.Reason) + restarts
			}
		case "ImagePullBackOff":
			return "waiting ErrImagePull"
		}
		return "waiting " + c.State.Waiting.Reason + restarts
	}
	return ""
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

var made = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "ID"},
	// the names of systemd's slices have underscores in it
	{regexp.MustCompile(`[0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\b10\.(244|77)\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-X"},
	{regexp.MustCompile(`/containers/([a-z0-9-]+)/([0-9a-f]{8}|termination-\d+)\b`), "/containers/$1/X"},
	{regexp.MustCompile(`(in|after) [0-9.]+m?s\b( \([^)]*waiting\))?`), "$1 TIME"},
}

// hider replaces values that are generated in each run.
func hider(s *sighting) func(string) string {
	return func(text string) string {
		for _, m := range made {
			text = m.what.ReplaceAllString(text, m.with)
		}
		return text
	}
}

// flatten returns one line for each value in a JSON text. Elements of lists are identified by their name or path if
// they have one.
func flatten(text string) (lines []string) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return []string{"no JSON: " + text}
	}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(at+"."+k, e)
			}
		case []any:
			for i, e := range v {
				walk(at+"["+elementName(i, e)+"]", e)
			}
		default:
			lines = append(lines, fmt.Sprintf("%s = %v", strings.TrimPrefix(at, "."), v))
		}
	}
	walk("", v)
	return lines
}

func elementName(i int, e any) string {
	if m, ok := e.(map[string]any); ok {
		for _, key := range []string{"name", "key", "type", "container_path", "mountPath"} {
			if name, ok := m[key].(string); ok {
				return name
			}
		}
	}
	return fmt.Sprint(i)
}

// Package explain is the command that shows what each pod on the node is doing and what it waits for.
//
// It asks the running agent over its socket below the root directory, and prints the answer. It changes nothing.
// command/app lists it. It has no state, so a crash leaves nothing behind.
package explain

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
)

// options are the flags of the command.
type options struct {
	rootDir, namespace *string
	notReady, watch    *bool
	output             *command.Output
}

// report is what -o json prints.
type report struct {
	// Pods are the pods; none if the agent cannot tell.
	Pods []*agent.Explanation `json:"pods"`
	// Error says why the agent cannot tell, such as that the container runtime does not answer.
	Error string `json:"error,omitempty"`
}

// Command is `nodelet explain`.
func Command() *command.Command {
	return &command.Command{
		Name:    "explain",
		Args:    "[NAMESPACE/POD | POD | UID]...",
		MaxArgs: -1,
		Short:   "show what each pod on this node is doing, what it waits for, and how its containers ended",
		Long: `With -o json it prints {"pods": [...], "error": "..."}; error is set if the agent cannot answer, for example
because the container runtime does not answer.`,
		Exit: "Exit codes: 0 also if pods are not ready, 1 if the agent cannot answer or has no such pod.",
		Setup: func(flags *pflag.FlagSet) command.Run {
			o := options{
				rootDir:   command.RootDirFlag(flags),
				namespace: flags.StringP("namespace", "n", "", "only pods of this `NAMESPACE`"),
				notReady:  flags.Bool("not-ready", false, "only pods that are being stopped, or neither ready nor succeeded"),
				watch:     flags.BoolP("watch", "w", false, "print each change, until interrupted"),
				output:    command.OutputFlag(flags),
			}
			all := flags.BoolP("all-namespaces", "A", false, "pods of all namespaces, the default")
			asJSON := flags.Bool("json", false, "the same as -o json")
			return func(c command.Call) error {
				switch {
				case *all && *o.namespace != "":
					return command.Usagef("explain: --namespace and --all-namespaces exclude each other")
				case *asJSON:
					_ = o.output.Set("json")
				}
				return o.run(c)
			}
		},
	}
}

// watchInterval is the time between two questions of --watch.
const watchInterval = time.Second

func (o options) run(c command.Call) error {
	client := podapi.NewClient(*o.rootDir)
	if !*o.watch {
		text, err := o.once(c, client)
		_, _ = c.Out.Write(text)
		return err
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	var last []byte
	for {
		text, err := o.once(c, client)
		if err != nil && len(text) == 0 {
			text = []byte(err.Error() + "\n")
		}
		if c.Context.Err() == nil && !bytes.Equal(shape(text), shape(last)) {
			if !o.output.Structured() {
				fmt.Fprintf(c.Out, "--- %s\n", time.Now().Format(time.TimeOnly))
			}
			_, _ = c.Out.Write(text)
			last = text
		}
		select {
		case <-c.Context.Done():
			return nil
		case <-tick.C:
		}
	}
}

// shape returns a text without the times in it that count up or down, so that they are no change.
func shape(text []byte) []byte {
	var kept []byte
	for line := range bytes.Lines(text) {
		line, _, _ = bytes.Cut(line, []byte(" (again in "))
		line, _, _ = bytes.Cut(line, []byte(" (running for "))
		kept = append(kept, line...)
	}
	return kept
}

// once asks the agent, and returns the text to print and the error to end with.
func (o options) once(c command.Call, client *podapi.Client) ([]byte, error) {
	pods, err := client.Explain(c.Context)
	all := o.chosen(pods, c.Args)
	if err == nil && len(all) == 0 && len(c.Args) > 0 {
		err = command.NoPod(c.Args, names(pods))
	}
	total := len(all)
	if *o.notReady {
		all = slices.DeleteFunc(all, (*agent.Explanation).NeedsNothing)
	}
	var out bytes.Buffer
	if o.output.Structured() {
		r := report{Pods: all}
		if err != nil {
			r.Error = err.Error()
		}
		if printErr := o.output.Print(&out, r); printErr != nil {
			return nil, printErr
		}
		if err != nil {
			return out.Bytes(), &command.ExitError{Code: 1}
		}
		return out.Bytes(), nil
	}
	if err != nil {
		return nil, err
	}
	if len(all) == 0 && *o.notReady && command.IsTerminal(c.Out) { // scripts get an empty output
		fmt.Fprintf(&out, "%s, all ready or succeeded\n", command.Count(total, "pod"))
	}
	agent.WriteExplanations(&out, all, time.Now())
	if command.IsTerminal(c.Out) && os.Getenv("NO_COLOR") == "" {
		return colored(out.Bytes()), nil
	}
	return out.Bytes(), nil
}

// chosen returns the explanations that the flags and names choose; a name may be without its namespace, or a UID.
func (o options) chosen(all []*agent.Explanation, names []string) []*agent.Explanation {
	kept := []*agent.Explanation{}
	for _, e := range all {
		namespace, short, _ := strings.Cut(e.Pod, "/")
		named := len(names) == 0 || slices.Contains(names, e.Pod) || slices.Contains(names, short) ||
			slices.Contains(names, e.UID)
		if named && (*o.namespace == "" || *o.namespace == namespace) {
			kept = append(kept, e)
		}
	}
	return kept
}

// names returns the names of the pods, without their namespaces.
func names(all []*agent.Explanation) []string {
	var known []string
	for _, e := range all {
		if _, name, named := strings.Cut(e.Pod, "/"); named {
			known = append(known, name)
		}
	}
	return known
}

// colored makes ready pods green, others bold, and what they wait for yellow.
func colored(text []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(text) {
		color := "1"
		switch plain := strings.TrimSuffix(string(line), "\n"); {
		case strings.HasPrefix(plain, " "):
			color = "33"
		case strings.HasSuffix(plain, ", ready"):
			color = "32"
		}
		fmt.Fprintf(&out, "\x1b[%sm%s\x1b[0m\n", color, bytes.TrimSuffix(line, []byte("\n")))
	}
	return out.Bytes()
}

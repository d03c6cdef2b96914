// Package explain is the command that shows what each pod on the node is doing and what it waits for.
//
// It asks the running agent over its socket below the root directory, and prints the answer. It changes nothing. It has
// no state.
package explain

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
)

// Command is `nodelet explain`.
func Command() *command.Command {
	return &command.Command{
		Name:    "explain",
		Args:    "[NAMESPACE/POD | POD]...",
		MaxArgs: -1,
		Short:   "show what each pod on this node is doing and what it is waiting for",
		Setup: func(flags *pflag.FlagSet) command.Run {
			rootDir := flags.String("root-dir", "/var/lib/kubelet", "the agent's --root-dir, a `DIR`")
			output := command.OutputFlag(flags)
			asJSON := flags.Bool("json", false, "the same as -o json")
			return func(c command.Call) error {
				if *asJSON {
					_ = output.Set("json")
				}
				return run(c, *rootDir, output)
			}
		},
	}
}

// run asks the agent on this node what its pods are waiting for, and prints it.
func run(c command.Call, rootDir string, output *command.Output) error {
	all, err := podapi.Explain(c.Context, rootDir)
	if err != nil {
		return err
	}
	if len(c.Args) > 0 {
		if all = named(all, c.Args); len(all) == 0 {
			return fmt.Errorf("no pod on this node is called %s", strings.Join(c.Args, " or "))
		}
	}
	if output.Structured() {
		return output.Print(c.Out, all)
	}
	agent.WriteExplanations(c.Out, all, time.Now())
	return nil
}

// named returns the explanations of the pods with these names, with or without their namespaces.
func named(all []*agent.Explanation, names []string) []*agent.Explanation {
	var kept []*agent.Explanation
	for _, e := range all {
		for _, name := range names {
			if _, short, _ := strings.Cut(e.Pod, "/"); e.Pod == name || short == name {
				kept = append(kept, e)
			}
		}
	}
	return kept
}

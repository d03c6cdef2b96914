// Package explain is the subcommand that shows what each pod on the node is doing and what it waits for.
//
// It asks the running agent over its socket below the root directory, and prints the answer. It changes nothing. It has
// no state.
package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
)

const usage = `usage: nodelet explain [--root-dir DIR] [--json] [NAMESPACE/POD | POD]...

Shows what each pod on this node is doing and what it is waiting for.

  --json           print JSON
  --root-dir DIR   the agent's --root-dir (default /var/lib/kubelet)
`

// Command is `nodelet explain`.
func Command() command.Command { return command.Command{Name: "explain", Usage: usage, Run: run} }

// run asks the agent on this node what its pods are waiting for, and prints it.
func run(args []string, out io.Writer) error {
	flags := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	rootDir := flags.String("root-dir", "/var/lib/kubelet", "")
	asJSON := flags.Bool("json", false, "")
	names, err := command.Parse(flags, args)
	if err != nil {
		return err
	}
	all, err := podapi.Explain(context.Background(), *rootDir)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		if all = named(all, names); len(all) == 0 {
			return fmt.Errorf("no pod on this node is called %s", strings.Join(names, " or "))
		}
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(all)
	}
	agent.WriteExplanations(out, all, time.Now())
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

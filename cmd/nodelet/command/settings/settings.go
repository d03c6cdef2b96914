// Package settings is the command group `nodelet config`: it shows, checks and compares configurations.
//
// It reads the flags and files as the agent does, and asks the running agent for its own over its socket. It changes
// nothing, and prints no secret. command/app lists it. It has no state, so a crash leaves nothing behind.
package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
)

// Command is `nodelet config`.
func Command() *command.Command {
	return &command.Command{
		Name:  "config",
		Short: "show, check and compare configurations",
		Sub:   []*command.Command{view(), validate(), diff()},
	}
}

// noFlags says what the commands read without FLAGs.
const noFlags = `Without FLAGs it reads no file, and uses the defaults. For the configuration of this node use nodelet
check, or nodelet config view --running.`

func view() *command.Command {
	return &command.Command{
		Name:       "view",
		Args:       "[FLAG]...",
		AgentFlags: true,
		Short:      "print the KubeletConfiguration of the FLAGs and of the files that they name, with all defaults",
		Long:       noFlags,
		Setup: func(flags *pflag.FlagSet) command.Run {
			running := flags.Bool("running", false, "print that of the running agent; of the FLAGs only --root-dir counts")
			output := command.StructuredFlag(flags)
			return func(c command.Call) error {
				tree, err := effective(c, *running)
				if err != nil {
					return err
				}
				return output.Print(c.Out, tree)
			}
		},
	}
}

// effective returns a configuration without secrets, as decoded JSON.
func effective(c command.Call, running bool) (map[string]any, error) {
	cfg, err := config.Load(c.Args)
	if err != nil {
		return nil, err
	}
	var text []byte
	if running {
		text, err = podapi.NewClient(cfg.Paths.Root).Configuration(c.Context)
	} else {
		text, err = json.Marshal(cfg.Kubelet.Masked())
	}
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	return tree, json.Unmarshal(text, &tree)
}

func validate() *command.Command {
	return &command.Command{
		Name:       "validate",
		Args:       "[FLAG]...",
		AgentFlags: true,
		Short:      "check the FLAGs and the configuration files that they name, without starting anything",
		Long:       noFlags,
		Exit: `Exit codes: 0 if they are valid; 1 if a value or a file is not valid, or if pods rely on a setting without
effect; 2 if a flag is unknown or has a value of the wrong type. See also nodelet check.`,
		Setup: func(*pflag.FlagSet) command.Run {
			return func(c command.Call) error {
				cfg, err := config.Load(c.Args)
				if err != nil {
					return err
				}
				for _, w := range cfg.Warnings {
					fmt.Fprintf(c.Out, "warning: %s\n", w)
					if w.Breaks != "" {
						fmt.Fprintf(c.Out, "         %s\n", w.Breaks)
					}
				}
				if err := cfg.Missing(); err != nil {
					return err
				}
				fmt.Fprintf(c.Out, "valid, with %s\n", command.Count(len(cfg.Warnings), "warning"))
				if len(c.Args) == 0 {
					fmt.Fprintln(c.Out, "note: these are the defaults; nodelet check looks at the configuration of this node")
				}
				return nil
			}
		},
	}
}

func diff() *command.Command {
	return &command.Command{
		Name:       "diff",
		Args:       "[FLAG]...",
		AgentFlags: true,
		Short:      "print the settings that differ from the kubelet's defaults",
		Long:       noFlags,
		Setup: func(flags *pflag.FlagSet) command.Run {
			running := flags.Bool("running", false, "compare with the running agent instead of the defaults")
			output := command.OutputFlag(flags)
			return func(c command.Call) error {
				mine, err := effective(c, false)
				if err != nil {
					return err
				}
				other := c
				if !*running {
					other.Args = []string{"--hostname-override=node"}
				}
				theirs, err := effective(other, *running)
				if err != nil {
					return err
				}
				found := compare("", theirs, mine)
				if output.Structured() {
					return output.Print(c.Out, found)
				}
				for _, d := range found {
					fmt.Fprintf(c.Out, "%s: %s (instead of %s)\n", d.Field, text(d.Value), text(d.Instead))
				}
				return nil
			}
		},
	}
}

// difference is a field that differs; a value is nil if there is none.
type difference struct {
	Field   string `json:"field"`
	Value   any    `json:"value"`
	Instead any    `json:"instead"`
}

// compare returns the fields that differ, sorted by path.
func compare(path string, before, after map[string]any) []difference {
	all := []difference{}
	keys := maps.Clone(before)
	if keys == nil {
		keys = map[string]any{}
	}
	maps.Copy(keys, after)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		at := strings.TrimPrefix(path+"."+k, ".")
		a, aIsMap := before[k].(map[string]any)
		b, bIsMap := after[k].(map[string]any)
		switch x, y := text(before[k]), text(after[k]); {
		case x == y:
		case aIsMap && bIsMap:
			all = append(all, compare(at, a, b)...)
		default:
			all = append(all, difference{Field: at, Value: after[k], Instead: before[k]})
		}
	}
	return all
}

func text(v any) string {
	if v == nil {
		return "nothing"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

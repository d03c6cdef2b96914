// Package check is the command `nodelet check`: it looks at the machine, the container runtime and the configuration,
// and says what would keep nodelet from running the node, or make it act differently from the kubelet.
//
// It owns the list of checks and their advice. It only reads: it changes no file, starts no service, and opens the
// ports for a moment only to see whether they are free.
//
// command/app lists it, command/support packs what it finds, and cmd/nodelet logs a part of it at the start of the
// agent. It has no state, so a crash leaves nothing behind: the kernel closes the ports.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/systemd"
)

// Level says how bad a result is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Result is the result of one check.
type Result struct {
	// Check is the name of the check, such as "kernel".
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Text says what was found, Advice what to do.
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
}

// Machine is what is checked.
type Machine struct {
	// Root is the root of the file system; empty means /. Only tests set it.
	Root string
	// Config is the configuration with which the agent would run.
	Config *config.Config
	// Now is the time.
	Now time.Time
	// Serving says that an agent runs now, so its ports are in use.
	Serving bool

	// defaults says that the configuration is that of an agent without flags, because none are known.
	defaults bool
	// dir is the working directory of the agent whose configuration it is; empty for that of nodelet check.
	dir string
}

// All runs all checks.
func (m *Machine) All(ctx context.Context) []Result {
	var all []Result
	for _, check := range []func(context.Context) []Result{
		m.user, m.kernel, m.cgroups, m.runtime, m.network, m.tools, m.ports, m.limits, m.swap, m.clock, m.disk,
		m.resources, m.identity, m.cluster, m.files, m.manifests,
	} {
		all = append(all, check(ctx)...)
	}
	return append(all, settings(m.Config)...)
}

func result(check string, level Level, text, advice string) []Result {
	return []Result{{Check: check, Level: level, Text: text, Advice: advice}}
}

// settings returns the settings without effect. Those on which pods rely and that the user did not accept are problems.
func settings(c *config.Config) []Result {
	var all []Result
	for _, w := range c.Warnings {
		r := Result{Check: "setting", Level: Warning, Text: w.String()}
		if w.Breaks != "" && !slices.Contains(c.AcceptMissing, w.Field) {
			r.Level = Problem
			r.Advice = w.Breaks + ": keep the kubelet on this node, remove the setting, or add --accept-missing=" + w.Field
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return result("setting", OK, "all settings have an effect", "")
	}
	return all
}

// worst returns the highest level of the results.
func worst(all []Result) Level {
	worst := OK
	for _, r := range all {
		if r.Level == Problem || r.Level == Warning && worst == OK {
			worst = r.Level
		}
	}
	return worst
}

const exitCodes = "Exit codes: 0 if all is well, 1 if there are warnings, 2 if there is a problem or a wrong flag."

// Command is `nodelet check`.
func Command() *command.Command {
	return &command.Command{
		Name:       "check",
		Args:       "[FLAG]...",
		AgentFlags: true,
		Short:      "check whether nodelet can run this node, and say how to solve each problem",
		Long: `It checks the kernel, cgroups, the container runtime and its known vulnerabilities, the pod network, tools,
ports, limits, swap, the clock, disks, reserved resources, certificates, manifests, and each setting that has no
effect in nodelet. It changes nothing.

It checks the configuration of the FLAGs; without FLAGs, that of the agent that systemd runs now; without an agent,
the defaults.`,
		Exit: exitCodes,
		Setup: func(flags *pflag.FlagSet) command.Run {
			takeover := flags.Bool("takeover", false, "check whether nodelet can replace the kubelet that systemd runs now")
			accept := flags.StringSlice("accept-missing", nil, "settings without effect to accept, such as qosReserved")
			output := command.OutputFlag(flags)
			return func(c command.Call) error { return run(c, *takeover, *accept, output) }
		},
	}
}

func run(c command.Call, takeover bool, accept []string, output *command.Output) error {
	all, err := look(c, takeover, accept...)
	if err != nil {
		return err
	}
	if output.Structured() {
		err = output.Print(c.Out, all)
	} else {
		err = printAll(c.Out, all)
	}
	if code := map[Level]int{Warning: 1, Problem: 2}[worst(all)]; err == nil && code != 0 {
		return &command.ExitError{Code: code}
	}
	return err
}

// Present runs all checks with the configuration of the agent that systemd runs now; without one, with the defaults.
func Present(c command.Call) ([]Result, error) {
	c.Args = nil
	return look(c, false)
}

// look runs all checks; the operator accepts the settings without effect in accept. Only a wrong command line is an
// error; what keeps the checks from running is a problem.
func look(c command.Call, takeover bool, accept ...string) ([]Result, error) {
	m := &Machine{Root: c.Root, Now: time.Now()}
	args, before, err := m.arguments(c, takeover)
	if err != nil {
		advice := "see why systemctl fails, or name the flags of the agent: nodelet check --config=FILE …"
		if takeover {
			advice = "start the kubelet, or name its flags without --takeover: nodelet check --config=FILE …"
		}
		return result("agent", Problem, err.Error(), advice), nil
	}
	m.defaults = args == nil
	m.Config, err = config.LoadIn(m.dir, args)
	if _, ok := errors.AsType[*config.UsageError](err); ok {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if err != nil {
		return append(before, result("setting", Problem, err.Error(), "correct it: nodelet does not start with it")...), nil
	}
	m.Config.AcceptMissing = append(m.Config.AcceptMissing, accept...)
	return append(before, m.All(c.Context)...), nil
}

// arguments returns the flags whose configuration is checked, and what is known of the agent that has them.
func (m *Machine) arguments(c command.Call, takeover bool) ([]string, []Result, error) {
	i := &systemd.Installer{Program: c.Program, Root: c.Root}
	if len(c.Args) > 0 && !takeover {
		m.Serving = serving(c.Context, i)
		return c.Args, nil, nil
	}
	if err := i.Booted(); err != nil && !takeover {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("find the kubelet: %w", err)
	}
	var units []string
	if takeover {
		units = []string{"kubelet.service"}
	}
	a, err := i.Running(c.Context, units...)
	switch {
	case err != nil:
		return nil, nil, err
	case a == nil && takeover:
		return nil, nil, errors.New("find the kubelet: systemd runs no kubelet.service now")
	case a == nil:
		return nil, nil, nil
	}
	m.Serving = true
	args := c.Args
	if len(args) == 0 {
		args, m.dir = a.Args, a.Dir
	}
	found := result("agent", OK, fmt.Sprintf("%s runs %s (pid %s)", a.Unit, a.Program, a.PID), "")
	if takeover {
		found = append(found, version(c.Context, *a)...)
		if err := i.Check(c.Context); err != nil {
			found = append(found, result("install", Problem, err.Error(),
				"until then `nodelet systemd install` refuses to replace the kubelet")...)
		}
	} else if own, err := i.OwnStarts(c.Context); err == nil && own && a.Unit == "kubelet.service" {
		found = append(found, result("agent", Problem, "nodelet.service starts at boot, in the place of kubelet.service",
			"run `systemctl disable nodelet.service`")...)
	}
	return args, found, nil
}

// serving reports whether systemd runs an agent now, as far as systemd answers.
func serving(ctx context.Context, i *systemd.Installer) bool {
	if i.Booted() != nil {
		return false
	}
	a, _ := i.Running(ctx)
	return a != nil
}

// printAll prints results as text, with a summary.
func printAll(out io.Writer, all []Result) error {
	var b strings.Builder
	count := map[Level]int{}
	for _, r := range all {
		count[r.Level]++
		fmt.Fprintf(&b, "%-8s %-9s %s\n", r.Level, r.Check, r.Text)
		if r.Advice != "" {
			fmt.Fprintf(&b, "%19s-> %s\n", "", r.Advice)
		}
	}
	fmt.Fprintf(&b, "\n%s, %s, %d ok\n", command.Count(count[Problem], "problem"),
		command.Count(count[Warning], "warning"), count[OK])
	_, err := io.WriteString(out, b.String())
	return err
}

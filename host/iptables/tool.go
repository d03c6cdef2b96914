package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/nodelet/nodelet/host/program"
)

const (
	// timeout bounds one call; lockWait is how many seconds of it the program waits for others.
	timeout  = 30 * time.Second
	lockWait = "10"
)

// Tool runs iptables or ip6tables.
type Tool struct {
	program string
	call    func(ctx context.Context, stdin, program string, args ...string) (stdout string, err error)
}

// The tools of the machine. The error of a call is exec.ErrNotFound if the machine lacks the program.
var (
	IPv4 = Tool{"iptables", call}
	IPv6 = Tool{"ip6tables", call}
)

func call(ctx context.Context, stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var stdout, stderr strings.Builder
	cmd := program.Command(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %q: %w: %.300q", name, args, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Run runs a command such as -N CHAIN on a table, and returns what it prints.
func (t Tool) Run(ctx context.Context, table string, args ...string) (string, error) {
	return t.call(ctx, "", t.program, append([]string{"-w", lockWait, "-t", table}, args...)...)
}

// resourceProblem is the exit code for what may work later, most of all if another program has the lock of iptables.
const resourceProblem = 4

// Look runs -C or -S, and returns what it prints and whether the table has such a rule or chain. A machine without the
// program or the table has none. An error says that this could not be found out.
func (t Tool) Look(ctx context.Context, table string, args ...string) (stdout string, found bool, err error) {
	stdout, err = t.Run(ctx, table, args...)
	exit, exited := errors.AsType[*exec.ExitError](err)
	if errors.Is(err, exec.ErrNotFound) || exited && exit.Exited() && exit.ExitCode() != resourceProblem {
		return "", false, nil
	}
	return stdout, err == nil, err
}

// Ensure adds a rule, by -A or -I, unless the table has it.
func (t Tool) Ensure(ctx context.Context, table, add string, rule ...string) error {
	_, found, err := t.Look(ctx, table, append([]string{"-C"}, rule...)...)
	if err != nil || found {
		return err
	}
	_, err = t.Run(ctx, table, append([]string{add}, rule...)...)
	return err
}

// Restore makes the chains in rules, which have the form of iptables-save, contain these rules. Other chains stay.
func (t Tool) Restore(ctx context.Context, rules string) error {
	_, err := t.call(ctx, rules, t.program+"-restore", "--noflush", "-w", lockWait)
	return err
}

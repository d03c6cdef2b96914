// Package command runs the subcommands of the program: it finds the command that the user asks for, prints help, and
// reports a wrong command line.
//
// It owns the table's shape and what every command shares: flags, usage errors, help. The commands live in packages
// below this one; main lists them in one table. It starts no agent. It has no state.
package command

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/config"
)

// Command is a subcommand of the program.
type Command struct {
	Name string
	// Usage is the text that help prints.
	Usage string
	// Words complete the first argument in a shell.
	Words []string
	// Run runs the command and prints to out. It returns pflag.ErrHelp if args ask for help.
	Run func(args []string, out io.Writer) error
}

// Dispatch runs the command of the table with the given name, or prints its usage to out. An unknown command is a usage
// error.
func Dispatch(table []Command, name string, args []string, out io.Writer) error {
	if name == "help" {
		if len(args) == 0 || IsHelp(args[0]) {
			_, err := io.WriteString(out, config.HelpText())
			return err
		}
		name, args = args[0], []string{"--help"}
	}
	names := []string{"help"}
	for _, c := range table {
		if c.Name != name {
			names = append(names, c.Name)
			continue
		}
		err := c.Run(args, out)
		if errors.Is(err, pflag.ErrHelp) {
			_, err = io.WriteString(out, c.Usage)
		}
		return err
	}
	return UsageErrorf("unknown command %q%s (see nodelet --help)", name, config.DidYouMean(name, names))
}

// UsageErrorf returns an error of the command line, for which the program ends with exit code 2.
func UsageErrorf(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

// IsHelp reports whether arg asks for help.
func IsHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// Parse reads the flags of a command, which have its name, and returns its other arguments.
func Parse(flags *pflag.FlagSet, args []string) ([]string, error) {
	flags.Usage = func() {} // Dispatch prints the usage
	err := flags.Parse(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		err = UsageErrorf("%s: %w (see nodelet %s --help)", flags.Name(), err, flags.Name())
	}
	return flags.Args(), err
}

// NoFlags checks the arguments of a command that has no flags and takes at most the given arguments.
func NoFlags(name string, args []string, allowed ...string) error {
	rest, err := Parse(pflag.NewFlagSet(name, pflag.ContinueOnError), args)
	if err == nil && len(rest) > 0 && (len(rest) > len(allowed) || rest[0] != allowed[0]) {
		err = UsageErrorf("%s: unexpected argument %q (see nodelet %s --help)", name, rest[0], name)
	}
	return err
}

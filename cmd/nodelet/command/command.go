package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/suggest"
)

// Command is a command of the program, or a group of commands.
type Command struct {
	// Name is one word, such as "explain".
	Name string
	// Args are the arguments as the usage shows them, such as "[POD]..."; empty if there are none.
	Args string
	// MaxArgs bounds the number of arguments; negative: there is no bound.
	MaxArgs int
	// Short is one line without a full stop. Long says more, in paragraphs; it may be empty.
	Short, Long string
	// Exit describes the exit codes if they differ from those of all other commands.
	Exit string
	// AgentFlags says that the flags of the agent are arguments of the command. It gets them in Call.Args, unparsed.
	AgentFlags bool
	// Values are the words that the argument may be; completion offers them.
	Values []string
	// Setup declares the flags of the command and returns what runs it. It is nil for a group.
	Setup func(flags *pflag.FlagSet) Run
	// Sub are the commands of a group.
	Sub []*Command
	// Usage replaces the generated usage text; only the program itself has one.
	Usage func() string
}

// Run runs a command with the flags that Setup has declared.
type Run func(c Call) error

// Call is one run of a command.
type Call struct {
	Context context.Context
	// Args are the arguments that are not flags of the command.
	Args []string
	In   io.Reader
	// Out gets the result, Err messages about the progress.
	Out, Err io.Writer
	// Program is the path of this program.
	Program string
	// Root is the root of the file system; empty means /. Only tests set it.
	Root string
}

// ExitError ends the program with a code. The command has already printed why.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// Usagef returns the error of a wrong command line.
func Usagef(format string, args ...any) error {
	return &config.UsageError{Err: fmt.Errorf(format, args...)}
}

// Execute runs the command that call.Args begin with. root is the program itself. A wrong command line is a
// *config.UsageError.
func Execute(root *Command, call Call) error {
	path, args := []*Command{root}, call.Args
	if len(args) > 0 && args[0] == "help" {
		return help(root, args[1:], call.Out)
	}
	if len(args) > 0 && args[0] == completeCommand {
		return complete(root, args[1:], call.Out)
	}
	for c := root; c.Setup == nil; c = path[len(path)-1] {
		switch {
		case len(args) == 0:
			return Usagef("%s: missing command: %s (see %s --help)", words(path), c.names(), full(path))
		case isHelp(args[0]):
			_, err := io.WriteString(call.Out, usage(path))
			return err
		}
		next, err := c.find(path, args[0])
		if err != nil {
			return err
		}
		path, args = append(path, next), args[1:]
	}
	return run(path, args, call)
}

// help prints the usage of the command that args name.
func help(root *Command, args []string, out io.Writer) error {
	path := []*Command{root}
	for _, name := range args {
		if isHelp(name) {
			break
		}
		next, err := path[len(path)-1].find(path, name)
		if err != nil {
			return err
		}
		path = append(path, next)
	}
	_, err := io.WriteString(out, usage(path))
	return err
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// find returns the command of a group by its name.
func (c *Command) find(path []*Command, name string) (*Command, error) {
	known := []string{"help"}
	if len(path) > 1 {
		known = nil
	}
	for _, sub := range c.Sub {
		if sub.Name == name {
			return sub, nil
		}
		known = append(known, sub.Name)
	}
	if len(known) == 0 {
		return nil, Usagef("%s: unexpected argument %q (see %s --help)", words(path), name, full(path))
	}
	called := words(path) + " " + name
	if len(path) == 1 {
		called = name
	}
	return nil, Usagef("unknown command %q%s (see %s --help)", called, suggest.DidYouMean(name, known), full(path))
}

// names returns the names of the commands in a group, as in "a, b or c".
func (c *Command) names() string {
	var all []string
	for _, sub := range c.Sub {
		all = append(all, sub.Name)
	}
	n := len(all) - 1
	return strings.Join(all[:n], ", ") + " or " + all[n]
}

// words returns the path of a command without the name of the program; the program itself keeps its name.
func words(path []*Command) string {
	if len(path) > 1 {
		path = path[1:]
	}
	return full(path)
}

// full returns the path of a command with the name of the program.
func full(path []*Command) string {
	var all []string
	for _, c := range path {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}

// run parses the flags of a command and runs it.
func run(path []*Command, args []string, call Call) error {
	c := path[len(path)-1]
	flags, do := c.flags()
	var agents []string
	if c.AgentFlags {
		args, agents = split(flags, args)
	}
	if err := flags.Parse(args); err != nil {
		return Usagef("%s: %w", words(path), config.FlagError(flags, err, full(path)+" --help"))
	}
	if asked, err := flags.GetBool("help"); err == nil && asked {
		_, err = io.WriteString(call.Out, usage(path))
		return err
	}
	call.Args = slices.Concat(flags.Args(), agents)
	if n := c.MaxArgs; !c.AgentFlags && n >= 0 && len(call.Args) > n {
		return Usagef("%s: unexpected argument %q (see %s --help)", words(path), call.Args[n], full(path))
	}
	return do(call)
}

// flags returns the flags of a command and what runs it.
func (c *Command) flags() (*pflag.FlagSet, Run) {
	flags := pflag.NewFlagSet(c.Name, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {} // run prints the usage
	do := c.Setup(flags)
	flags.BoolP("help", "h", false, "print this text")
	return flags, do
}

// split separates the flags of a command, which may be anywhere before "--", from those of the agent.
func split(flags *pflag.FlagSet, args []string) (own, agents []string) {
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return own, append(agents, args[i+1:]...)
		}
		f, hasValue := named(flags, args[i])
		if f == nil {
			agents = append(agents, args[i])
			continue
		}
		own = append(own, args[i])
		if !hasValue && f.NoOptDefVal == "" && i+1 < len(args) {
			i++
			own = append(own, args[i])
		}
	}
	return own, agents
}

// named returns the flag that an argument sets, or nil, and whether the argument also has the value.
func named(flags *pflag.FlagSet, arg string) (f *pflag.Flag, hasValue bool) {
	if long, ok := strings.CutPrefix(arg, "--"); ok {
		name, _, hasValue := strings.Cut(long, "=")
		return flags.Lookup(name), hasValue
	}
	if len(arg) < 2 || arg[0] != '-' {
		return nil, false
	}
	return flags.ShorthandLookup(arg[1:2]), len(arg) > 2
}

package command

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Page is a command as the reference pages show it.
type Page struct {
	// Name has all words of the command, such as "nodelet systemd install"; Synopsis is the form of its command line.
	Name, Synopsis string
	*Command
	// Flags are the flags with their descriptions.
	Flags [][2]string
}

// Pages returns the commands of the table that are not groups, in its order.
func Pages(root *Command) []Page {
	var all []Page
	var walk func(path []*Command)
	walk = func(path []*Command) {
		c := path[len(path)-1]
		if c.Setup != nil {
			flags, _ := c.flags()
			all = append(all, Page{Name: full(path), Synopsis: synopsis(path), Command: c, Flags: flagRows(flags)})
		}
		for _, sub := range c.Sub {
			walk(append(path[:len(path):len(path)], sub))
		}
	}
	walk([]*Command{root})
	return all
}

// usage returns the text that --help prints for a command.
func usage(path []*Command) string {
	c := path[len(path)-1]
	if c.Usage != nil {
		return c.Usage()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "usage: %s\n\n%s.\n", synopsis(path), capital(c.Short))
	if c.Long != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.Long))
	}
	if len(c.Sub) > 0 {
		b.WriteString("\nCommands:\n" + List(c.Sub))
	}
	if c.Setup != nil {
		flags, _ := c.flags()
		b.WriteString("\nFlags:\n" + table(flagRows(flags)))
	}
	if c.AgentFlags {
		b.WriteString("\nFLAG is a flag of the agent: see nodelet --help.\n")
	}
	if c.Exit != "" {
		fmt.Fprintf(&b, "\n%s\n", c.Exit)
	}
	return b.String()
}

// synopsis returns the form of a command line.
func synopsis(path []*Command) string {
	c := path[len(path)-1]
	if c.Setup == nil {
		return full(path) + " COMMAND"
	}
	own := 0
	flags, _ := c.flags()
	flags.VisitAll(func(*pflag.Flag) { own++ })
	line := full(path)
	if own > 1 { // one is --help
		line += " [flags]"
	}
	return strings.TrimSpace(line + " " + c.Args)
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// List returns a table of commands with one line for each.
func List(all []*Command) string {
	var rows [][2]string
	for _, c := range all {
		rows = append(rows, [2]string{c.Name, c.Short})
	}
	return table(rows)
}

// flagRows returns the flags with their descriptions.
func flagRows(flags *pflag.FlagSet) [][2]string {
	var rows [][2]string
	flags.VisitAll(func(f *pflag.Flag) {
		value, text := pflag.UnquoteUsage(f)
		name := "    --" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", --" + f.Name
		}
		if value != "" {
			name += " " + value
		}
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "0s" && d != "[]" {
			text += " (default " + d + ")"
		}
		rows = append(rows, [2]string{name, text})
	})
	return rows
}

// table aligns the second column.
func table(rows [][2]string) string {
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, r[0], r[1])
	}
	return b.String()
}

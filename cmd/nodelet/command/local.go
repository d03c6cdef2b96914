package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/suggest"
)

// NoPod is the error for names that no pod has. It suggests one of the known names: that of a static pod has the node's
// name at its end, which is easily forgotten.
func NoPod(names, known []string) error {
	suggestion := ""
	for _, name := range names {
		i := slices.IndexFunc(known, func(k string) bool { return strings.HasPrefix(k, name+"-") })
		if i >= 0 {
			suggestion = fmt.Sprintf("; did you mean %q?", known[i])
		} else if suggestion == "" {
			suggestion = suggest.DidYouMean(name, known)
		}
	}
	return fmt.Errorf("no pod on this node is called %s%s", strings.Join(names, " or "), suggestion)
}

// Count returns a number with its noun, such as "1 problem" and "2 problems".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// RootDirFlag declares --root-dir, which says where the socket of the running agent is.
func RootDirFlag(flags *pflag.FlagSet) *string {
	return flags.String("root-dir", config.DefaultRoot, "root directory `DIR` of the running agent")
}

// IsTerminal reports whether a stream of a Call is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodelet/nodelet/config"
)

// Version prints the version.
func Version() Command {
	return Command{
		Name:  "version",
		Usage: "usage: nodelet version\n\nPrints the version.\n",
		Run: func(args []string, out io.Writer) error {
			if err := NoFlags("version", args); err != nil {
				return err
			}
			_, err := io.WriteString(out, config.VersionText())
			return err
		},
	}
}

// Completion prints the script with which bash completes flags and the commands of the table, which is read when it
// runs.
func Completion(table func() []Command) Command {
	return Command{
		Name:  "completion",
		Usage: "usage: nodelet completion [bash]\n\nPrints the completion script for bash.\n",
		Run: func(args []string, out io.Writer) error {
			if err := NoFlags("completion", args, "bash"); err != nil {
				return err
			}
			_, err := io.WriteString(out, completionScript(table()))
			return err
		},
	}
}

func completionScript(table []Command) string {
	var flags, names []string
	var words strings.Builder
	for _, f := range config.FlagNames() {
		flags = append(flags, "--"+f)
	}
	for _, c := range table {
		names = append(names, c.Name)
		if len(c.Words) > 0 {
			fmt.Fprintf(&words, "    %s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n",
				c.Name, strings.Join(c.Words, " "))
		}
	}
	names = append(names, "help")
	return fmt.Sprintf(`# bash completion of nodelet
_nodelet() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case "$prev" in
%s    --config|--kubeconfig|--bootstrap-kubeconfig|--tls-*-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --*-dir|--pod-manifest-path|--manifests) COMPREPLY=($(compgen -d -- "$cur")); return ;;
  esac
  if [[ $COMP_CWORD -eq 1 && $cur != -* ]]; then
    COMPREPLY=($(compgen -W "%s" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "%s" -- "$cur"))
  fi
}
complete -F _nodelet nodelet
`, words.String(), strings.Join(names, " "), strings.Join(flags, " "))
}

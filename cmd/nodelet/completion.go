package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodelet/nodelet/config"
)

// completion prints the script with which bash completes commands and flags.
func completion(args []string, out io.Writer) error {
	if err := noFlags("completion", args, "bash"); err != nil {
		return err
	}
	var flags []string
	for _, f := range config.FlagNames() {
		flags = append(flags, "--"+f)
	}
	_, err := fmt.Fprintf(out, `# bash completion of nodelet
_nodelet() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case "$prev" in
    systemd) COMPREPLY=($(compgen -W "install uninstall status unit" -- "$cur")); return ;;
    --config|--kubeconfig|--bootstrap-kubeconfig|--tls-*-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --*-dir|--pod-manifest-path|--manifests) COMPREPLY=($(compgen -d -- "$cur")); return ;;
  esac
  if [[ $COMP_CWORD -eq 1 && $cur != -* ]]; then
    COMPREPLY=($(compgen -W "explain systemd completion version help" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "%s" -- "$cur"))
  fi
}
complete -F _nodelet nodelet
`, strings.Join(flags, " "))
	return err
}

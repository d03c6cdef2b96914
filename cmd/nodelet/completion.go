package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/nodelet/nodelet/config"
)

// completion prints what bash needs to complete flags and sub-commands.
func completion(_ []string, out io.Writer) error {
	var flags []string
	for _, f := range config.FlagNames() {
		flags = append(flags, "--"+f)
	}
	_, err := fmt.Fprintf(out, `# bash completion of nodelet
_nodelet() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  case "$prev" in
    systemd) COMPREPLY=($(compgen -W "install uninstall status" -- "$cur")); return ;;
    --config|--kubeconfig|--bootstrap-kubeconfig|--tls-*-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --*-dir|--pod-manifest-path|--manifests) COMPREPLY=($(compgen -d -- "$cur")); return ;;
  esac
  if [[ $COMP_CWORD -eq 1 && $cur != -* ]]; then
    COMPREPLY=($(compgen -W "explain systemd completion" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "%s" -- "$cur"))
  fi
}
complete -F _nodelet nodelet
`, strings.Join(flags, " "))
	return err
}

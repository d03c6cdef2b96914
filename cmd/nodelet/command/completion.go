package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/suggest"
)

// Shells are the shells that Completion knows.
var Shells = []string{"bash", "zsh", "fish"}

// scripts are the completion scripts, by shell. They ask the program what a word may be.
var scripts = map[string]string{
	"bash": `# bash completion of nodelet; see nodelet completion --help
_nodelet() {
  local cur=${COMP_WORDS[COMP_CWORD]#=} found
  mapfile -t found < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  case ${found[0]} in
    FILE) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    DIR) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "${found[*]%%$'\t'*}" -- "$cur") ;;
  esac
}
complete -F _nodelet nodelet kubelet
`,
	"zsh": `#compdef nodelet kubelet
# zsh completion of nodelet; see nodelet completion --help
_nodelet() {
  local -a found
  found=(${(f)"$($words[1] __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  case $found[1] in
    FILE) compset -P '*='; _files ;;
    DIR) compset -P '*='; _files -/ ;;
    *) found=("${(@)found/$'\t'/:}"); _describe nodelet found ;;
  esac
}
if [[ ${funcstack[1]} == _nodelet ]]; then
  _nodelet
else
  compdef _nodelet nodelet kubelet
fi
`,
	"fish": `# fish completion of nodelet; see nodelet completion --help
function __nodelet
    set -l line (commandline -opc) (commandline -ct)
    set -g __nodelet_found ($line[1] __complete $line[2..-1] 2>/dev/null)
    if test "$__nodelet_found" = DIR
        set __nodelet_found (__fish_complete_directories $line[-1])
    end
    test "$__nodelet_found" != FILE # fish offers files itself
end
complete -c nodelet -c kubelet -n __nodelet -f -a '$__nodelet_found'
`,
}

// Completion returns the completion script of a shell for the program and all its commands.
func Completion(shell string) (string, error) {
	if script, ok := scripts[shell]; ok {
		return script, nil
	}
	return "", Usagef("completion: no script for %q%s: want %s", shell, suggest.DidYouMean(shell, Shells),
		strings.Join(Shells, ", "))
}

// completeCommand is the command that the scripts call. Its arguments are the words of the command line up to the
// cursor, without the name of the program. The shell filters what complete prints.
const completeCommand = "__complete"

// offer is what a word of the command line may be. value is what follows a flag: FILE, DIR, words separated by "|",
// another word, or empty.
type offer struct{ word, about, value string }

// complete prints what the last of words may be: FILE or DIR for the path of one, or each word in a line of its own,
// with its description after a tab.
func complete(root *Command, words []string, out io.Writer) error {
	before, cur := words, ""
	if n := len(words); n > 0 {
		before, cur = words[:n-1], words[n-1]
	}
	c, value := root, "" // value is that of the flag before the next word
	for _, w := range before {
		switch {
		case w == "=": // bash makes it a word
		case value != "":
			value = ""
		case strings.HasPrefix(w, "-"):
			value = valueOf(w, c.flagOffers(c == root))
		default:
			if i := slices.IndexFunc(c.Sub, func(sub *Command) bool { return sub.Name == w }); i >= 0 {
				c = c.Sub[i]
			}
		}
	}
	for _, o := range c.offers(c == root, cur, value) {
		if o.about != "" {
			o.word += "\t" + o.about
		}
		if _, err := fmt.Fprintln(out, o.word); err != nil {
			return err
		}
	}
	return nil
}

// offers returns what the word cur may be. value is that of the flag before it.
func (c *Command) offers(program bool, cur, value string) (all []offer) {
	prefix := ""
	if name, _, ok := strings.Cut(cur, "="); ok && value == "" {
		prefix, value = name+"=", valueOf(name, c.flagOffers(program))
	}
	switch choices := strings.Split(value, "|"); {
	case value == "FILE" || value == "DIR":
		return []offer{{word: value}}
	case len(choices) > 1:
		for _, choice := range choices {
			all = append(all, offer{word: prefix + choice})
		}
		return all
	case value != "":
		return nil
	case strings.HasPrefix(cur, "-"):
		return c.flagOffers(program)
	}
	if program {
		all = append(all, offer{word: "help", about: "print the usage of a command"})
	}
	for _, sub := range c.Sub {
		all = append(all, offer{word: sub.Name, about: sub.Short})
	}
	for _, v := range c.Values {
		all = append(all, offer{word: v})
	}
	return all
}

// flagOffers returns the flags of a command, or of the program itself, as they are written.
func (c *Command) flagOffers(program bool) (all []offer) {
	add := func(name, about, value string) {
		if name != "" {
			dashes := "--"[:min(len(name), 2)] // one before a letter
			all = append(all, offer{dashes + name, about, value})
		}
	}
	if program {
		add("help", "print the usage", "")
		add("help-all", "list all flags", "")
	}
	if c.Setup != nil {
		flags, _ := c.flags()
		flags.VisitAll(func(f *pflag.Flag) {
			value, about := pflag.UnquoteUsage(f)
			add(f.Name, about, value)
			add(f.Shorthand, about, value)
		})
	}
	if c.AgentFlags || program {
		for _, s := range config.Settings() {
			for _, name := range append([]string{s.Flag}, s.Aliases...) {
				add(name, s.Help, s.Value)
			}
		}
	}
	return all
}

// valueOf returns the value of the flag that is written as word; empty if it is none.
func valueOf(word string, flags []offer) string {
	if i := slices.IndexFunc(flags, func(o offer) bool { return o.word == word }); i >= 0 {
		return flags[i].value
	}
	return ""
}

package command

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/internal/suggest"
)

// Shells are the shells that Completion knows.
var Shells = []string{"bash", "zsh", "fish"}

// programs are the names under which the program is installed.
var programs = []string{"nodelet", "kubelet"}

// place is a position on the command line: a path of commands, and what may follow.
type place struct {
	// path has the names of the commands, such as "systemd install"; empty: the program itself.
	path  string
	words []word
	flags []flagWord
}

// word is a word with its description.
type word struct{ text, about string }

// flagWord is a flag. value is what follows it: FILE, DIR, words separated by "|", another word, or empty.
type flagWord struct {
	word
	value string
	// short is the letter of the flag, if it has one.
	short string
}

// dashed returns the flag as it is written.
func (f flagWord) dashed() string {
	if len(f.text) == 1 {
		return "-" + f.text
	}
	return "--" + f.text
}

// names returns the forms of the flag.
func (f flagWord) names() []string {
	if f.short != "" {
		return []string{"-" + f.short, f.dashed()}
	}
	return []string{f.dashed()}
}

// choices returns the words that the value may be; none if it is not a choice.
func (f flagWord) choices() []string {
	if !strings.Contains(f.value, "|") {
		return nil
	}
	return strings.Split(f.value, "|")
}

// Completion returns the completion script of a shell for the program and all its commands.
func Completion(shell string, root *Command) (string, error) {
	all := places(root, "")
	switch shell {
	case "bash":
		return bash(all), nil
	case "zsh":
		return zsh(all), nil
	case "fish":
		return fish(all), nil
	}
	return "", Usagef("completion: no script for %q%s: want %s", shell, suggest.DidYouMean(shell, Shells),
		strings.Join(Shells, ", "))
}

// places lists all positions of a command and those below it.
func places(c *Command, path string) []place {
	p := place{path: path}
	if path == "" {
		p.words = append(p.words, word{"help", "print the usage of a command"})
		p.flags = append(agentFlags(), flagWord{word: word{"help", "print the usage"}, short: "h"},
			flagWord{word: word{"help-all", "list all flags"}})
	}
	for _, v := range c.Values {
		p.words = append(p.words, word{v, ""})
	}
	if c.Setup != nil {
		flags, _ := c.flags()
		flags.VisitAll(func(f *pflag.Flag) {
			value, about := pflag.UnquoteUsage(f)
			p.flags = append(p.flags, flagWord{word{f.Name, about}, value, f.Shorthand})
		})
	}
	if c.AgentFlags {
		p.flags = append(p.flags, agentFlags()...)
	}
	var below []place
	for _, sub := range c.Sub {
		p.words = append(p.words, word{sub.Name, sub.Short})
		below = append(below, places(sub, strings.TrimSpace(path+" "+sub.Name))...)
	}
	return append([]place{p}, below...)
}

func agentFlags() []flagWord {
	var all []flagWord
	for _, s := range config.Settings() {
		for _, name := range append([]string{s.Flag}, s.Aliases...) {
			if name != "" {
				all = append(all, flagWord{word: word{name, s.Help}, value: s.Value})
			}
		}
	}
	return all
}

// byValue groups the flags of all places by what follows them. Boolean flags are left out.
func byValue(all []place) (files, dirs, others []string, choices map[string][]string) {
	choices = map[string][]string{}
	seen := map[string]bool{}
	for _, p := range all {
		for _, f := range p.flags {
			names := slices.DeleteFunc(f.names(), func(name string) bool { return seen[name] })
			for _, name := range names {
				seen[name] = true
			}
			switch {
			case f.value == "" || len(names) == 0:
			case f.value == "FILE":
				files = append(files, names...)
			case f.value == "DIR":
				dirs = append(dirs, names...)
			case f.choices() != nil:
				words := strings.Join(f.choices(), " ")
				choices[words] = append(choices[words], names...)
			default:
				others = append(others, names...)
			}
		}
	}
	return files, dirs, others, choices
}

// walk is the loop of bash and zsh that finds the place of the cursor.
func walk(b *strings.Builder, all []place, first, index, element string) {
	fmt.Fprintf(b, "  for ((i = %s; i < %s; i++)); do\n    case \"$at %s\" in\n      ", first, index, element)
	var paths []string
	for _, p := range all[1:] {
		paths = append(paths, `" `+p.path+`"`)
	}
	fmt.Fprintf(b, "%s) at=\"$at %s\" ;;\n    esac\n  done\n", strings.Join(paths, "|"), element)
}

func bash(all []place) string {
	var b strings.Builder
	b.WriteString("# bash completion of nodelet; see nodelet completion --help\n_nodelet() {\n" +
		"  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at= i words=\n" +
		"  if [[ $cur == \"=\" ]]; then\n    cur=\n" +
		"  elif [[ $prev == \"=\" ]]; then\n    prev=${COMP_WORDS[COMP_CWORD-2]}\n  fi\n")
	walk(&b, all, "1", "COMP_CWORD", "${COMP_WORDS[i]}")
	files, dirs, others, choices := byValue(all)
	b.WriteString("  case \"$prev\" in\n")
	fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", strings.Join(files, "|"))
	fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -d -- \"$cur\")); return ;;\n", strings.Join(dirs, "|"))
	for _, words := range slices.Sorted(maps.Keys(choices)) {
		fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n",
			strings.Join(choices[words], "|"), words)
	}
	fmt.Fprintf(&b, "    %s) return ;;\n  esac\n  case \"$at\" in\n", strings.Join(others, "|"))
	for _, p := range all {
		var words []string
		for _, w := range p.words {
			words = append(words, w.text)
		}
		for _, f := range p.flags {
			words = append(words, f.dashed())
		}
		fmt.Fprintf(&b, "    \"%s\") words=\"%s\" ;;\n", at(p), strings.Join(words, " "))
	}
	fmt.Fprintf(&b, "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _nodelet %s\n",
		strings.Join(programs, " "))
	return b.String()
}

// at returns the path of a place as the loop of walk builds it.
func at(p place) string {
	if p.path == "" {
		return ""
	}
	return " " + p.path
}

func zsh(all []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#compdef %s\n# zsh completion of nodelet; see nodelet completion --help\n_nodelet() {\n"+
		"  local at= i\n  local -a commands flags\n", strings.Join(programs, " "))
	walk(&b, all, "2", "CURRENT", "${words[i]}")
	files, dirs, others, choices := byValue(all)
	b.WriteString("  case \"${words[CURRENT-1]}\" in\n")
	fmt.Fprintf(&b, "    %s) _files; return ;;\n", strings.Join(files, "|"))
	fmt.Fprintf(&b, "    %s) _files -/; return ;;\n", strings.Join(dirs, "|"))
	for _, words := range slices.Sorted(maps.Keys(choices)) {
		fmt.Fprintf(&b, "    %s) compadd %s; return ;;\n", strings.Join(choices[words], "|"), words)
	}
	fmt.Fprintf(&b, "    %s) return ;;\n  esac\n  case \"$at\" in\n", strings.Join(others, "|"))
	for _, p := range all {
		fmt.Fprintf(&b, "    \"%s\")\n", at(p))
		for _, w := range p.words {
			fmt.Fprintf(&b, "      commands+=(%s)\n", zshItem(w.text, w.about))
		}
		for _, f := range p.flags {
			fmt.Fprintf(&b, "      flags+=(%s)\n", zshItem(f.dashed(), f.about))
		}
		b.WriteString("      ;;\n")
	}
	fmt.Fprintf(&b, "  esac\n  if [[ $PREFIX == -* ]]; then\n    _describe -o flag flags\n  else\n"+
		"    _describe command commands\n  fi\n}\n"+
		"if [[ ${funcstack[1]} == _nodelet ]]; then\n  _nodelet\nelse\n  compdef _nodelet %s\nfi\n",
		strings.Join(programs, " "))
	return b.String()
}

// zshItem returns a quoted item of _describe.
func zshItem(name, about string) string {
	if about == "" {
		return quote(name)
	}
	return quote(strings.ReplaceAll(name, ":", `\:`) + ":" + about)
}

func fish(all []place) string {
	var b strings.Builder
	var paths []string
	for _, p := range all[1:] {
		paths = append(paths, quote(p.path))
	}
	fmt.Fprintf(&b, `# fish completion of nodelet; see nodelet completion --help
function __nodelet_at
    set -l at
    for w in (commandline -opc)[2..-1]
        set -l next (string trim -- "$at $w")
        if contains -- "$next" %s
            set at $next
        end
    end
    test "$at" = "$argv[1]"
end
`, strings.Join(paths, " "))
	for _, program := range programs {
		for _, p := range all {
			line := fmt.Sprintf("complete -c %s -n '__nodelet_at \"%s\"'", program, p.path)
			for _, w := range p.words {
				fmt.Fprintf(&b, "%s -f -a %s -d %s\n", line, quote(w.text), quote(w.about))
			}
			for _, f := range p.flags {
				fmt.Fprintf(&b, "%s%s -d %s\n", line, fishFlag(f), quote(f.about))
			}
		}
	}
	return b.String()
}

// fishFlag returns the options of fish's "complete" for a flag.
func fishFlag(f flagWord) string {
	option := " -l " + f.text
	switch {
	case len(f.text) == 1:
		option = " -s " + f.text
	case f.short != "":
		option = " -s " + f.short + option
	}
	switch {
	case f.value == "FILE":
		return option + " -r -F"
	case f.value == "DIR":
		return option + " -x -a '(__fish_complete_directories)'"
	case f.choices() != nil:
		return option + " -x -a " + quote(strings.Join(f.choices(), " "))
	case f.value != "":
		return option + " -x"
	}
	return option + " -f"
}

// quote quotes a word for all three shells.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "’") + "'" }

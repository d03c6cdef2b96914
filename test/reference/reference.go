// Package reference writes the reference pages and the man pages from the tables of commands and settings.
//
// Only a test uses it: it checks that the pages are current, and writes them with -update. The program does not contain
// it. It has no state.
package reference

import (
	"fmt"
	"strings"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
)

const generated = "<!-- Generated from the tables of commands and settings: go test ./test/reference -update -->\n"

// Commands is docs/reference/commands.md.
func Commands(root *command.Command) string {
	var b strings.Builder
	b.WriteString("# Reference of the commands\n" + generated + "[Commands](../commands.md) explains when to use them.\n")
	for _, p := range command.Pages(root) {
		fmt.Fprintf(&b, "\n## %s\n%s%s.\n\n    %s\n", p.Name, strings.ToUpper(p.Short[:1]), p.Short[1:], p.Synopsis)
		if p.Long != "" {
			fmt.Fprintf(&b, "\n%s\n", p.Long)
		}
		b.WriteString("\n| flag | meaning |\n|---|---|\n")
		for _, f := range p.Flags {
			fmt.Fprintf(&b, "| `%s` | %s |\n", cell(strings.TrimSpace(f[0])), cell(f[1]))
		}
		if p.Exit != "" {
			fmt.Fprintf(&b, "\n%s\n", p.Exit)
		}
	}
	return b.String()
}

// supportList explains the words in the column "support" of the tables.
const supportList = `
- **acts**: as in the kubelet.
- **acts differently**: the last column says how.
- **refused**: with an error that names it.
- **no effect** (or "without effect"): accepted, but nodelet does not act on it. The last column says why, or what to do
  instead.
`

// settingsList says what a setting without effect causes.
const settingsList = `
If you set a field or flag that has no effect, nodelet logs a warning, unless you ask for what it does anyway. A setting
is "missing" if it has no effect and pods may rely on it: nodelet does not start with it, unless
` + "`--accept-missing=FIELD`" + ` names it.
`

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

// Settings is docs/reference/settings.md.
func Settings() string {
	var b strings.Builder
	b.WriteString("# Reference of the settings\n" + generated +
		"All flags of nodelet and all fields of KubeletConfiguration, those of the kubelet " + config.KubernetesVersion +
		", and what nodelet does with them:\n" + supportList + settingsList + "\n" +
		"| flag | field | default | support | meaning |\n|---|---|---|---|---|\n")
	for _, s := range config.Settings() {
		var flag, field, standard string
		if s.Flag != "" {
			flag = "`" + strings.TrimSpace(dashed(s.Flag)+" "+cell(s.Value)) + "`"
		}
		if s.Field != "" {
			field = "`" + s.Field + "`"
		}
		if s.Default != "" {
			standard = "`" + cell(s.Default) + "`"
		}
		note := ""
		if s.Difference != "" {
			note = ". Unlike in the kubelet: " + cell(s.Difference)
		}
		if s.Own {
			note += " (not a flag of the kubelet)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s%s |\n", flag, field, standard, s.Support, cell(s.Help), note)
	}
	return b.String()
}

func dashed(flag string) string {
	if len(flag) == 1 {
		return "-" + flag
	}
	return "--" + flag
}

// roff escapes a text for a man page.
func roff(text string) string {
	text = strings.NewReplacer("\\", "\\e", "-", "\\-", "…", "...", "’", "'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = "\\&" + text
	}
	return text
}

// entry is a tagged paragraph of a man page.
func entry(b *strings.Builder, tag, text string) {
	fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(tag)), roff(text))
}

const manHead = `.\" Generated from the tables in cmd/nodelet/command and config: go test ./test/reference -update
`

const manDescription = `.SH DESCRIPTION
nodelet runs the pods of a node through a CRI runtime such as containerd and reports their state to the API server. It
takes the flags and files of the kubelet and can replace it; it may also be installed under the name kubelet. Without
.B \-\-kubeconfig
it runs standalone: only the static pods of a directory, without an API server.
.PP
When nodelet stops or crashes, pods keep running. The next start rebuilds its state from the runtime and the disk.
`

const manExit = `.SH EXIT STATUS
0 after SIGTERM or SIGINT, or when a command succeeded; 2 if the command line is wrong; 1 for any other error. The
reason is the last line of the log and the status line of
.BR "systemctl status" .
`

const manEnd = `.SH EXAMPLES
.nf
nodelet check \-\-takeover
nodelet systemd install \-\-dry\-run
nodelet explain \-\-not\-ready
nodelet exec \-it web \-\- sh
.fi
.SH SEE ALSO
.BR nodelet\-config (5),
.BR systemctl (1),
.BR journalctl (1),
.BR kubectl (1)
`

// Man is docs/man/nodelet.8.
func Man(root *command.Command, files []File) string {
	var b strings.Builder
	b.WriteString(manHead + ".TH NODELET 8 \"\" \"nodelet\" \"System administration\"\n.SH NAME\n" +
		"nodelet \\- node agent for Kubernetes\n.SH SYNOPSIS\n.B nodelet\n.RI [ flags ]\n")
	pages := command.Pages(root)
	for _, p := range pages {
		fmt.Fprintf(&b, ".br\n.B %s\n%s\n", roff(p.Name), roff(strings.TrimSpace(strings.TrimPrefix(p.Synopsis, p.Name))))
	}
	b.WriteString(manDescription + ".SH COMMANDS\nEach command prints its usage with\n.BR \\-\\-help .\n")
	for _, p := range pages {
		fmt.Fprintf(&b, ".SS %s\n%s.\n", roff(p.Synopsis), roff(p.Short))
		for line := range strings.Lines(p.Long) {
			if line = strings.TrimSpace(line); line == "" {
				line = ".PP"
			} else {
				line = roff(line)
			}
			b.WriteString(line + "\n")
		}
		for _, f := range p.Flags {
			entry(&b, f[0], f[1])
		}
		if p.Exit != "" {
			fmt.Fprintf(&b, ".PP\n%s\n", roff(p.Exit))
		}
	}
	b.WriteString(".SH OPTIONS\nThe most important flags of the agent;\n.B nodelet \\-\\-help\\-all\nlists all.\n")
	for _, s := range config.Settings() {
		if s.Flag != "" && s.Topic != "" {
			entry(&b, dashed(s.Flag)+" "+s.Value, withDefault(s))
		}
	}
	b.WriteString(manExit + manFiles(files) + manEnd)
	return b.String()
}

func withDefault(s config.Setting) string {
	if s.Default == "" {
		return s.Help
	}
	return s.Help + " (default " + s.Default + ")"
}

// ConfigMan is docs/man/nodelet-config.5.
func ConfigMan() string {
	var b strings.Builder
	b.WriteString(manHead + ".TH NODELET\\-CONFIG 5 \"\" \"nodelet\" \"File formats\"\n.SH NAME\n" +
		"nodelet\\-config \\- fields of KubeletConfiguration in nodelet\n.SH DESCRIPTION\n.ad l\n" +
		"The file of\n.B \\-\\-config\nis a KubeletConfiguration, kubelet.config.k8s.io/v1beta1, in YAML or JSON. " +
		"An unknown field is an error.\n.SH FIELDS\n")
	for _, s := range config.Settings() {
		if s.Field == "" {
			continue
		}
		text := withDefault(s)
		switch {
		case s.Support == config.NoEffect:
			text = "No effect: " + text
		case s.Difference != "":
			text += ". Unlike in the kubelet: " + s.Difference
		}
		entry(&b, s.Field, text)
	}
	b.WriteString(".SH SEE ALSO\n.BR nodelet (8)\n")
	return b.String()
}

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/cmd/nodelet/command/app"
)

var update = flag.Bool("update", false, "rewrite the output in the transcripts")

// transcripts are the files whose console blocks are run: pages, and what no page needs to show.
var transcripts = []string{"../../docs/mistakes.md", "../../docs/commands.md", "testdata/transcripts.txt"}

// block is a console block of a page. The words after "console" describe the machine: it has systemd, or a kubelet;
// the program is in the directory where it was built; systemctl fails.
var block = regexp.MustCompile("(?ms)^```console([a-z ]*)\n(.*?)^```$")

// TestTranscripts runs each command of the console blocks and compares its output. A line with only … stands for any
// lines, … in a line for any text. Blocks run on an empty machine of their own; nothing is changed outside of it.
func TestTranscripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the transcripts are those of root")
	}
	for _, page := range transcripts {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		result := block.ReplaceAllFunc(text, func(b []byte) []byte {
			parts := block.FindSubmatch(b)
			m := newTranscriptMachine(t, strings.Fields(string(parts[1])))
			var out strings.Builder
			for _, c := range split(string(parts[2])) {
				count++
				got := m.run(t, c.line)
				if !*update && !matches(c.output, got) {
					t.Errorf("%s: $ %s: got\n%s\nwant\n%s", filepath.Base(page), c.line, got, c.output)
				}
				if strings.Contains(c.output, "…") && matches(c.output, got) {
					got = c.output
				}
				out.WriteString("$ " + c.line + "\n" + got)
			}
			return []byte("```console" + string(parts[1]) + "\n" + out.String() + "```")
		})
		if count < 10 {
			t.Errorf("%s: got %d commands, want at least 10", page, count)
		}
		if *update {
			if err := os.WriteFile(page, result, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestEveryCommandHasATranscript checks that the transcripts run each command, and not only for its usage.
func TestEveryCommandHasATranscript(t *testing.T) {
	var lines []string
	for _, page := range transcripts {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range block.FindAllStringSubmatch(string(text), -1) {
			for _, c := range split(b[2]) {
				lines = append(lines, c.line)
			}
		}
	}
	eachCommand(app.Root(), "", func(path string, c *command.Command) {
		runs := regexp.MustCompile(`(^|; )nodelet ` + path + `( |$)`)
		if c.Setup != nil && !slices.ContainsFunc(lines, func(line string) bool {
			return runs.MatchString(line) && !strings.HasSuffix(line, " --help") && !strings.HasSuffix(line, " -h")
		}) {
			t.Errorf("no transcript runs nodelet %s", path)
		}
	})
}

// call is a command of a transcript and its output.
type call struct{ line, output string }

func split(body string) []call {
	var all []call
	for line := range strings.Lines(body) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, call{line: strings.TrimSuffix(command, "\n")})
		} else if len(all) > 0 {
			all[len(all)-1].output += line
		}
	}
	return all
}

// matches reports whether an output has the form of a pattern with ….
func matches(pattern, got string) bool {
	var b strings.Builder
	for line := range strings.Lines(pattern) {
		if line == "…\n" {
			b.WriteString("(?:.*\n)*?")
			continue
		}
		b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*"))
	}
	return regexp.MustCompile("^" + b.String() + "$").MatchString(got)
}

// transcriptMachine is a root, a working directory, a PATH with few programs, and nodelet's path below the root.
type transcriptMachine struct{ root, work, bin, program string }

// systemctl answers for a machine with the units that exist, whose properties are in the file "state".
const systemctl = `#!/bin/sh
case "$1 $2" in
"show kubelet.service") cat "$NODELET_TEST_ROOT/kubelet" ;;
"show nodelet.service") [ -e "$NODELET_TEST_ROOT/etc/systemd/system/nodelet.service" ] &&
  echo LoadState=loaded && echo ActiveState=active || echo LoadState=not-found ;;
"cat kubelet.service") echo "[Service]"; echo "ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml" ;;
esac
`

func newTranscriptMachine(t *testing.T, has []string) *transcriptMachine {
	t.Helper()
	m := &transcriptMachine{root: t.TempDir(), work: t.TempDir(), bin: t.TempDir()}
	m.program = "/usr/local/bin/nodelet"
	if slices.Contains(has, "built") {
		m.program = "/home/me/nodelet/bin/nodelet"
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, text string, mode os.FileMode) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"nodelet": self,
		"cat":     "/bin/cat",
		"ls":      "/bin/ls",
		"mkdir":   "/bin/mkdir",
	} {
		if err := os.Symlink(target, filepath.Join(m.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := systemctl
	if slices.Contains(has, "failing") {
		script = "#!/bin/sh\necho Failed to connect to bus >&2\nexit 1\n"
	}
	write(filepath.Join(m.bin, "systemctl"), script, 0o755)
	write(filepath.Join(m.root, m.program), "", 0o755)
	state := "LoadState=not-found\n"
	if slices.Contains(has, "kubelet") {
		state = "LoadState=loaded\nActiveState=active\nSubState=running\n"
	}
	write(filepath.Join(m.root, "kubelet"), state, 0o644)
	if slices.Contains(has, "systemd") {
		write(filepath.Join(m.root, "run/systemd/system/x"), "", 0o644)
	}
	return m
}

// command returns what runs a line with the shell.
func (m *transcriptMachine) command(line string) *exec.Cmd {
	c := exec.Command("/bin/sh", "-c", line)
	c.Dir = m.work
	c.Env = []string{"PATH=" + m.bin, asProgram + "=1", testRoot + "=" + m.root, testPath + "=" + m.program, "TZ=UTC"}
	return c
}

// run runs a line with the shell, and returns its output and, unless it is 0, its exit code.
func (m *transcriptMachine) run(t *testing.T, line string) string {
	t.Helper()
	c := m.command(line)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	var exit *exec.ExitError
	if err := c.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(out.String(), m.root, "")
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if code := c.ProcessState.ExitCode(); code != 0 {
		text += fmt.Sprintf("(exit code %d)\n", code)
	}
	return text
}

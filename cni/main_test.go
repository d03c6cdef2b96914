package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/cni/shim"
	"github.com/nodelet/nodelet/host/machine"
	"github.com/nodelet/nodelet/test/ownmounts"
	"github.com/nodelet/nodelet/test/waittest"
)

// The test's own program is nodelet-cni as well: package shim has seen to the call before we come here, or has left it.
func TestMain(m *testing.M) {
	if call := shim.Pending(); call != nil {
		os.Exit(Plugin(call, os.Stdout))
	}
	ownmounts.Main(m)
}

// script is a plugin written in shell. It writes each call down, one file for each kind, and then runs body, with the
// configuration in $config.
const script = `#!/bin/sh
config=$(cat)
echo "$CNI_COMMAND PLUGIN $CNI_CONTAINERID $CNI_IFNAME" >>DIR/calls
printf '%s\n' "$config" >DIR/PLUGIN.$CNI_COMMAND
`

// answer is the body of a plugin that gives one address.
const answer = `[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","interfaces":[{"name":"'$CNI_IFNAME'",
	"mac":"0a:00:00:00:00:01","sandbox":"'$CNI_NETNS'"}],
	"ips":[{"interface":0,"address":"10.9.0.2/24","gateway":"10.9.0.1"}]}'
exit 0
`

// pass is the body of a plugin that passes on the result of the plugin before it.
const pass = `[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.2/24"}]}'
exit 0
`

// bench is a driver with a directory of plugins of its own.
type bench struct {
	*Driver
	t    *testing.T
	dir  string // plugins, what they wrote down, records
	seen []Call
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	b.Driver = NewDriver(DriverConfig{
		Dir:       filepath.Join(b.dir, "state"),
		BinDirs:   []string{b.dir},
		CallLimit: 20 * time.Second,
		Observe:   func(c Call) { b.seen = append(b.seen, c) },
	})
	return b
}

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// plugin writes a plugin.
func (b *bench) plugin(name, body string) {
	b.t.Helper()
	text := strings.NewReplacer("DIR", b.dir, "PLUGIN", name).Replace(script) + strings.ReplaceAll(body, "DIR", b.dir)
	writeProgram(b.t, filepath.Join(b.dir, name), text)
}

// writeProgram writes a program. Another process writes it: a file that is open for writing in a process which forks
// cannot be run.
func writeProgram(t *testing.T, path, text string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `cat >"$0" && chmod 755 "$0"`, path)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("write program %s: %v: %s", path, err, out)
	}
}

// calls are the plugins' calls so far, as "VERB plugin sandbox interface".
func (b *bench) calls() []string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// got is the configuration that a plugin was last given for a verb.
func (b *bench) got(plugin, verb string) map[string]any {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, plugin+"."+verb))
	if err != nil {
		b.t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *bench) network(text string) *Network {
	b.t.Helper()
	n, err := parseNetwork([]byte(text))
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// record is that of a sandbox whose namespace is the test's own, for plugins that touch none.
func (b *bench) record(id string) *Record {
	return &Record{
		Sandbox: id,
		NetNS:   "/proc/self/ns/net",
		Boot:    bootID(),
		Runtime: processOf(os.Getpid()),
		Began:   time.Now(),
		Uptime:  machine.Uptime(),
		Pod:     Pod{Namespace: "default", Name: "p", UID: "uid-" + id},
	}
}

func (b *bench) attach(id string, n *Network) error {
	b.t.Helper()
	return b.Attach(context.Background(), b.record(id), []Wanted{{Network: n, IfName: "eth0"}})
}

// kept lists the sandboxes on record.
func (b *bench) kept() []string {
	b.t.Helper()
	ids, err := b.store.list()
	if err != nil {
		b.t.Fatal(err)
	}
	return ids
}

func chain(types ...string) string {
	var plugins []string
	for _, t := range types {
		plugins = append(plugins, fmt.Sprintf(`{"type":%q}`, t))
	}
	return `{"cniVersion":"1.0.0","name":"net","plugins":[` + strings.Join(plugins, ",") + `]}`
}

// gone waits for the end of a process that is no child of ours.
func gone(t *testing.T, pid int) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("process %d has ended", pid), func() bool {
		return unix.Kill(pid, 0) == unix.ESRCH || zombie(pid)
	})
}

func zombie(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Contains(string(b), ") Z ")
}

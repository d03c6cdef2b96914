package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/testbed"
)

// filesDamaged kills the agent, damages one of its files, and starts it again.
func filesDamaged(ctx context.Context, l *lane) error {
	for range 3 {
		if err := l.node.StopAgent(unix.SIGKILL); err != nil {
			return err
		}
		l.report.killed("agent")
		what, err := l.damage()
		if err != nil {
			return err
		}
		l.report.note("damaged %s", what)
		if err := l.node.StartAgent(ctx, testbed.Nodelet); err != nil {
			return err
		}
		l.wait(ctx, l.between(time.Second, 5*time.Second))
	}
	return nil
}

// damage changes one of the agent's own files and says which and how. Volumes belong to the pods, and keys to the
// node's administrator: those are left alone.
func (l *lane) damage() (string, error) {
	var files []string
	err := filepath.WalkDir(l.node.RootDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && slices.Contains([]string{"volumes", "containers", "pki", "volume-subpaths"}, name) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && name != "etc-hosts" {
			files = append(files, path)
		}
		return nil
	})
	if err != nil || len(files) == 0 {
		return "nothing: the agent has no file", err
	}
	file := pick(l.rand, files...)
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	how := pick(l.rand, "emptied", "cut", "garbage", "newer")
	switch how {
	case "emptied":
		text = nil
	case "cut":
		text = text[:len(text)/2]
	case "garbage":
		text = []byte("\x00\x01 not what it was \xff")
	case "newer":
		const more = `{"apiVersion":"from.the.future/v99","unknown":{"field":[1,2,3]},`
		text = []byte(strings.Replace(string(text), "{", more, 1))
	}
	return fmt.Sprintf("%s (%s)", strings.TrimPrefix(file, l.node.RootDir+"/"), how), os.WriteFile(file, text, 0o600)
}

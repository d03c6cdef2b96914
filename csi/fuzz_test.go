package csi

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// FuzzRecord checks that a record leads to no path outside of the root directory, whatever was made of its file.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"sum":"x","record":{"driver":"d","handle":"h","staging":"a/b","uses":{"p/n":{"pod":"p","name":"n",
		"target":"t"}}}}`))
	f.Add([]byte(`{"driver":"d","handle":"h","staging":"../../etc","boot":"b"}`))
	f.Add([]byte(`{"driver":"d","handle":"h","staging":"a","uses":{"p/n":{"pod":"p","name":"n","target":"/etc"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, sealedText := range [][]byte{text, seal(text), append(seal(text), "torn"...)} {
			r, err := parseJournal(sealedText)
			if err != nil {
				continue
			}
			for _, u := range r.Uses {
				own := podVolume(pluginname.CSI, u.Pod, u.Name)
				if !filepath.IsLocal(u.Target) || !filepath.IsLocal(own) || strings.Contains(u.Name, "/") {
					t.Errorf("%q: got the use %+v, want only local paths", text, u)
				}
			}
			if !filepath.IsLocal(r.Staging) || checkDriver(r.Driver) != nil {
				t.Errorf("%q: got the record %+v, want a local path and a valid driver", text, r)
			}
		}
	})
}

// FuzzVolData checks that what lies where the kubelet keeps its notes makes no start fail, and no volume of it
// outside of the root.
func FuzzVolData(f *testing.F) {
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h","specVolID":"pv"}`))
	f.Add([]byte(`{"driverName":"../x","volumeHandle":"h"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, text []byte) {
		root := t.TempDir()
		for _, dir := range []string{podVolume(pluginname.CSI, "pod", "pv"), filepath.Join(pluginDir, "d", "hash"),
			filepath.Join(devicesDir, "pv", "data")} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, dir, dataFile), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c, err := New(Config{Log: slog.New(slog.DiscardHandler), Root: root, NodeName: "node", BootID: "boot"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for k, v := range c.records.volumes {
			if !filepath.IsLocal(v.rec.Staging) || strings.Contains(k.driver, "/") {
				t.Errorf("%q: got %+v, want a local path and a valid driver", text, v.rec)
			}
		}
	})
}

// FuzzCondition checks that a driver's word on a volume is text that can be shown, or an error.
func FuzzCondition(f *testing.F) {
	f.Add([]byte{0x12, 0x05, 0x08, 0x01, 0x12, 0x01, 'x'})
	f.Add([]byte{0x12, 0xff})
	f.Fuzz(func(t *testing.T, unknown []byte) {
		c, err := parseCondition(unknown)
		if err == nil && !utf8.ValidString(c.Message) {
			t.Errorf("%x: got %q, want valid UTF-8", unknown, c.Message)
		}
	})
}

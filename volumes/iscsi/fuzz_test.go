package iscsi

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzState: a LUN from a state file, or from the name of its directory, leads to no path outside of its directories
// and to no other argument of iscsiadm.
func FuzzState(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"VolName":"v","Portals":["10.0.0.1:3260"],"Iqn":"iqn.2026-01.test:a","Lun":"1","InitIface":"default",
			"Iface":"default"}`, "iface-default/10.0.0.1:3260-iqn.2026-01.test:a-lun-1"},
		{`{"Portals":["../..:1"],"Iqn":"--logout"}`, "iface-x/[::1]:3260-eui.a-lun-0"},
		{"", "iface-../10.0.0.1:3260-naa.a-lun--1"},
	} {
		f.Add([]byte(seed[0]), seed[1])
	}
	root := f.TempDir()
	d := &Driver{cfg: &Config{State: filepath.Join(root, "state"), Log: slog.New(slog.DiscardHandler)}}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		staging := filepath.Join(root, name)
		if !filepath.IsLocal(name) || len(name) > 200 || os.MkdirAll(staging, 0o755) != nil {
			return
		}
		defer os.RemoveAll(filepath.Join(root, strings.Split(filepath.Clean(name), "/")[0]))
		if err := os.WriteFile(filepath.Join(staging, stateFile), text, 0o600); err != nil {
			return
		}
		l, err := d.load(staging)
		if err != nil {
			return
		}
		for _, path := range []string{l.Directory(), l.Iqn, l.Iface, l.Portals[0]} {
			if !filepath.IsLocal(path) {
				t.Errorf("%q in %q: got the path %q, want a local one", text, name, path)
			}
		}
		for _, arg := range append([]string{l.Iqn, l.Iface, l.InitIface}, l.Portals...) {
			if strings.HasPrefix(arg, "-") || strings.ContainsAny(arg, " \n") {
				t.Errorf("%q in %q: got the argument %q, want no flag and no blank", text, name, arg)
			}
		}
	})
}

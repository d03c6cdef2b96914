package config

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/nodelet/nodelet/internal/strict"
)

// TestEveryFieldHasOneSetting checks that the table has each field of KubeletConfiguration exactly once.
func TestEveryFieldHasOneSetting(t *testing.T) {
	count := map[string]int{}
	for _, k := range settingTable {
		count[k.field]++
	}
	for _, path := range leaves(reflect.TypeFor[KubeletConfiguration](), "") {
		if count[path] != 1 {
			t.Errorf("%s: got %d settings, want 1", path, count[path])
		}
		delete(count, path)
	}
	delete(count, "")
	for path := range count {
		t.Errorf("got setting %s, which is not a field; want none", path)
	}
}

func leaves(t reflect.Type, path string) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return []string{path}
	}
	var all []string
	for name, index := range strict.Fields(t) {
		if path != "" || name != "apiVersion" && name != "kind" {
			all = append(all, leaves(t.FieldByIndex(index).Type, strings.TrimPrefix(path+"."+name, "."))...)
		}
	}
	return all
}

// TestEveryFlagOfTheKubelet compares names, types and defaults with the list taken from the kubelet itself.
func TestEveryFlagOfTheKubelet(t *testing.T) {
	f, err := os.Open("testdata/flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fs := newFlagSet()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		col := strings.SplitN(lines.Text(), " ", 5)
		name, short := col[0], col[1]
		typ, alone := col[2], col[3] == "alone"
		seen[name] = true
		got := fs.Lookup(name)
		switch {
		case got == nil:
			t.Errorf("got no flag --%s, want it", name)
			continue
		case got.Value.Type() != typ:
			t.Errorf("type of --%s: got %s, want %s", name, got.Value.Type(), typ)
		case short != "-" && got.Shorthand != short:
			t.Errorf("shorthand of --%s: got %q, want %q", name, got.Shorthand, short)
		case (got.NoOptDefVal != "") != alone:
			t.Errorf("--%s may stand alone: got %v, want %v", name, got.NoOptDefVal != "", alone)
		}
		checkFlagDefault(t, name, col[4])
	}
	if len(seen) != 130 {
		t.Errorf("the list: got %d flags, want 130", len(seen))
	}
	fs.VisitAll(func(f *pflag.Flag) {
		own := isOwn(f.Name) || strings.HasPrefix(f.Name, "help")
		if !seen[f.Name] && !own {
			t.Errorf("got flag --%s, want only those of the kubelet and nodelet's own", f.Name)
		}
	})
}

// insecureLegacy are flags whose default without a file is less safe in the kubelet: see the package comment.
var insecureLegacy = map[string]bool{
	"anonymous-auth": true, "authentication-token-webhook": true, "authorization-mode": true, "read-only-port": true,
	"eviction-hard": true,
}

func checkFlagDefault(t *testing.T, flag, encoded string) {
	t.Helper()
	var want string
	if err := json.Unmarshal([]byte(encoded), &want); err != nil {
		t.Fatal(err)
	}
	for _, k := range settingTable {
		if k.flag != flag || insecureLegacy[flag] || k.kind == kVModule {
			continue
		}
		if k.field == "" {
			if k.def != want {
				t.Errorf("default of --%s: got %q, want %q", flag, k.def, want)
			}
			continue
		}
		// The kubelet's default, given as a flag, must change nothing.
		c, d := &KubeletConfiguration{}, &KubeletConfiguration{}
		setDefaults(c)
		setDefaults(d)
		v, err := k.kind.read(nil, strings.Trim(want, "[]"))
		if err != nil {
			t.Errorf("--%s=%s: %v", flag, want, err)
			continue
		}
		if err := applyFlags(c, flagValues{flag: v}); err != nil {
			t.Errorf("--%s=%s: %v", flag, want, err)
		}
		empty := func(s string) bool { return s == "null" || s == "{}" || s == "[]" }
		if x, y := textAt(c, k.field), textAt(d, k.field); x != y && !(empty(x) && empty(y)) {
			t.Errorf("--%s: got the default %s, want %s as in the kubelet", flag, y, x)
		}
	}
}

// TestEverySettingIsDescribed checks that each setting says what it does or what to do instead, and that the tables of
// removed flags and of broken promises name real ones.
func TestEverySettingIsDescribed(t *testing.T) {
	fs := newFlagSet()
	for _, k := range settingTable {
		if k.help == "" {
			t.Errorf("setting %q %q: got no description, want one", k.flag, k.field)
		}
	}
	for field := range breaks {
		if !slices.ContainsFunc(settingTable, func(k setting) bool { return k.field == field }) {
			t.Errorf("breaks: got %s, want only fields", field)
		}
	}
	for flag, advice := range removed {
		if fs.Lookup(flag) != nil {
			t.Errorf("got flag --%s, want none: it is in the table of removed flags", flag)
		}
		_, err := Load([]string{"--" + flag + "=x"})
		want := "flag --" + flag + " was removed from Kubernetes: " + advice
		if _, ok := errors.AsType[*UsageError](err); !ok || err.Error() != want {
			t.Errorf("--%s: got %v, want %s", flag, err, want)
		}
	}
}

// TestShownFlagsHaveAnEffect checks that --help lists no flag without an effect, except --bootstrap-kubeconfig.
func TestShownFlagsHaveAnEffect(t *testing.T) {
	for _, k := range settingTable {
		if k.group != gHidden && !k.acts && k.flag != "bootstrap-kubeconfig" {
			t.Errorf("--help: got --%s, want no flag without an effect", k.flag)
		}
		if k.group != gHidden && (k.flag == "" || k.help == "") {
			t.Errorf("--help: got setting %q %q, want only those with a flag and a help text", k.flag, k.field)
		}
		if k.flag != "" && k.kind == nil {
			t.Errorf("--%s: got no kind, want one", k.flag)
		}
	}
}

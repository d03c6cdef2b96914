package nodefacts

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodelet/nodelet/agent/spec"
)

// TestDNSSettingsChange checks that pods get the node's present DNS settings: those of a file that appears after the
// start of the agent, and of one that changes. While it cannot be read or is not valid, the last ones count; it is an
// error if there are none.
func TestDNSSettingsChange(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	f := New(spec.Node{}, file, slog.New(slog.DiscardHandler))
	known := false
	for _, step := range []struct {
		name, content string // no content: the file is removed
		want          []string
	}{
		{"no file at the start", "", nil},
		{"no valid file yet", "nameserver\n", nil},
		{"the file appears", "nameserver 192.0.2.1\n", []string{"192.0.2.1"}},
		{"another network", "nameserver 192.0.2.2\nnameserver 192.0.2.3\n", []string{"192.0.2.2", "192.0.2.3"}},
		{"the file is being replaced", "", []string{"192.0.2.2", "192.0.2.3"}},
		{"the file is not valid", "nameserver\n", []string{"192.0.2.2", "192.0.2.3"}},
		{"back to the first network", "nameserver 192.0.2.1\n", []string{"192.0.2.1"}},
		{"no nameserver any more", "# none\n", nil},
	} {
		if step.content == "" {
			_ = os.Remove(file)
		} else if err := os.WriteFile(file, []byte(step.content), 0o644); err != nil {
			t.Fatal(err)
		}
		node, err := f.Fresh()
		if got := node.Resolv.Nameservers; !slices.Equal(got, step.want) {
			t.Errorf("%s: got nameservers %v, want %v", step.name, got, step.want)
		}
		known = known || step.want != nil
		if (err == nil) != known {
			t.Errorf("%s: got error %v, want one: %v", step.name, err, !known)
		}
	}
}

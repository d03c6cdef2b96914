package nodefacts

import (
	"testing"

	"github.com/nodelet/nodelet/config"
)

// TestIPv6First checks that --node-ip says which address of their pods comes first.
func TestIPv6First(t *testing.T) {
	for flag, want := range map[string]bool{
		"":                false,
		"192.0.2.1":       false,
		"192.0.2.1,fd::1": false,
		"fd::1,192.0.2.1": true,
		"::":              true,
	} {
		c, err := config.Load([]string{"--hostname-override=node", "--node-ip=" + flag})
		if err != nil {
			t.Fatal(err)
		}
		if got := Settings(c).IPv6First; got != want {
			t.Errorf("--node-ip=%s: got %v, want %v", flag, got, want)
		}
	}
}

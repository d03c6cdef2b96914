package main

import (
	"slices"
	"testing"
)

func TestNewestVersion(t *testing.T) {
	for want, names := range map[string][]string{
		"linux-source-7.10": {"linux-source-7.2", "linux-source-7.10", "linux-source-7.9"},
		"linux-source-8.0":  {"linux-source-8.0", "linux-source-7.12"},
		"":                  nil,
	} {
		if got := newestVersion(names); got != want {
			t.Errorf("newestVersion(%q): got %q, want %q", names, got, want)
		}
	}
}

func TestMissingOptions(t *testing.T) {
	got := missingOptions("# a comment\nCONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n",
		"CONFIG_A=y\n# CONFIG_B is not set\n")
	if want := []string{"CONFIG_B=y"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDebianSite(t *testing.T) {
	targets := "http://other.invalid/apt Other main\n" +
		"http://mirror.invalid/debian-security Debian main\n" +
		"http://mirror.invalid/debian Debian contrib\n" +
		"http://mirror.invalid/debian Debian main\n"
	if got, want := debianSite(targets), "http://mirror.invalid/debian"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

package cpu_test

import (
	"strings"
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/nodelet/nodelet/agent/placement/cpu"
	"github.com/nodelet/nodelet/host/topology"
)

func TestParseOptions(t *testing.T) {
	on := func(string) bool { return true }
	got, err := cpu.ParseOptions(map[string]string{"full-pcpus-only": "true", "align-by-socket": "true",
		"strict-cpu-reservation": "false"}, on)
	if want := (cpu.Options{FullCores: true, AlignSocket: true}); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for want, options := range map[string]map[string]string{
		`unknown CPU Manager Policy option: "fast"`: {"fast": "true"},
		"bad value":                        {"full-pcpus-only": "yes, please"},
		"can not be used at the same time": {"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"},
	} {
		if _, err := cpu.ParseOptions(options, on); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want an error with %q", options, err, want)
		}
	}
	off := func(string) bool { return false }
	if _, err := cpu.ParseOptions(map[string]string{"align-by-socket": "true"}, off); err == nil ||
		!strings.Contains(err.Error(), "CPUManagerPolicyAlphaOptions") {
		t.Errorf("without its gate: got %v, want an error that names it", err)
	}
}

func TestNewRefuses(t *testing.T) {
	m := &topology.Machine{Nodes: []topology.Node{{}}, CPUs: []topology.CPU{{ID: 0}, {ID: 1, Core: 1, Socket: 1}}}
	for want, c := range map[string]cpu.Config{
		"greater than zero": {},
		"unable to reserve": {ReservedCount: 3},
		"are not online":    {Reserved: cpuset.New(7)},
		"more sockets":      {ReservedCount: 1, Options: cpu.Options{AlignSocket: true}},
		"is incompatible":   {ReservedCount: 1, Options: cpu.Options{AlignSocket: true}, SingleNode: true},
	} {
		c.Machine = m
		if _, err := cpu.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want an error with %q", c, err, want)
		}
	}
}

package main

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/monitor"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// TestLongCallIsHealthy checks that systemd does not restart the agent while the runtime takes ten minutes for a
// checkpoint that may take longer.
func TestLongCallIsHealthy(t *testing.T) {
	cfg, err := config.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		runtime := fake.New()
		runtime.Start()
		defer runtime.Close()
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		client, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: log, Connect: runtime.Connect})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		runtime.Inject(&fake.Fault{Verb: "CheckpointContainer", Hang: true})
		ended := make(chan error, 1)
		go func() { ended <- client.CheckpointContainer(t.Context(), "c", "/checkpoint.tar", 15*time.Minute) }()
		time.Sleep(10 * time.Minute)
		p := &process{cfg: cfg, output: output{log: log}}
		x := &parts{
			runtime:    &containerRuntime{monitor: monitor.New(monitor.Config{Client: client})},
			supervisor: agent.NewSupervisor(agent.Config{Waiting: func() error { return nil }, Log: log}),
		}
		s := service(p, x)
		if err := s.Healthy(t.Context()); err != nil {
			t.Errorf("during the call: got %v, want no error", err)
		}
		if err := <-ended; !cri.IsDeadline(err) {
			t.Errorf("the call: got %v, want its own limit", err)
		}
	})
}

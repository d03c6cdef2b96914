package usage

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/metrics"
)

// sick replaces the volume by one whose driver reports abnormal, with or without figures.
func (w *world) sick(abnormal *bool, figures bool) {
	w.volumes["claim"] = Volume{Path: w.root, Claim: "c", Ask: func(context.Context) (Figures, bool) {
		return Figures{Capacity: 10, Abnormal: abnormal}, figures
	}}
}

// TestVolumeHealth checks that the health that a driver reports is exposed, also if the driver has no figures.
func TestVolumeHealth(t *testing.T) {
	yes, no := true, false
	const name = "kubelet_volume_stats_health_status_abnormal{"
	for _, c := range []struct {
		abnormal *bool
		figures  bool
		want     string
	}{{&yes, true, "1"}, {&yes, false, "1"}, {&no, true, "0"}, {nil, true, ""}} {
		w := newWorld(t, true)
		w.sick(c.abnormal, c.figures)
		text := w.text(w.WriteVolumes)
		want := name + `namespace="default",persistentvolumeclaim="c"} ` + c.want
		if c.want != "" && !strings.Contains(text, want+"\n") {
			t.Errorf("got no %q, want it in:\n%s", want, text)
		}
		if c.want == "" && strings.Contains(text, name) {
			t.Errorf("got a health that the driver does not report:\n%s", text)
		}
	}
}

// TestOnlyTheDriverKnows checks that a volume whose driver does not say how large it is has no figures, neither those
// of the file system that it is part of nor old ones of the driver.
func TestOnlyTheDriverKnows(t *testing.T) {
	w := newWorld(t, true)
	synctest.Test(t, func(t *testing.T) {
		for _, known := range []bool{false, true, false} {
			w.sick(nil, known)
			w.text(w.WriteVolumes)
			synctest.Wait()
			text := w.text(w.WriteVolumes)
			if got := strings.Contains(text, "kubelet_volume_stats_capacity_bytes{"); got != known {
				t.Errorf("driver knows: %v: got figures: %v in:\n%s", known, got, text)
			}
			time.Sleep(2 * sizeFresh)
		}
	})
}

// TestNoFiguresAreNoHurry checks that a volume is measured at most once a minute, and that requests do not wait for it
// again, also if there are no figures: its driver has none, or its file system cannot be read.
func TestNoFiguresAreNoHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		silent := Volume{Path: "/of/driver", Ask: func(context.Context) (Figures, bool) {
			asked++
			time.Sleep(farTimeout / 2)
			return Figures{}, false
		}}
		var f faraway
		for range 3 {
			f.refresh([]Volume{silent, {Path: "/missing"}})
			synctest.Wait()
			if again := f.start([]Volume{silent, {Path: "/missing"}}, time.Now()); len(again) > 0 || asked != 1 {
				t.Errorf("got %d measurements to wait for and %d calls of the driver, want 0 and 1", len(again), asked)
			}
		}
		time.Sleep(2 * sizeFresh)
		if again := f.start([]Volume{silent}, time.Now()); len(again) > 0 {
			t.Error("a minute later: got a measurement to wait for")
		}
		time.Sleep(farTimeout)
		synctest.Wait()
		if asked != 2 {
			t.Errorf("a minute later: got %d calls of the driver, want 2", asked)
		}
	})
}

// TestSharedClaim checks that a claim that several pods use is exposed once, in each order of the pods, although the
// driver has figures of it in one pod only, or reports it as unhealthy in one pod only.
func TestSharedClaim(t *testing.T) {
	const labels = `{namespace="",persistentvolumeclaim="c"} `
	yes, no := true, false
	using := func(path string, f Figures, ok bool) (p podUse) {
		p.Pod.Pod = &corev1.Pod{}
		p.Volumes = map[string]Volume{"data": {
			Path:  path,
			Claim: "c",
			Ask:   func(context.Context) (Figures, bool) { return f, ok },
		}}
		return p
	}
	ill := using("/a", Figures{Abnormal: &yes}, false)
	good := using("/b", Figures{Capacity: 10, Abnormal: &no}, true)
	synctest.Test(t, func(t *testing.T) {
		for _, pods := range [][]podUse{{ill, good}, {good, ill}} {
			w := newWorld(t, true)
			text := w.text(func(_ context.Context, t *metrics.Text) { w.writeClaims(t, pods) })
			wantLines(t, text, "kubelet_volume_stats_capacity_bytes"+labels+"10",
				"kubelet_volume_stats_health_status_abnormal"+labels+"1")
		}
	})
}

// TestWatchHealth checks that drivers are asked regularly without requests.
func TestWatchHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		v := Volume{Path: "/missing", Ask: func(context.Context) (Figures, bool) {
			asked.Add(1)
			return Figures{Capacity: 1}, true
		}}
		c := New(Config{Pods: func(context.Context) ([]Pod, error) {
			return []Pod{{Pod: &corev1.Pod{}, Volumes: map[string]Volume{"data": v}}}, nil
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { c.WatchHealth(ctx); close(ended) }()
		time.Sleep(20 * time.Minute)
		cancel()
		<-ended
		if n := asked.Load(); n < 10 || n > 20 {
			t.Errorf("asked %d times in 20 minutes, want 10 to 20", n)
		}
	})
}

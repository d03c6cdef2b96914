package probes

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestThresholds(t *testing.T) {
	for _, c := range []struct {
		name              string
		kind              Kind
		known             Result
		success, failure  int32
		attempts, results string // s and f; what the probe says after each, u for unknown
		held              bool
	}{
		{"readiness begins unknown", Readiness, Unknown, 1, 3, "", "u", false},
		{"liveness begins well", Liveness, Unknown, 1, 3, "", "s", false},
		{"startup begins unknown", Startup, Unknown, 1, 3, "", "u", false},
		{"readiness at once", Readiness, Unknown, 1, 3, "s", "us", false},
		{"readiness needs two", Readiness, Unknown, 2, 3, "ssffsfff", "uussssssf", false},
		{"readiness survives single failures", Readiness, Unknown, 1, 3, "sffsff", "ussssss", false},
		{"readiness falls and rises", Readiness, Unknown, 1, 2, "sffs", "ussfs", false},
		{"known ready stands until the threshold", Readiness, Success, 1, 3, "fff", "sssf", false},
		{"liveness fails and is held", Liveness, Unknown, 1, 3, "fff", "sssf", true},
		{"liveness counts in a row", Liveness, Unknown, 1, 3, "ffsff", "ssssss", false},
		{"startup succeeds and is held", Startup, Unknown, 1, 3, "ffs", "uuus", true},
		{"startup fails and is held", Startup, Unknown, 1, 3, "fff", "uuuf", true},
		{"zero thresholds are the API's defaults", Readiness, Success, 0, 0, "ffsfff", "ssssssf", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			probe := &corev1.Probe{SuccessThreshold: c.success, FailureThreshold: c.failure}
			letters := map[Result]string{Unknown: "u", Success: "s", Failure: "f"}
			now := initial(c.kind, c.known)
			got, n := letters[now], count{}
			for _, a := range c.attempts {
				attempt := Success
				if a == 'f' {
					attempt = Failure
				}
				now = n.add(c.kind, probe, now, attempt)
				got += letters[now]
			}
			if got != c.results || n.held != c.held {
				t.Errorf("results %s, held %v; want %s, %v", got, n.held, c.results, c.held)
			}
		})
	}
}

func TestFirstWait(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name          string
		started       time.Duration // ago
		delay, period int32
		known         Result
		want          time.Duration
		liveness      time.Duration // what a liveness probe waits
	}{
		{"just started", 0, 0, 10, Unknown, 0, 10 * time.Second},
		{"just started, delay", 0, 5, 10, Unknown, 5 * time.Second, 10 * time.Second},
		{"delay partly over", 2 * time.Second, 5, 10, Unknown, 3 * time.Second, 8 * time.Second},
		{"a little late", 50 * time.Millisecond, 0, 10, Unknown, 0, 9950 * time.Millisecond},
		{"long ago, nothing known", time.Hour, 5, 10, Unknown, 0, 0},
		{"long ago, known: keeps its rhythm", 65 * time.Second, 3, 10, Success, 8 * time.Second, 5 * time.Second},
		{"known, but the first is just due", 4 * time.Second, 0, 10, Success, 0, 6 * time.Second},
		{"long period after a restart", 1700 * time.Second, 0, 1800, Success, 0, 100 * time.Second},
		{"long period, in the rhythm", 2000 * time.Second, 0, 1800, Success, 1600 * time.Second, 0},
		{"delay of more than a period", 2 * time.Second, 15, 10, Unknown, 13 * time.Second, 13 * time.Second},
		{"wall clock set back", -time.Hour, 5, 10, Unknown, 5 * time.Second, 10 * time.Second},
		{"default period", 25 * time.Second, 0, 0, Success, 5 * time.Second, 5 * time.Second},
	} {
		for kind, want := range map[Kind]time.Duration{Readiness: c.want, Startup: c.want, Liveness: c.liveness} {
			target := &Target{StartedAt: now.Add(-c.started), Known: c.known, Kind: kind,
				Probe: &corev1.Probe{InitialDelaySeconds: c.delay, PeriodSeconds: c.period}}
			if got := firstWait(target, now); got != want {
				t.Errorf("%s, %s: got %v, want %v", c.name, kind, got, want)
			}
		}
	}
}

func TestFollowing(t *testing.T) {
	last := time.Now()
	for late, want := range map[time.Duration]time.Duration{
		0: 10, time.Second: 10, 9999 * time.Millisecond: 10, 10 * time.Second: 20, 25 * time.Second: 30, -time.Second: 10,
	} {
		if got := following(last, 10*time.Second, last.Add(late)).Sub(last); got != want*time.Second {
			t.Errorf("got %v late after %v, want %vs", late, got, int(want))
		}
	}
}

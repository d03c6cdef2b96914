package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/plan"
	"github.com/nodelet/nodelet/host/atomicfile"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/systemd"
)

const (
	// shutdownState is the kubelet's name of the file, below the root directory.
	shutdownState = "graceful_node_shutdown_state"
	// busRetry is how soon the system bus is tried again when it has hung up.
	busRetry = time.Second
	// lastWords is how long the end of the pods gets to reach the API server.
	lastWords = time.Second
)

// nodeShutdown ends the pods in waves before the machine goes down. Its one goroutine runs all; admission only reads.
type nodeShutdown struct {
	n     *nodelet
	log   *slog.Logger
	times []plan.WaveTime
	// down: the machine goes down; resumed: an earlier life of the agent has seen it begin. wave is the index of the last wave
	// that has begun, -1 for none.
	down, resumed atomic.Bool
	wave          atomic.Int32
}

// shutdownRecord is what is kept of a shutdown: the kubelet's two fields, and how far it came.
type shutdownRecord struct {
	StartTime time.Time `json:"startTime"`
	EndTime   time.Time `json:"endTime"`
	Wave      int32     `json:"wave"`
}

func newNodeShutdown(n *nodelet) *nodeShutdown {
	s := &nodeShutdown{n: n, log: n.log}
	for _, p := range n.cfg.Shutdown.ByPriority {
		s.times = append(s.times, plan.WaveTime{Priority: p.Priority, Grace: p.Grace})
	}
	s.wave.Store(-1)
	return s
}

// admit refuses what comes while the node goes down. The static pods that an agent finds which was started anew meanwhile are
// no newcomers.
func (s *nodeShutdown) admit(pod *corev1.Pod) *plan.Rejection {
	if !s.down.Load() || s.resumed.Load() && podutil.IsStatic(pod) {
		return nil
	}
	return plan.NodeGoesDown()
}

// doomed are the pods of the waves that an earlier life of the agent has begun.
func (s *nodeShutdown) doomed(pod *corev1.Pod) *agent.Eviction {
	if !s.down.Load() {
		return nil
	}
	i := plan.WaveOf(s.times, pod)
	if i > int(s.wave.Load()) {
		return nil
	}
	return &agent.Eviction{Reason: plan.ReasonTerminated, Message: plan.MessageTerminated, Grace: s.times[i].Grace}
}

func (s *nodeShutdown) total() (sum time.Duration) {
	for _, t := range s.times {
		sum += t.Grace
	}
	return sum
}

// look finds out, before any pod is looked at, whether an earlier life of the agent has seen a shutdown begin.
func (s *nodeShutdown) look(ctx context.Context) {
	if len(s.times) == 0 {
		return
	}
	l, err := systemd.OpenLogind(ctx)
	if err != nil {
		return // run says why
	}
	defer l.Close()
	if down, err := l.ShuttingDown(); err != nil || !down {
		return
	}
	s.down.Store(true)
	s.resumed.Store(true)
	if r := s.read(); r.EndTime.IsZero() {
		s.wave.Store(r.Wave)
	}
	s.n.node.SetShutdown(errShutdown)
}

var errShutdown = errors.New("node is shutting down") // the kubelet's words

// run holds the lock that delays shutdowns and ends the pods when one begins, until ctx ends.
func (s *nodeShutdown) run(ctx context.Context) {
	if len(s.times) == 0 {
		return
	}
	for told := false; ctx.Err() == nil; {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if !told {
			s.log.Warn("a shutdown of the node will not wait for its pods; trying again", "err", err, "every", busRetry)
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(busRetry):
		}
	}
}

// follow does so for one connection to the system bus.
func (s *nodeShutdown) follow(ctx context.Context) error {
	l, err := systemd.OpenLogind(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.AllowDelay(ctx, s.total()); err != nil {
		s.log.Warn("a shutdown may be cut short", "wanted", s.total(), "err", err)
	}
	if err := l.Delay(ctx); err != nil && !s.down.Load() {
		return err
	}
	defer func() { _ = l.Release() }() // at an orderly end; a crash leaves it with systemd
	if s.down.Load() {
		s.end(ctx, l)
	}
	for {
		down, err := l.Next(ctx)
		switch {
		case err != nil:
			return err
		case down:
			s.tell(plan.MessageShutdownBegin)
			s.down.Store(true)
			s.n.node.SetShutdown(errShutdown)
			s.end(ctx, l)
		default:
			s.tell(plan.MessageShutdownEnd)
			s.down.Store(false)
			s.resumed.Store(false)
			s.wave.Store(-1)
			s.n.node.SetShutdown(nil)
			if err := l.Delay(ctx); err != nil {
				return err
			}
		}
	}
}

func (s *nodeShutdown) tell(message string) {
	s.log.Info(message)
	s.n.nodeEvent(corev1.EventTypeNormal, "NodeShutdown", message)
}

// end runs the waves that are left and lets the machine go down.
func (s *nodeShutdown) end(ctx context.Context, l *systemd.Logind) {
	record := shutdownRecord{StartTime: time.Now()}
	first := 0
	if old := s.read(); s.resumed.Load() && old.EndTime.IsZero() {
		record, first = old, max(0, int(old.Wave))
	}
	bounded, cancel := context.WithTimeout(ctx, s.total())
	defer cancel()
	s.n.supervisor.EndInWaves(bounded, s.times, first, func(wave int) {
		s.wave.Store(int32(wave))
		record.Wave = int32(wave)
		s.write(record)
	})
	if ctx.Err() != nil {
		return
	}
	record.EndTime = time.Now()
	s.write(record)
	select {
	case <-ctx.Done():
	case <-time.After(lastWords):
	}
	s.log.Info("the pods have ended, the machine may go down", "took", record.EndTime.Sub(record.StartTime))
	if err := l.Release(); err != nil {
		s.log.Warn("the delay lock could not be given back", "err", err)
	}
}

func (s *nodeShutdown) path() string { return filepath.Join(s.n.cfg.Paths.Root, shutdownState) }

func (s *nodeShutdown) read() (r shutdownRecord) {
	text, err := os.ReadFile(s.path())
	if err != nil || json.Unmarshal(text, &r) != nil {
		return shutdownRecord{Wave: -1}
	}
	return r
}

func (s *nodeShutdown) write(r shutdownRecord) {
	text, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(s.path(), text, 0o644)
	}
	if err != nil {
		s.log.Warn("keep how far the shutdown came", "err", err)
	}
}

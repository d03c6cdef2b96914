package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/agent/plan"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Eviction ends a pod that its source still wants: the node needs its place, or goes down. The API object stays, with
// phase Failed and these words.
type Eviction struct {
	Reason, Message string
	// Grace is how long the containers get; the pod's own grace if that is shorter.
	Grace time.Duration
	// Own: the pod has brought it upon itself, see plan.Stop.
	Own bool
}

func (e *Eviction) stop(pod *corev1.Pod) *plan.Stop {
	return &plan.Stop{Cause: plan.StopEvicted, Deadline: time.Now().Add(min(e.Grace, podutil.GracePeriod(pod))), Reason: e.Reason, Message: e.Message, Own: e.Own}
}

// Evict ends a pod. released is closed when the pod has given back all that it held: at once for a pod that has no
// worker, or if ctx ends before the supervisor has taken the eviction. An eviction is not remembered after a restart
// of the agent.
func (s *Supervisor) Evict(ctx context.Context, pod types.UID, e Eviction) (released <-chan struct{}) {
	s.do(ctx, func() {
		if entry := s.workers[pod]; entry != nil && entry.order.Rejected == nil {
			released = s.evict(entry, e)
		}
	})
	if released == nil {
		return closed
	}
	return released
}

// closed is a closed channel.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// evict is Evict in the supervisor's goroutine.
func (s *Supervisor) evict(e *entry, eviction Eviction) (released <-chan struct{}) {
	if stop := e.order.Stop.Stricter(eviction.stop(e.order.Pod)); stop != e.order.Stop {
		e.order.Stop = stop
		if e.asking != nil {
			s.tell(e, e.order.Pod) // it has no order yet
		} else {
			e.worker.inbox.put(e.order)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-e.worker.released:
		case <-e.worker.gone:
		case <-s.gone:
		}
	}()
	return done
}

// Active are the pods that hold something of the node, or soon will.
func (s *Supervisor) Active(ctx context.Context) []*corev1.Pod {
	return s.active(ctx, func(*plan.Stop) bool { return true })
}

// Staying are the active pods that nothing has told to end.
func (s *Supervisor) Staying(ctx context.Context) []*corev1.Pod {
	return s.active(ctx, func(stop *plan.Stop) bool { return stop == nil })
}

func (s *Supervisor) active(ctx context.Context, wanted func(*plan.Stop) bool) (all []*corev1.Pod) {
	s.do(ctx, func() {
		for _, e := range s.workers {
			if e.order.Rejected == nil && !e.worker.isReleased() && wanted(e.order.Stop) {
				all = append(all, e.order.Pod)
			}
		}
	})
	return all
}

// Alive is nil while the supervisor's goroutine goes round, or has not begun to; an error when it does not answer
// before ctx ends.
func (s *Supervisor) Alive(ctx context.Context) error {
	select {
	case <-s.began:
	default:
		return nil
	}
	s.do(ctx, func() {})
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the supervisor of the pods does not answer: %w", err)
	}
	return nil
}

// do runs f in the supervisor's goroutine and waits for it; false where that has ended, or is not free before ctx ends.
func (s *Supervisor) do(ctx context.Context, f func()) bool {
	ran := make(chan struct{})
	select {
	case s.asks <- func() { f(); close(ran) }:
		<-ran
		return true
	case <-s.gone:
		return false
	case <-ctx.Done():
		return false
	}
}

// EndInWaves ends all pods in waves of rising priority when the node goes down: each wave gets its time, or less when
// all its pods have given back what they held. begun is told the index of each wave before it begins; waves before
// the one numbered first have passed in an earlier life, whatever is left of them ends at once with the first. An
// agent that has just been started first hears of its pods: without them a wave would be over at once. For a source
// that is silent it does not wait longer than the first wave may take.
func (s *Supervisor) EndInWaves(ctx context.Context, times []plan.WaveTime, first int, begun func(wave int)) {
	if first < len(times) {
		s.awaitSources(ctx, times[first].Grace)
	}
	for i := first; i < len(times); i++ {
		begun(i)
		var pods []*corev1.Pod
		for _, pod := range s.Active(ctx) {
			if plan.WaveOf(times, pod) <= i {
				pods = append(pods, pod)
			}
		}
		s.endWave(ctx, times[i], pods)
	}
}

func (s *Supervisor) awaitSources(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-s.known:
	case <-s.gone:
	case <-ctx.Done():
		s.log.Warn("shutdown ends the pods that are known; not every source of pods has spoken", "waited", limit)
	}
}

func (s *Supervisor) endWave(ctx context.Context, t plan.WaveTime, pods []*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	began := time.Now()
	s.log.Info("shutdown ends pods", "priority", t.Priority, "pods", len(pods), "grace", t.Grace)
	ctx, cancel := context.WithTimeout(ctx, t.Grace)
	defer cancel()
	var all []<-chan struct{}
	for _, pod := range pods {
		all = append(all, s.Evict(ctx, pod.UID, Eviction{Reason: plan.ReasonTerminated, Message: plan.MessageTerminated, Grace: t.Grace}))
	}
	for i, released := range all {
		select {
		case <-released:
		case <-ctx.Done():
			s.log.Warn("shutdown waits no longer for the pods of this priority", "priority", t.Priority, "took", time.Since(began),
				"first", pods[i].Namespace+"/"+pods[i].Name)
			return
		}
	}
	s.log.Info("shutdown has ended the pods of this priority", "priority", t.Priority, "took", time.Since(began))
}

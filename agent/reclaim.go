package agent

import "context"

// RemoveEnded removes the containers, their logs and the sandboxes of pods that have ended, as the kubelet does when
// the node is short of disk. It touches only pods whose end is on record, in the API server or as an eviction that is
// their result, so that no success and no restart count is lost. It returns when that is done or ctx ends.
func (s *Supervisor) RemoveEnded(ctx context.Context) {
	reclaimed, _ := get(ctx, s.loop, func() (ended []*worker) {
		for _, e := range s.table.workers {
			if e.reclaim || e.orphaned() || !e.worker.isReleased() || !e.endRecorded() {
				continue
			}
			e.reclaim = true
			s.dispatcher.send(e)
			ended = append(ended, e.worker)
		}
		return ended
	})
	for _, w := range reclaimed {
		select {
		case <-w.reclaimed:
		case <-w.gone:
		case <-s.loop.gone:
		case <-ctx.Done():
		}
	}
}

// endRecorded reports whether the end of a released pod is on record: in the API server, or as an eviction that is its
// result.
func (e *entry) endRecorded() bool {
	return shownEnded(e.pod()) || e.stop.Fails() && e.worker.result.Load().status.Reason == e.stop.Reason
}

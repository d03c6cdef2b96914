package plan

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var (
	simSeed  = flag.Uint64("seed", 1, "seed of the first simulated life; the next have the following seeds")
	simTail  = flag.Int("tail", 80, "how many of the last lines of a broken life to show")
	simLives = flag.Int("lives", 0, "how many lives to simulate; 0 stands for 100,000, or 5,000 with -short; the variable LIVES does the same")
)

// TestSimulation runs random pods through random trouble, and checks the rules of the house after each thing that happens.
// A life that breaks one is told by its seed: go test -run TestSimulation -seed N -lives 1.
func TestSimulation(t *testing.T) {
	lives := *simLives
	if text := os.Getenv("LIVES"); text != "" && lives == 0 {
		lives, _ = strconv.Atoi(text)
	}
	if lives == 0 {
		if lives = 100_000; testing.Short() {
			lives = 5_000
		}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // lives are short, and so is what they leave
	began := time.Now()
	total, broken := simulate(*simSeed, lives, Pod)
	if broken != nil {
		t.Fatalf("seed %d: %s\n%s", broken.seed, broken.broken, replay(broken.seed, Pod))
	}
	t.Logf("%d lives, %d decisions, %.1f µs a decision", lives, total.decisions, total.deciding.Seconds()*1e6/float64(total.decisions))
	t.Logf("%d sandboxes, %d containers started, %d faults, %d agents killed, in %.1f s",
		total.sandboxes, total.starts, total.faults, total.kills, time.Since(began).Seconds())
}

// tallies say how much has happened, so that a simulation in which nothing happens does not pass for one.
type tallies struct {
	decisions, sandboxes, starts, faults, kills int64
	deciding                                    time.Duration
}

func (t *tallies) add(o tallies) {
	t.decisions += o.decisions
	t.sandboxes += o.sandboxes
	t.starts += o.starts
	t.faults += o.faults
	t.kills += o.kills
	t.deciding += o.deciding
}

// simulate runs lives on all cores. It returns the first that it finds broken, nil where none is.
func simulate(seed uint64, lives int, decide func(Desired, Observed) Plan) (total tallies, broken *life) {
	var (
		next atomic.Int64
		mu   sync.Mutex
		all  sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(lives) {
					return
				}
				l := newLife(seed+uint64(i), decide)
				l.run()
				mu.Lock()
				total.add(l.tally)
				if l.broken != "" && (broken == nil || l.seed < broken.seed) {
					broken = l
					next.Store(int64(lives))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return total, broken
}

// replay runs a life again and returns the end of what happened in it.
func replay(seed uint64, decide func(Desired, Observed) Plan) string {
	l := newLife(seed, decide)
	l.trace = &strings.Builder{}
	l.run()
	lines := strings.Split(l.trace.String(), "\n")
	return fmt.Sprintf("%+v\n%s", l.desired.Pod.Spec, strings.Join(lines[max(0, len(lines)-*simTail):], "\n"))
}

// life is one pod's life in a world with trouble.
type life struct {
	*world
	*rules
	seed  uint64
	r     *rand.Rand
	tally tallies
	trace *strings.Builder
	birth time.Time

	// trouble lasts until calmAt; then all goes well, and the pod must come to rest.
	calmAt, faultAt time.Time
	// killNext: the next fault is the death of the agent.
	killNext bool
	// down: no agent runs until then.
	down   time.Time
	exits  []timedExit
	probes []timedVerdict
	// probing marks the containers for which verdicts are under way.
	probing map[string]bool
	stage   stage
	// left is how many plans the pod may still take to come to rest.
	left int
}

type timedExit struct {
	at   time.Time
	id   string
	code int32
}

type timedVerdict struct {
	at time.Time
	id string
	to Verdict
}

// stage is how far a life has come.
type stage int

const (
	stageTrouble stage = iota
	stageCalm
	stageEnding
	stageGone
)

// restWithin is how many plans a pod may take to come to rest once all goes well.
const restWithin = 500

func newLife(seed uint64, decide func(Desired, Observed) Plan) *life {
	r := rand.New(rand.NewPCG(seed, 0))
	pod := randomPod(r)
	if seed%5 == 0 { // not by chance, so that the other lives stay as they are
		claimSomething(pod)
	}
	l := &life{seed: seed, r: r, world: newWorld(Desired{Pod: pod, Hashes: hashesOf(pod)}, epoch), birth: epoch, probing: map[string]bool{}}
	l.rules = newRules(l)
	l.watch = l.rules
	l.decide = func(d Desired, o Observed) Plan {
		l.tally.decisions++
		began := time.Now()
		p := decide(d, o)
		l.tally.deciding += time.Since(began)
		return p
	}
	if chance(r, 30) {
		l.desired.Rejected = &Rejection{Reason: "OutOfcpu", Message: "no"}
	}
	l.calmAt = epoch.Add(time.Duration(r.IntN(1200)) * time.Second)
	l.maySize()
	l.plannedFault()
	return l
}

func (l *life) note(format string, args ...any) {
	if l.trace != nil {
		fmt.Fprintf(l.trace, "%10.3fs "+format+"\n", append([]any{l.now.Sub(l.birth).Seconds()}, args...)...)
	}
}

func (l *life) run() {
	for l.broken == "" {
		if !l.now.Before(l.down) {
			l.agentTurn()
			if l.plan.Done && l.broken == "" {
				l.checkGone()
				return
			}
		}
		if l.broken != "" {
			return
		}
		if at, any := l.nextEvent(); any {
			l.now = later(l.now, at)
			l.happen()
		} else {
			l.rested()
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// agentTurn is one turn of the agent: plan, and let the steps begin.
func (l *life) agentTurn() {
	l.turn()
	if l.stage != stageTrouble {
		if l.left--; l.left < 0 {
			l.breaks("no rest within %d plans; the last had steps %v, waits %v", restWithin, l.plan.Steps, l.plan.Waits)
			return
		}
	}
	for _, key := range l.plan.Cancel {
		for _, c := range l.calls {
			if !c.ghost && c.step.Key() == key {
				l.cancelled(c)
			}
		}
	}
	for _, s := range l.plan.Steps {
		l.note("do %s", s)
		l.fate(l.begin(s))
	}
	for _, target := range l.plan.Probes {
		l.probeSoon(target.ContainerID)
	}
}

// nextEvent is when something happens next.
func (l *life) nextEvent() (at time.Time, any bool) {
	consider := func(t time.Time) {
		if !t.IsZero() && (!any || t.Before(at)) {
			at, any = t, true
		}
	}
	for _, c := range l.calls {
		if !c.done {
			consider(c.effectAt)
		}
		if !c.ghost || c.done {
			consider(c.endAt)
		}
	}
	for _, e := range l.exits {
		consider(e.at)
	}
	for _, v := range l.probes {
		consider(v.at)
	}
	if l.now.Before(l.down) {
		consider(l.down)
	} else {
		consider(l.plan.Wake)
	}
	if l.stage == stageTrouble {
		consider(l.faultAt)
		consider(l.calmAt)
	}
	return at, any
}

// happen lets all that is due come about.
func (l *life) happen() {
	due := func(t time.Time) bool { return !t.IsZero() && !t.After(l.now) }
	for i := 0; i < len(l.calls); i++ {
		c := l.calls[i]
		if !c.done && due(c.effectAt) {
			l.act(c)
		}
		if due(c.endAt) && (c.done || !c.ghost) {
			l.answer(c)
			i--
		}
	}
	for i := 0; i < len(l.exits); i++ {
		if e := l.exits[i]; due(e.at) {
			l.exits = append(l.exits[:i], l.exits[i+1:]...)
			i--
			if n := l.index(e.id); n >= 0 && l.containers[n].Alive() {
				l.note("%s exits with %d", e.id, e.code)
				l.exit(e.id, e.code)
				l.troubleInReset(&l.containers[n])
			}
		}
	}
	for i := 0; i < len(l.probes); i++ {
		if v := l.probes[i]; due(v.at) {
			l.probes = append(l.probes[:i], l.probes[i+1:]...)
			i--
			if n := l.index(v.id); n >= 0 && l.containers[n].State == ContainerRunning && !l.now.Before(l.down) {
				l.note("verdict for %s: %+v", v.id, v.to)
				l.verdicts[v.id] = v.to
			}
		}
	}
	if l.stage == stageTrouble && due(l.faultAt) {
		l.fault()
		l.plannedFault()
	}
	if l.stage == stageTrouble && due(l.calmAt) {
		l.calmDown()
	}
}

// calmDown ends the trouble: what is wrong still is put right by nobody but the plan.
func (l *life) calmDown() {
	l.note("--- all goes well from now on")
	l.stage, l.left, l.apiBehind = stageCalm, restWithin, false
	l.exits, l.probes, l.probing = nil, nil, map[string]bool{}
	for id, v := range l.verdicts {
		l.probing[id] = v.Startup == ProbeFailure || v.Liveness == ProbeFailure // these do not get well by themselves
	}
	for i := range l.containers {
		if c := &l.containers[i]; c.State == ContainerRunning {
			l.willExit(c)
		}
	}
}

// rested: nothing will happen by itself any more. The pod must be where it belongs; then its life goes on to its end.
func (l *life) rested() {
	l.checkRest()
	switch l.stage {
	case stageTrouble:
		l.now = l.calmAt
		l.calmDown()
	case stageCalm:
		l.stage, l.left = stageEnding, restWithin
		if !podutil.IsStatic(l.desired.Pod) {
			l.deletePod(30 * time.Second)
			return
		}
		l.orphan()
	case stageEnding:
		if l.desired.Stop.Cause == StopOrphaned {
			l.breaks("nothing happens any more, and the pod is not done")
			return
		}
		l.stage, l.left = stageGone, restWithin
		l.orphan()
	default:
		l.breaks("nothing happens any more, and the pod is not done")
	}
}

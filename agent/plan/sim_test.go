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

	"github.com/nodelet/nodelet/agent/podstate"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// The distances between faults, at most. Dense faults find rare combinations; faults far apart let a pod run long.
const (
	denseFaults = 10 * time.Second
	wideFaults  = 2 * time.Minute
)

var (
	simSeed  = flag.Uint64("seed", 1, "seed of the first simulated run; the next runs have the following seeds")
	simEvery = flag.Duration("every", 0, "the longest time between two faults; 0 means 10s for one half of the runs "+
		"and 2m for the other")
	simTail = flag.Int("tail", 80, "how many of the last trace lines of a broken run to print")
	simRuns = flag.Int("runs", 0, "how many runs of each kind to simulate; 0 means the value of the variable RUNS, "+
		"or else 5,000, or 2,000 with -short")
)

// TestSimulation simulates random pods with random faults, and checks the rules after each event. To repeat a run that
// breaks a rule, use its seed and kind: go test -run 'TestSimulation$' -seed N -every D -runs 1.
func TestSimulation(t *testing.T) {
	runs := *simRuns
	if text := os.Getenv("RUNS"); text != "" && runs == 0 {
		var err error
		if runs, err = strconv.Atoi(text); err != nil {
			t.Fatal("RUNS: ", err)
		}
	}
	if runs == 0 {
		if runs = 5_000; testing.Short() {
			runs = 2_000
		}
	}
	kinds := []time.Duration{denseFaults, wideFaults}
	if *simEvery > 0 {
		kinds = []time.Duration{*simEvery}
	}
	defer debug.SetGCPercent(debug.SetGCPercent(6400)) // some 260 MiB; with more collections it takes longer
	for _, every := range kinds {
		t.Run(every.String(), func(t *testing.T) { simulateKind(t, every, runs) })
	}
}

func simulateKind(t *testing.T, every time.Duration, runs int) {
	began := time.Now()
	total, broken := simulate(*simSeed, runs, every, Pod)
	if broken != nil {
		t.Fatalf("seed %d, every %s: %s\n%s", broken.seed, every, broken.broken, replay(broken.seed, every))
	}
	if runs >= 1000 && min(total.decisions, total.sandboxes, total.starts, total.faults, total.kills) == 0 {
		t.Errorf("got %+v, want some of each", total)
	}
	took := time.Since(began).Seconds()
	t.Logf("%d runs, %d decisions in %.1f s, %.0f runs per second", runs, total.decisions, took, float64(runs)/took)
	t.Logf("%d sandboxes, %d containers started, %d faults, %d agents killed",
		total.sandboxes, total.starts, total.faults, total.kills)
}

// TestSeedsThatBroke repeats runs that once broke a rule. A change of the simulation gives a seed another meaning, so
// that it proves less from then on.
func TestSeedsThatBroke(t *testing.T) {
	for what, run := range map[string]struct {
		seed  uint64
		every time.Duration
	}{
		"end of an instance lost during a reset":         {35000107870, denseFaults},
		"mirror pod comes late, after a reset":           {36000475688, wideFaults},
		"status without the ID of a lost instance":       {27192, wideFaults},
		"lost instance whose start had no answer":        {32000089030, wideFaults},
		"creation fails after an instance never started": {33000169241, denseFaults},
		"creation fails as an older instance is removed": {34000328459, wideFaults},
		"pod without a source, app being started":        {20152388, wideFaults},
		"pod deleted at once, app being started":         {20619803, wideFaults},
		"pod being deleted, one of two apps started":     {20453616, wideFaults},
		"requester of a reset lost":                      {20028666, wideFaults},
		"init container lost, later start hangs":         {40037246, wideFaults},
		"container removed that ran while no agent did":  {60005791, wideFaults},
		"init container created after a later one":       {300028500, wideFaults},
		"created after a reset, then removed":            {1000067587, wideFaults},
		"answer of a resize of the pod lost":             {2000084402, wideFaults},
		"counted start failed, and a late one succeeds":  {3000022140, wideFaults},
		"last instance lost, the next never starts":      {500019068, denseFaults},
		"counted start failed, the next one lost":        {510140133, denseFaults},
		"container created while the pod's size changes": {500091480, denseFaults},
		"clock set back after a preStop hook":            {700045322, wideFaults},
		"created after a reset that the API missed":      {610411622, denseFaults},
		"passed init container in an unknown state":      {700299057, wideFaults},
		"answer of the release of claims lost":           {500099355, denseFaults},
		"instance created late beside one being started": {750697354, wideFaults},
		"volume unmounted late, before its mount ends":   {650253161, denseFaults},
		"instance started while its removal goes on":     {990007179, wideFaults},
		"back-off of a counted attempt that never ran":   {1290236090, wideFaults},
		"allocation taken back during a resize":          {8001532884, wideFaults},
		"hook of a sidecar outlives the pod":             {8001844822, wideFaults},
		"late start in a pod without a source":           {10001767557, wideFaults},
		"init container lost after a reset":              {11007992628, denseFaults},
		"late start in an evicted pod":                   {12002262558, wideFaults},
		"creation counted as failed after its start":     {149857, wideFaults},
		"hook tried again after the stop had failed":     {14000034323, wideFaults},
	} {
		if _, broken := simulate(run.seed, 1, run.every, Pod); broken != nil {
			t.Errorf("%s: seed %d, every %s: %s\n%s", what, run.seed, run.every, broken.broken, replay(run.seed, run.every))
		}
	}
}

// tallies count what has happened in the simulation, so that a simulation in which nothing happens is noticed.
type tallies struct {
	decisions, sandboxes, starts, faults, kills int64
}

func (t *tallies) add(o tallies) {
	t.decisions += o.decisions
	t.sandboxes += o.sandboxes
	t.starts += o.starts
	t.faults += o.faults
	t.kills += o.kills
}

// simulate simulates runs on all cores. It returns the first run that breaks a rule; nil if none does.
func simulate(seed uint64, runs int, every time.Duration, decide decision) (total tallies, broken *simRun) {
	var (
		next atomic.Int64
		mu   sync.Mutex
		all  sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(runs) {
					return
				}
				l := newRun(seed+uint64(i), every, decide)
				l.run()
				mu.Lock()
				total.add(l.tally)
				if l.broken != "" && (broken == nil || l.seed < broken.seed) {
					broken = l
					next.Store(int64(runs))
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return total, broken
}

// replay repeats a run and returns the end of its trace.
func replay(seed uint64, every time.Duration) string {
	l := newRun(seed, every, Pod)
	l.trace = &strings.Builder{}
	l.run()
	lines := strings.Split(l.trace.String(), "\n")
	return fmt.Sprintf("%+v\n%s", l.desired.Pod.Spec, strings.Join(lines[max(0, len(lines)-*simTail):], "\n"))
}

// simRun is one simulated run: one pod from its creation to its removal, in a world with faults.
type simRun struct {
	*world
	*rules
	seed uint64
	// every is the longest time between two faults.
	every time.Duration
	r     *rand.Rand
	tally tallies
	trace *strings.Builder
	birth time.Time

	// faults occur until faultsEnd. After that everything succeeds, and the pod must reach a stable state.
	faultsEnd, faultAt time.Time
	// killNext: the next fault is the death of the agent.
	killNext bool
	// sent is the status on its way to the API; zero if there is none.
	sent delayed
	// down: no agent runs until then.
	down time.Time
	// devicesAt is when the devices of the pod are back, if they are missing.
	devicesAt time.Time
	exits     []timedExit
	deaths    []timedDeath
	probes    []timedProbes
	// probing marks the containers for which probe results are pending.
	probing map[string]bool
	stage   stage
	// left is how many more plans the pod may need to reach a stable state.
	left int
}

type timedExit struct {
	at   time.Time
	id   string
	code int32
}

type timedProbes struct {
	at time.Time
	id string
	to podstate.ProbeResults
}

// stage is the progress of a run.
type stage int

const (
	stageFaults stage = iota
	stageFaultless
	stageEnding
	stageGone
)

// restWithin is how many plans a pod may need to reach a stable state after the last fault.
const restWithin = 500

func newRun(seed uint64, every time.Duration, decide decision) *simRun {
	r := rand.New(rand.NewPCG(seed, 0))
	pod := randomPod(r)
	if seed%5 == 0 { // not random, so that the other runs do not change
		claimSomething(pod)
	}
	l := &simRun{
		seed:    seed,
		every:   every,
		r:       r,
		world:   newWorld(podstate.Desired{Pod: pod, Hashes: hashesOf(pod)}, epoch),
		birth:   epoch,
		probing: map[string]bool{},
	}
	if l.endsSlowly() {
		hookApps(pod)
	}
	if l.pullsAlways() {
		pullAlways(pod)
	}
	l.rules = newRules(l)
	l.watch = l.rules
	l.decide = func(d podstate.Desired, o podstate.Observed) Plan {
		l.tally.decisions++
		return decide(d, o)
	}
	if chance(r, 30) {
		l.desired.Rejected = &podstate.Rejection{Reason: "OutOfcpu", Message: "no"}
	}
	l.faultsEnd = epoch.Add(time.Duration(r.IntN(int(min(20*time.Minute, 30*every)/time.Second))) * time.Second)
	if l.shortOfDisk() {
		l.images = map[string]bool{}
	}
	l.lagging = l.apiLags()
	l.removesFailed = l.onCRIO()
	l.mirrorComesLate()
	l.maySize()
	l.plannedFault()
	return l
}

func (l *simRun) note(format string, args ...any) {
	if l.trace != nil {
		fmt.Fprintf(l.trace, "%10.3fs "+format+"\n", append([]any{l.now.Sub(l.birth).Seconds()}, args...)...)
	}
}

func (l *simRun) run() {
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
		if at, found := l.nextEvent(); found {
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
func (l *simRun) agentTurn() {
	l.turn()
	l.sendStatus()
	if l.stage != stageFaults {
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
func (l *simRun) nextEvent() (at time.Time, found bool) {
	consider := func(t time.Time) {
		if !t.IsZero() && (!found || t.Before(at)) {
			at, found = t, true
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
	for _, d := range l.deaths {
		consider(d.at)
	}
	consider(l.sent.at)
	if l.desired.DevicesMissing != "" {
		consider(l.devicesAt)
	}
	if l.mirror != nil {
		consider(l.mirror.at)
	}
	if l.now.Before(l.down) {
		consider(l.down)
	} else {
		consider(l.plan.Wake)
	}
	if l.stage == stageFaults {
		consider(l.faultAt)
		consider(l.faultsEnd)
	}
	return at, found
}

// happen lets all that is due come about.
func (l *simRun) happen() {
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
				if l.stage == stageFaults && e.code == 0 && chance(l.r, 6) {
					l.note("%s exits with 0, after a process of it was killed for lack of memory", e.id)
					l.exitWith(e.id, 0, "OOMKilled")
				} else {
					l.note("%s exits with %d", e.id, e.code)
					l.exit(e.id, e.code)
				}
				l.troubleInReset(&l.containers[n])
				l.troubleAtEnd()
			}
		}
	}
	for i := 0; i < len(l.probes); i++ {
		if v := l.probes[i]; due(v.at) {
			l.probes = append(l.probes[:i], l.probes[i+1:]...)
			i--
			if n := l.index(v.id); n >= 0 && l.containers[n].State == podstate.ContainerRunning && !l.now.Before(l.down) {
				l.note("probes of %s: %+v", v.id, v.to)
				l.probed[v.id] = v.to
			}
		}
	}
	l.sandboxesDie()
	if due(l.sent.at) {
		l.statusArrives()
	}
	if l.mirror != nil && due(l.mirror.at) {
		l.mirrorComes()
	}
	l.findDevices()
	if l.stage == stageFaults && due(l.faultAt) {
		l.fault()
		l.plannedFault()
	}
	if l.stage == stageFaults && due(l.faultsEnd) {
		l.endFaults()
	}
}

// endFaults ends the faults. Only the plan can repair the damage that remains.
func (l *simRun) endFaults() {
	l.note("--- no more faults")
	l.stage, l.left = stageFaultless, restWithin
	l.apiBehind, l.exits = false, nil
	l.probes, l.probing = nil, map[string]bool{}
	for id, v := range l.probed {
		// these containers do not recover by themselves
		l.probing[id] = v.Startup == podstate.ProbeFailure || v.Liveness == podstate.ProbeFailure
	}
	for i := range l.containers {
		if c := &l.containers[i]; c.State == podstate.ContainerRunning {
			l.willExit(c)
		}
	}
}

// rested handles a stable state: without a new event nothing happens any more. The pod must be in the state that it
// should have. Then the run enters its next stage.
func (l *simRun) rested() {
	l.checkRest()
	switch l.stage {
	case stageFaults:
		l.now = l.faultsEnd
		l.endFaults()
	case stageFaultless:
		l.stage, l.left = stageEnding, restWithin
		if !podutil.IsStatic(l.desired.Pod) {
			l.deletePod(30 * time.Second)
			return
		}
		l.orphan()
	case stageEnding:
		if l.desired.Stop.Cause == podstate.StopOrphaned {
			l.breaks("the state is stable, but the plan is not done")
			return
		}
		l.stage, l.left = stageGone, restWithin
		l.orphan()
	default:
		l.breaks("the state is stable, but the plan is not done")
	}
}
